"""SGLang: a sampler backend, ``--sampling-backend ascend_sample``.

Nothing of SGLang is imported before `register` runs. Tested versions: `TESTED_VERSIONS` (docs/integrations.md).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ascend_sample.integrations import sglang_drafts, sglang_positions, sglang_settings
from ascend_sample.integrations._host_values import facts_of, note
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._rows import Asking, drawn_with
from ascend_sample.integrations.sglang_masks import with_masks
from ascend_sample.sampling import KeptSets
from ascend_sample.sampling.requests.seeds import random_seeds, seed_bits
from ascend_sample.sampling.rows.parameters import Facts
from ascend_sample.sampling.rows.table import COLUMNS
from ascend_sample.sampling.step import routes

TESTED_VERSIONS: Final = ("0.5.21", "0.5.22", "0.5.23")
BACKEND: Final = "ascend_sample"
TENSORS: Final = {"temperature": "temperatures", "top_k": "top_ks", "top_p": "top_ps", "min_p": "min_ps"}
"""What SGLang calls the tensors of a batch, by what they hold."""
_seeds: Final[WeakTensorKeyDictionary] = WeakTensorKeyDictionary()
"""int64 [rows] on the CPU, of the requests whose temperatures a tensor has: SGLang's own are there under
`enable_deterministic_inference` alone."""


def register() -> None:
    """Registers the backend, before SGLang reads its arguments; a second call changes nothing.

    With an untested version of SGLang nothing is registered, and a warning says so.

    Raises:
        ModuleNotFoundError: SGLang is not installed.
    """
    version = str(importlib.import_module("sglang").__version__).partition("+")[0]
    if not is_served(version):
        warnings.warn(
            f"ascend_sample: the version of SGLang must be one of {', '.join(TESTED_VERSIONS)}, got {version}. "
            "The backend is not registered; use one of SGLang's own.",
            stacklevel=2,
        )
        return
    module = importlib.import_module("sglang.srt.layers.sampler")
    if BACKEND not in module._CUSTOM_SAMPLER_FACTORIES:
        made_here = sampler_class(module.Sampler)

        def make() -> Any:
            sampler = made_here()
            sglang_drafts.say_if_left(sampler)
            return sampler

        module.register_sampler_backend(BACKEND, make)
    batches = importlib.import_module("sglang.srt.sampling.sampling_batch_info")
    note_host_values(batches.SamplingBatchInfo, lambda: sglang_drafts.is_in_use(BACKEND))
    sglang_drafts.install(_drawn, BACKEND)
    sglang_settings.keep_backend(BACKEND)
    sglang_positions.install()


def is_served(version: str) -> bool:
    """Tells whether `register` registers the backend with SGLang of this version."""
    return version.partition("+")[0].partition(".post")[0] in TESTED_VERSIONS


def sampler_class(original: type[Any]) -> type[Any]:
    """Makes a subclass of SGLang's `Sampler` that draws here, and is SGLang's in everything else.

    SGLang's sampler has a path for Ascend that hands logits, not probabilities, to one method. The subclass takes that
    path and replaces the method.

    Args:
        original: `sglang.srt.layers.sampler.Sampler`.
    """

    def __init__(self: Any) -> None:
        original.__init__(self)
        self.use_ascend_backend = True
        self.masked_rows = self.kept = None  # which rows ask for masks, and what was kept of them

    body = {
        "__doc__": "SGLang's sampler with draws from `ascend_sample.sampling`.",
        "__init__": __init__,
        "forward": with_masks(original.forward),
        "_forward_ascend_backend": _forward,
    }
    return type("AscendSampleSampler", (original,), body)


def _forward(
    sampler: Any,
    logits: Tensor,
    sampling_info: Any,
    simple_sampling_case: bool,
    return_logprob: bool,
    positions: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Draws one token a row.

    Args:
        sampler: SGLang's.
        logits: [rows, vocab_size], as the model gave them.
        sampling_info: SGLang's tensors of a value a row. Its greedy rows have a temperature of 1 and a top-k of 1.
        simple_sampling_case: no row has a filter.
        return_logprob: some request asks for logprobs.
        positions: int64 [rows], of the tokens in their sequences.

    Returns:
        int32 [rows], and the log-probabilities at the temperature of each row, unfiltered, as SGLang reports them.
    """
    rows = sampler.masked_rows
    asking = None if rows is None else Asking(np.asarray(rows, np.int64), sampler.sampling_mask_max_tokens)
    known = sglang_positions.of_rows(sampling_info, positions)
    drawn, sampler.kept = _drawn_with(logits, sampling_info, known, is_filtered=not simple_sampling_case, asking=asking)
    token_ids = drawn.to(torch.int32)
    if not return_logprob:
        return token_ids, None
    return token_ids, (logits.float() / sampling_info.temperatures.view(-1, 1)).log_softmax(dim=1)


def _drawn(logits: Tensor, sampling_info: Any, positions: Tensor, rows_of_each: int = 1) -> Tensor:
    """Draws one token a row, int64 [rows], as `_drawn_with` does."""
    return _drawn_with(logits, sampling_info, positions, rows_of_each)[0]


