"""vLLM: a sampler with the interface of V1's `TopKTopPSampler`, a plugin that installs it, and V2's `custom_sampler`.

Nothing of vLLM is imported here: what it has is changed as it imports it. Tested versions: `TESTED_VERSIONS`
(docs/integrations.md).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ascend_sample.integrations import vllm_cpu, vllm_drafts, vllm_masks, vllm_served, vllm_shards, vllm_v2
from ascend_sample.integrations._ascend_config import ascend_config
from ascend_sample.integrations._generators import CountedGenerator, KnownRows, SeedSource
from ascend_sample.integrations._host_values import facts_of, note
from ascend_sample.integrations._importing import when_imported
from ascend_sample.integrations._left_alone import DRAWING, say_left
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._rows import filtered
from ascend_sample.integrations._switches import is_on
from ascend_sample.integrations.vllm_v2 import custom_sampler as custom_sampler

TESTED_ASCEND_VERSIONS: Final = ("0.18.0", "0.23.0.post1", "0.27.1rc1", "0.30.0rc2")
"""Of vllm_ascend: its releases since 0.18, its newest candidate, and what its main of August 2026 has become."""
TESTED_VERSIONS: Final = ("0.18.0", "0.23.0", "0.27.1", "0.30.0", "0.32.0", "0.33.0")
"""Those that these pair with, and the two newest: one of each minor version, whose other patches are served as well."""
MINOR_VERSIONS: Final = tuple(each.rpartition(".")[0] for each in TESTED_VERSIONS)
SWITCH: Final = "ASCEND_SAMPLE_VLLM"
RAY_COPIES: Final = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Which variables vLLM gives to the workers that Ray starts, beside those whose names begin as its own do."""
ASCEND_SAMPLER: Final = "vllm_ascend.sample.sampler"
CLASS_NAMES: Final = {
    "vllm.v1.sample.ops.topk_topp_sampler": "TopKTopPSampler",
    vllm_cpu.SAMPLER: "TopKTopPSampler",
    ASCEND_SAMPLER: "AscendTopKTopPSampler",
}
"""Where engines look for the class when they make a sampler."""
INPUT_BATCH: Final = "vllm.v1.worker.gpu_input_batch"
"""Where V1 keeps the parameters of its requests on the host, and copies them; vllm_ascend's class derives from it."""
REJECTION_SAMPLERS: Final = {
    "vllm.v1.sample.rejection_sampler": "RejectionSampler",
    "vllm_ascend.sample.rejection_sampler": "AscendRejectionSampler",
}
"""V1's, and the one of vllm_ascend that derives from it."""
V2_OUTPUT: Final = "vllm.v1.worker.gpu.sample.output"
ASCEND_V2_KERNELS: Final = "vllm_ascend.patch.worker.patch_v2.patch_triton"
"""What puts functions of vllm_ascend in the place of V2's, its sampling masks among them."""
V2_SAMPLER: Final = "vllm.v1.worker.gpu.sample.sampler"
V2_REJECTION_SAMPLER: Final = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
ASCEND_V2_RUNNER: Final = "vllm_ascend.worker.v2.model_runner"


