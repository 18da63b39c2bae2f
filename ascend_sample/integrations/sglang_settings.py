"""Keeps the sampler backend that SGLang was asked for, where SGLang would take its own for it.

On a CPU, and with `enable_deterministic_inference`, SGLang sets the backend to "pytorch", whatever was asked for: so
that no CUDA kernel is called, and since no other of its own looks at seeds. This one calls no such kernel, and does.
With `rl_on_policy_target` SGLang's own is taken: it rounds logits as the trainer does, so that log-probabilities are
equal.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, Final

from ascend_sample.integrations._replacing import replacing

DECLARATIONS: Final = "sglang.srt.arg_groups.overrides"
PLATFORMS: Final = "sglang.srt.arg_groups.platform_hook"
DETERMINISM: Final = "sglang.srt.arg_groups.attention_hook"


def keep_backend(backend: str) -> None:
    """Lets the two functions that set the backend leave this one as it is; a second call changes nothing."""
    modules: Any = map(importlib.import_module, (DECLARATIONS, PLATFORMS, DETERMINISM))
    declarations, platforms, determinism = modules

    @replacing(platforms, "handle_cpu_backends")
    def keep_on_a_cpu(for_cpu: Callable[[Any], None], server_args: Any) -> None:
        asked = server_args.sampling_backend
        for_cpu(server_args)
        if asked == backend:
            declarations.declare_resolution(server_args, __name__, sampling_backend=backend)

    @replacing(determinism, "_deterministic_sampling_backend")
    def keep_for_determinism(for_determinism: Callable[[Any], dict[str, Any]], view: Any) -> dict[str, Any]:
        if view.sampling_backend != backend:
            return for_determinism(view)
        if view.rl_on_policy_target is None:
            return {}
        warnings.warn(
            "ascend_sample: rl_on_policy_target asks for the trainer's log-probabilities, so tokens are drawn by "
            "SGLang's own sampler.",
            stacklevel=3,
        )
        return for_determinism(view)
