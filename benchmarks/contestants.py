"""What is compared: each contestant samples a batch, by its own usual means.

All but one are given the noise q: making it costs more than sampling. transformers draws its own by
`torch.multinomial`, as it always does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

import ascend_sample
from ascend_sample._validate import convert_k, convert_p
from ascend_sample.bench.samplers import sample_compact
from ascend_sample.bench.timing import Repeat, repeat, rotate
from ascend_sample.reference import top_k_top_p_sample_reference
from benchmarks import cases, native
from benchmarks.cases import Case

EPS = 1e-8
MIN_P = 0.05


class Batch(NamedTuple):
    """One batch: logits [B, V], k int32 [B] and p [B] as the operator takes them, q float32 [B, V]."""

    logits: torch.Tensor
    k: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor


def make_batch(logits: torch.Tensor, case: Case, q: torch.Tensor) -> Batch:
    """The batch of a case."""
    return Batch(logits, convert_k(case.k, logits), convert_p(case.p, logits), q)


class Noise(Enum):
    """To what the noise q belongs where a filter is on."""

    RANK = "rank"
    ID = "id"
    OWN = "own"


Sampler = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Contestant:
    """One way to sample.

    Attributes:
        prepare: for a case, a function of a batch's four tensors that returns ids int64 [B].
        noise: how it uses q.
        min_p: drops tokens of less than this share of the best one's weight.
    """

    prepare: Callable[[Case], Sampler]
    noise: Noise
    min_p: float = 0.0


def _operator(case: Case) -> Sampler:
    operator = torch.ops.ascend_sample.top_k_top_p_sample.default
    return lambda logits, k, p, q: operator(logits, k, p, q, EPS, False, 32)[0]


def _second_operator(case: Case) -> Sampler:
    operator = torch.ops.ascend_sample.top_k_top_p_sample_v2.default
    return lambda logits, k, p, q: operator(logits, k, p, q, None, EPS)[0]


def _second_operator_with_min_p(case: Case) -> Sampler:
    operator = torch.ops.ascend_sample.top_k_top_p_sample_v2.default
    return lambda logits, k, p, q: operator(logits, k, p, q, _min_p_of(len(p), p.dtype), EPS)[0]


@cache
def _min_p_of(rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((rows,), MIN_P, dtype=dtype)


def _function_of_tensors(case: Case) -> Sampler:
    function = ascend_sample.top_k_top_p_sample
    return lambda logits, k, p, q: function(logits, k, p, q).logits_select_idx


def _function_of_numbers(case: Case) -> Sampler:
    function, k, p = ascend_sample.top_k_top_p_sample, case.k, case.p
    return lambda logits, _k, _p, q: function(logits, k, p, q).logits_select_idx


def _reference(case: Case) -> Sampler:
    return lambda logits, k, p, q: top_k_top_p_sample_reference(logits, k, p, q).logits_select_idx


def _torch_topk(case: Case) -> Sampler:
    return lambda logits, k, p, q: sample_compact(logits, case.k, case.p, q)


def _candidates(case: Case) -> Sampler:
    sample = native.library().sample_candidates.default
    p = 1.0 if case.p is None else case.p
    return lambda logits, _k, _p, q: sample(logits, case.k or logits.shape[1], p, q)


def _vllm(case: Case) -> Sampler:
    """The sampler of vLLM in plain torch: mask the float32 logits by a full sort, softmax, division, argmax.

    Top-k keeps every logit that equals the k-th. With top-k alone it does not sort.
    """

    def mask_below_kth(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        best = logits.topk(int(k.max()), dim=-1).values
        return logits.masked_fill(logits < best.gather(1, (k.long() - 1)[:, None]), -torch.inf)

    def mask_by_sort(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor) -> torch.Tensor:
        values, ids = logits.sort(dim=-1)  # ascending
        if k is not None:
            kth = values.gather(1, (values.shape[1] - k.long())[:, None])
            values.masked_fill_(values < kth, -torch.inf)
        is_beyond = values.softmax(dim=-1).cumsum(dim=-1) <= 1 - p.float()[:, None]
        is_beyond[:, -1] = False  # the best stays
        values.masked_fill_(is_beyond, -torch.inf)
        return torch.empty_like(values).scatter_(1, ids, values)

    def sample(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        if case.p is not None:
            logits = mask_by_sort(logits, None if case.k is None else k, p)
        elif case.k is not None:
            logits = mask_below_kth(logits, k)
        return logits.softmax(dim=-1).div_(q).argmax(dim=-1)

    return sample


def _transformers(case: Case) -> Sampler:
    """The warpers of `generate`, in its order, then its draw."""
    warpers = [TopKLogitsWarper(case.k)] if case.k is not None else []
    warpers += [TopPLogitsWarper(case.p)] if case.p is not None else []

    def sample(logits: torch.Tensor, _k: torch.Tensor, _p: torch.Tensor, _q: torch.Tensor) -> torch.Tensor:
        scores = logits.float()
        for warper in warpers:
            scores = warper(None, scores)
        return torch.multinomial(scores.softmax(dim=-1), num_samples=1).squeeze(1)

    return sample


def _argpartition(case: Case) -> Sampler:
    """NumPy: argpartition for the k best and a sort of those; top-p alone has to sort everything."""

    def sample(logits: torch.Tensor, _k: torch.Tensor, _p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        values, noise = logits.float().numpy(), q.numpy()
        ids = None
        if case.k is not None:
            ids = np.argpartition(values, -case.k, axis=1)[:, -case.k :]
            values = np.take_along_axis(values, ids, axis=1)
        if case.branch != "C":
            order = np.argsort(-values, axis=1)
            values = np.take_along_axis(values, order, axis=1)
            ids = order if ids is None else np.take_along_axis(ids, order, axis=1)
        weights = np.exp(values - values.max(axis=1, keepdims=True))
        if case.p is not None:
            weights /= weights.sum(axis=1, keepdims=True)
            weights[np.cumsum(weights, axis=1) - weights > case.p] = 0
        drawn = (weights / noise[:, : weights.shape[1]]).argmax(axis=1)
        return torch.from_numpy(drawn if ids is None else np.take_along_axis(ids, drawn[:, None], axis=1)[:, 0])

    return sample


CONTESTANTS = {
    cases.OPERATOR: Contestant(_operator, Noise.RANK),
    cases.PUBLIC_TENSORS: Contestant(_function_of_tensors, Noise.RANK),
    cases.PUBLIC_SCALARS: Contestant(_function_of_numbers, Noise.RANK),
    cases.REFERENCE: Contestant(_reference, Noise.RANK),
    cases.TORCH_TOPK: Contestant(_torch_topk, Noise.RANK),
    cases.CANDIDATES: Contestant(_candidates, Noise.RANK),
    cases.ARGPARTITION: Contestant(_argpartition, Noise.RANK),
    cases.VLLM: Contestant(_vllm, Noise.ID),
    cases.TRANSFORMERS: Contestant(_transformers, Noise.OWN),
    cases.SECOND: Contestant(_second_operator, Noise.RANK),
    cases.SECOND_MIN_P: Contestant(_second_operator_with_min_p, Noise.RANK, MIN_P),
}
"""Everything that samples. The floor and the core alone are no samplers: see `subject`."""


def _noise_read(batch: Batch) -> torch.Tensor:
    """As much of q as the operator has to read: an entry for each token that is kept."""
    kept = ascend_sample.top_k_top_p_sample(*batch, is_need_logits=True).logits_top_kp_select
    assert kept is not None
    return batch.q.view(-1)[: int((kept > -torch.inf).sum())]


def subject(name: str, case: Case, batches: list[Batch]) -> Repeat:
    """A contestant as something to be timed on batches that rotate."""
    if name == cases.FLOOR:
        read = native.library().streaming_read.default
        return repeat(rotate(read, [([batch.logits, _noise_read(batch)],) for batch in batches]))
    if name == cases.CORE_ALONE:
        (batch,) = batches
        time_core = native.library().time_core.default
        return lambda calls: float(time_core(*batch, calls))
    return repeat(rotate(CONTESTANTS[name].prepare(case), batches))