def sample(
    sampler: Any, logits: Tensor, generators: dict[int, Generator], k: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Does what `TopKTopPSampler.forward_native` does, for any sampler with its attributes.

    Where the plugin has seen the batch that k and p were made from, rows of greedy requests take the best token: vLLM
    replaces whatever is drawn for them.

    Args:
        sampler: whose `logprobs_mode`, `keep_ties` and `seed_source` these are.
        logits: float32 [rows, vocab_size], divided by the temperature; not changed.
        generators: of the rows whose requests have a seed.
        k: int32 [rows], vocab_size where top-k is off; None: off for all.
        p: float32 [rows], 1 where top-p is off; None: off for all.

    Returns:
        int64 [rows], and what the processed modes report: float32 [rows, vocab_size] logits or logprobs.
    """
    facts = generators.facts if isinstance(generators, KnownRows) else facts_of(len(logits), k, p)
    if facts is None:
        temperature = torch.ones(len(logits), device=logits.device, dtype=torch.float32)
    else:
        temperature = torch.from_numpy(facts["temperature"])
    filters: dict[str, Any] = {"top_k": k, "top_p": p}
    token_ids = vllm_served.draw_here(sampler, logits, generators, facts, **filters, temperature=temperature)
    if sampler.logprobs_mode not in ("processed_logits", "processed_logprobs"):
        return token_ids, None
    processed = filtered(logits, facts, **filters, keep_ties=sampler.keep_ties)
    return token_ids, processed if sampler.logprobs_mode == "processed_logits" else processed.log_softmax(dim=1)


class TopKTopPSampler(nn.Module):
    """Top-k, top-p and the draw in one call, with the interface of vLLM's class of this name.

    Logits come divided by the temperature, after penalties and min-p, which vLLM applies before. A request with a seed
    gets the same tokens whatever else is in the batch.

    Args:
        logprobs_mode: one of vLLM's four; the processed ones make calls return logits or logprobs.
        use_fp64_gumbel: has no effect: the noise has 63 random bits in any case.
        keep_ties: top-k keeps every logit that is equal to the k-th, as vLLM's own does, and not exactly k.

    Example:
        >>> sampler = TopKTopPSampler(logprobs_mode="processed_logprobs")
        >>> logits, k = torch.tensor([[0.0, 9.0, 0.0, 1.0]]), torch.tensor([1], dtype=torch.int32)
        >>> sampler(logits, {}, k, None)
        (tensor([1]), tensor([[-inf, 0., -inf, -inf]]))
    """

    def __init__(
        self, logprobs_mode: str = "raw_logprobs", use_fp64_gumbel: bool = False, *, keep_ties: bool = False
    ) -> None:
        super().__init__()
        self.logprobs_mode = logprobs_mode
        self.use_fp64_gumbel = use_fp64_gumbel
        self.keep_ties = keep_ties
        self.seed_source = SeedSource()

    def forward(
        self, logits: Tensor, generators: dict[int, Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Does the same as `forward_native`."""
        return self.forward_native(logits, generators, k, p)

    def forward_native(
        self, logits: Tensor, generators: dict[int, Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Draws one token a row; see `sample` for arguments and results."""
        return sample(self, logits, generators, k, p)


def register() -> None:
    """Installs the sampler in vLLM and, where it is installed, in vllm_ascend: the plugin's entry point.

    vLLM calls it in each of its processes, possibly more than once. Modules are changed when they are imported.
    ``ASCEND_SAMPLE_VLLM=0`` switches it off, and ``ASCEND_SAMPLE_VLLM_SHARDS=1`` lets ranks draw from their own parts
    of the logits. With an untested version of vLLM nothing is changed, and a warning says so. What is no release is
    served as the minor version in its name, with a warning.
    """
    _give_switches_to_workers()
    if not is_on(SWITCH, default=True):
        return
    version = str(importlib.import_module("vllm").__version__).partition("+")[0]
    if not is_served(version):
        warnings.warn(
            f"ascend_sample: the version of vLLM must be one of {', '.join(MINOR_VERSIONS)}, got {version}. "
            f"vLLM keeps its own sampler; set {SWITCH}=0 to be silent about it.",
            stacklevel=2,
        )
        return
    if ".dev" in version:
        warnings.warn(
            f"ascend_sample: vLLM {version} is no release, and is served as {_minor(version)}. If it fails, set "
            f"{SWITCH}=0.",
            stacklevel=2,
        )
    for module_name, class_name in CLASS_NAMES.items():
        when_imported(module_name, partial(_replace_sampler, class_name))
    when_imported(vllm_cpu.SAMPLER, _draw_every_step)
    when_imported(ASCEND_SAMPLER, _make_no_noise)
    vllm_cpu.install()
    for module_name, class_name in REJECTION_SAMPLERS.items():
        when_imported(module_name, partial(_verify_drafts, class_name))
    when_imported(INPUT_BATCH, lambda module: _note_host_values(module.InputBatch))
    when_imported(INPUT_BATCH, lambda module: _count_draws(module.InputBatch))
    when_imported(V2_SAMPLER, vllm_v2.install)
    when_imported(V2_OUTPUT, vllm_masks.install)
    when_imported(ASCEND_V2_KERNELS, lambda module: vllm_masks.install(sys.modules[V2_OUTPUT]))
    when_imported(ASCEND_V2_RUNNER, lambda module: vllm_v2.install_runner(module.NPUModelRunner))
    when_imported(V2_REJECTION_SAMPLER, lambda module: vllm_v2.install_drafts(module.RejectionSampler))
    # Beneath vLLM's own logger, so that it is shown where vLLM's messages are.
    logging.getLogger("vllm.ascend_sample").info(
        "ascend_sample draws the tokens of vLLM %s; %s=0 switches it off.", version, SWITCH
    )


def _give_switches_to_workers() -> None:
    """Lets workers that Ray starts have the switches that are set here: ranks that draw apart draw different tokens."""
    given = [name for name in (SWITCH, vllm_shards.SWITCH) if name in os.environ]
    if given:
        asked = filter(None, os.environ.get(RAY_COPIES, "").split(","))
        os.environ[RAY_COPIES] = ",".join(dict.fromkeys([*asked, *given]))


def is_served(version: str) -> bool:
    """Tells whether `register` changes vLLM of this version."""
    return _minor(version) in MINOR_VERSIONS


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _replace_sampler(class_name: str, module: Any) -> None:
    original = getattr(module, class_name, None)
    if original is not None and "replaced" not in vars(original):  # its own: vllm_ascend's derives from vLLM's
        setattr(module, class_name, _replacement(original))


def _draw_every_step(module: Any) -> None:
    """Keeps V1's sampler from a kernel that would draw a step by itself, as 0.33's does of one without filters on ROCm.

    A seed's noise would be another one in those steps.
    """

    @replacing(module, "mixed_sample_eligible")
    def is_eligible(own: Callable[..., bool], *arguments: Any, **named: Any) -> bool:
        return False


def _verify_drafts(class_name: str, module: Any) -> None:
    vllm_drafts.install(getattr(module, class_name, None))


def _replacement(original: type[Any]) -> type[Any]:
    """Makes a subclass of an engine's sampler that draws here, and is the engine's in everything else."""

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        original.__init__(self, *arguments, **named)
        self.seed_source = SeedSource()
        self.forward = self.forward_native  # vLLM's picks one for its platform
        if not vllm_served.draws_here(self):
            kind = type(self)
            say_left(self, f"{kind.__name__} draws in its own way", kind.__module__.partition(".")[0], DRAWING)

    def forward_native(
        self: Any, logits: Tensor, generators: dict[int, Generator], k: Tensor | None, p: Tensor | None
    ) -> Any:
        # vllm_ascend may give each rank a part of the vocabulary alone, which only its own sampler joins.
        if getattr(ascend_config(original), "enable_reduce_sample", False):
            say_left(self, "each rank has a part of the vocabulary alone", "vllm_ascend", DRAWING)
            return original.forward_native(self, logits, generators, k, p)
        return sample(self, logits, generators, k, p)

    body = {
        "__doc__": f"{original.__name__} whose draws are those of `ascend_sample.sampling`.",
        "__module__": original.__module__,
        "__init__": __init__,
        "forward_native": forward_native,
        "keep_ties": False,
        "replaced": original,
    }
    return type(original.__name__, (original,), body)


def _make_no_noise(module: Any) -> None:
    """Spares what vllm_ascend's enable_async_exponential makes beside the model: no draw here asks for that noise.

    The generators of the requests would make it, which are where their positions come from.
    """

    @replacing(getattr(module, "AscendSampler", None), "do_async_exponential")
    def make_unless_drawn_here(make: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
        if not vllm_served.draws_here(self.topk_topp_sampler):
            make(self, *arguments, **named)


def _note_host_values(input_batch: type[Any]) -> None:
    """Lets V1's batches note what they copy to the device, whenever they do: first when they are made.

    vllm_ascend's batch derives from vLLM's, and is made without what makes that.
    """

    @replacing(input_batch, "_make_sampling_metadata")
    def make_and_note(make: Callable[[Any], Any], self: Any) -> Any:
        if vllm_shards.is_switched_on():
            vllm_shards.install()
        metadata = make(self)
        rows = slice(self.num_reqs)
        facts = {
            "temperature": (self.temperature_cpu[rows] != 0).astype(np.float32),
            "top_k": self.top_k_cpu[rows].copy(),
            "top_p": self.top_p_cpu[rows].copy(),
        }
        note(facts, metadata.temperature, metadata.top_k, metadata.top_p)
        return metadata


def _count_draws(input_batch: type[Any]) -> None:
    """Gives requests of V1's batches, where their generators are the CPU's, some that can be moved back."""

    @replacing(input_batch, "add_request")
    def add_with_generator(add: Callable[..., Any], self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        given = request.generator
        if given is not None and given.device.type == "cpu" and not isinstance(given, CountedGenerator):
            request.generator = CountedGenerator(given.initial_seed())  # the request keeps it when it is preempted
        return add(self, request, *arguments, **named)