def _drawn_with(
    logits: Tensor,
    sampling_info: Any,
    positions: Tensor,
    rows_of_each: int = 1,
    is_filtered: bool = True,
    asking: Asking | None = None,
) -> tuple[Tensor, KeptSets | None]:
    """Draws one token a row, int64 [rows], and returns what was kept of the rows that ask for it.

    Args:
        logits: [rows, vocab_size], as the model gave them.
        sampling_info: SGLang's tensors of a value a request.
        positions: int64 [rows], of the tokens before those that are drawn, on the CPU or where the logits are.
        rows_of_each: how many rows each request has, one after another: the nodes of its drafts.
        is_filtered: some request has a filter.
        asking: for what is kept of rows; None: nobody does.
    """
    temperature = sampling_info.temperatures.view(-1)
    top_k = sampling_info.top_ks if is_filtered and sampling_info.need_top_k_sampling else None
    top_p = sampling_info.top_ps if is_filtered and sampling_info.need_top_p_sampling else None
    min_p = sampling_info.min_ps if is_filtered and sampling_info.need_min_p_sampling else None
    facts = facts_of(len(temperature), sampling_info.temperatures, top_k, top_p, min_p)
    seed = sampling_info.sampling_seed
    if seed is None:
        seed = _seeds.get(sampling_info.temperatures)
    seed = random_seeds(len(temperature)) if seed is None else seed.to(torch.int64)

    def spread(of_requests: Tensor | None) -> Tensor | None:
        if of_requests is None or rows_of_each == 1 or (facts is not None and not logits.is_cpu):
            return of_requests
        return of_requests.repeat_interleave(rows_of_each)

    def with_best(drawn: Tensor) -> Tensor:
        is_greedy = (sampling_info.top_ks == 1).repeat_interleave(rows_of_each)
        return torch.where(is_greedy, logits.argmax(1), drawn)

    return drawn_with(
        logits,
        asking,
        at_nan=with_best,
        temperature=spread(temperature),
        top_k=spread(top_k),
        top_p=spread(top_p),
        min_p=spread(min_p),
        seed=seed if rows_of_each == 1 else seed.repeat_interleave(rows_of_each),
        position=positions.view(-1).to(torch.int64),
        facts=None if facts is None else {name: numbers.repeat(rows_of_each) for name, numbers in facts.items()},
        largest_k=None if facts is not None or top_k is None else _largest_k(logits, sampling_info),
    )


def note_host_values(batch_info: type[Any], draws_here: Callable[[], bool]) -> None:
    """Lets SGLang's batches note what they copy to the device, and seeds, whenever they are made, filtered or merged.

    Args:
        batch_info: `sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo`; a second call changes nothing.
        draws_here: tells whether this backend is the one in use: no other needs any of it.
    """

    @replacing(batch_info, "from_schedule_batch")
    def make_and_note(make: Callable[..., Any], cls: type[Any], batch: Any, *arguments: Any, **named: Any) -> Any:
        info = make(cls, batch, *arguments, **named)
        if not draws_here():
            return info
        asked = [request.sampling_params for request in batch.reqs]
        values = {name: [getattr(params, name) for params in asked] for name in TENSORS}
        _note(info, {name: np.asarray(values[name], dtype=COLUMNS[name].dtype) for name in TENSORS})
        if info.sampling_seed is None:
            _seeds[info.temperatures] = _seeds_of(asked)
        return info

    @replacing(batch_info, "filter_batch")
    def keep_and_note(
        keep: Callable[..., Any], self: Any, keep_indices: Sequence[int], *arguments: Any, **named: Any
    ) -> Any:
        facts, seeds = _noted(self), _seeds.get(self.temperatures)
        found = keep(self, keep_indices, *arguments, **named)
        rows = np.asarray(keep_indices, dtype=np.int64)
        if facts is not None:
            _note(self, {name: of_rows[rows] for name, of_rows in facts.items()})
        if seeds is not None:
            _seeds[self.temperatures] = seeds[torch.from_numpy(rows)]
        return found

    @replacing(batch_info, "merge_batch")
    def join_and_note(join: Callable[..., Any], self: Any, other: Any, *arguments: Any, **named: Any) -> Any:
        facts, more = _noted(self), _noted(other)
        seeds = _seeds.get(self.temperatures), _seeds.get(other.temperatures)
        found = join(self, other, *arguments, **named)
        if facts is not None and more is not None:
            _note(self, {name: np.concatenate((facts[name], more[name])) for name in TENSORS})
        if seeds[0] is not None and seeds[1] is not None:
            _seeds[self.temperatures] = torch.cat(seeds)
        return found


def _seeds_of(asked: Sequence[Any]) -> Tensor:
    """Returns the seeds of SGLang's requests, int64 [rows]: random where there is none, and for the copies of one.

    Copies have the seed of their request, and nothing that tells which they are: all would be the same text.
    """
    seeds = random_seeds(len(asked))
    for row, params in enumerate(asked):
        if params.sampling_seed is not None and params.n == 1:
            seeds[row] = seed_bits(params.sampling_seed)
    return seeds


def _note(info: Any, facts: Facts) -> None:
    note(facts, *(getattr(info, tensor) for tensor in TENSORS.values()))


def _noted(info: Any) -> Facts | None:
    return facts_of(len(info.temperatures), *(getattr(info, tensor) for tensor in TENSORS.values()))


def _largest_k(logits: Tensor, sampling_info: Any) -> int | None:
    """Returns SGLang's bound of all top-k where one operator serves such rows, whatever else they ask for.

    A bound does not say which rows the operator would skip, so it must be one that skips none.

    Args:
        logits: [rows, vocab_size].
        sampling_info: whose `max_top_k`, since 0.5.22, no row exceeds; None where a row has no top-k.
    """
    bound: int | None = getattr(sampling_info, "max_top_k", None)
    if bound is None or bound > routes.LARGEST_FUSED_K:
        return None
    return bound if routes.abilities_of(logits.device, logits.dtype).fused_v2 else None
