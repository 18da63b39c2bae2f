"""transformers' OpenAI-compatible server with the sampling layer's draws, and with seeds that decide texts.

    python -m ascend_sample.integrations.transformers_server MODEL --port 8000

takes the arguments of ``transformers serve``. The server itself gives a request's seed to torch's generator when the
request comes in, so of requests that wait for each other all but one are drawn with another's. Here the seed goes with
its request, and torch's generator stays as it is.

Tested with transformers 5.23.0 and 5.24.0 (docs/integrations.md).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.utils import GenerationMixin

from ascend_sample._errors import refuse
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations.transformers import decoded_by, draws_already
from ascend_sample.requests import from_openai

if TYPE_CHECKING:
    from transformers.cli.serving.utils import BaseHandler

NAME: Final = "transformers_server"
SEED: Final = "ascend_sample_seed"
"""The attribute of a request's `GenerationConfig` that has its seed, or None."""
Build = Callable[..., GenerationConfig]


def draw_in_generate() -> None:
    """Lets `generate`, of all models, sample and take the best token as `fused_sampling` does.

    The seed is the attribute `SEED` of the generation config; without one torch's default generator gives it. Streamers
    and stop strings work as ever, and so do other generation modes, which have loops of their own: torch's generators
    have the seed there until the loop ends.
    """

    @replacing(GenerationMixin, "generate")
    def generate(
        own: Callable[..., Any],
        self: GenerationMixin,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        seed = getattr(generation_config, SEED, None)
        if seed is None:
            return own(self, inputs, generation_config, *more, **named)
        device: torch.device = self.device  # type: ignore[attr-defined]
        devices = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            torch.manual_seed(seed)
            return own(self, inputs, generation_config, *more, **named)

    @replacing(GenerationMixin, "_sample")
    def sample(
        loop: Callable[..., Any],
        self: GenerationMixin,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        bound = functools.partial(loop, self, synced_gpus=synced_gpus)
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config)
        if draws_already(logits_processor):  # `fused_sampling` has come here itself
            return bound(*arguments, streamer=streamer, **model_kwargs)
        seed = getattr(generation_config, SEED, None)
        return decoded_by(bound, self, *arguments, seed, False, streamer, model_kwargs)


def keeping_seeds(build: Build) -> Build:
    """Wraps what makes a request's generation config, so that the config has the seed and torch's generator has not."""
    from fastapi import HTTPException  # the server's, which is an extra of transformers

    @functools.wraps(build)
    def build_with_seed(self: BaseHandler, body: dict[str, Any], *rest: Any, **named: Any) -> GenerationConfig:
        try:
            seed = from_openai({"seed": body.get("seed")}).seed
        except (TypeError, ValueError) as error:
            raise HTTPException(400, str(error)) from error
        config = build(self, body | {"seed": None}, *rest, **named)
        setattr(config, SEED, seed)
        return config

    return build_with_seed


def main() -> None:
    """Starts the server."""
    if "--continuous-batching" in sys.argv:
        remedy = "Leave it out, or start `transformers serve`, which draws as transformers does."
        refuse(NAME, "--continuous-batching", "be off: that is another loop with draws of its own", "on", remedy)
    try:
        import fastapi  # noqa: F401  which stands for all that the extra has
    except ModuleNotFoundError:
        remedy = "Install it: pip install 'transformers[serving]'"
        raise SystemExit(f"{NAME}: transformers' extra serving must be installed, but is not. {remedy}") from None
    from transformers.cli.serving.utils import BaseHandler
    from transformers.cli.transformers import app

    draw_in_generate()
    BaseHandler._build_generation_config = keeping_seeds(  # type: ignore[method-assign]
        BaseHandler._build_generation_config
    )
    app(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
