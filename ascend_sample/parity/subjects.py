"""What can be verified: each operator with its reference, its batches, its judge and its probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

import ascend_sample
from ascend_sample.reference import top_k_top_p_sample_reference
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_reference

from . import cases, cases_v2
from .cases import Batch
from .cases_v2 import BatchV2
from .compare import Comparison, Result, compare
from .compare_v2 import ResultV2, compare_v2
from .probe import PROBES, Operator, Probe
from .probe_v2 import PROBES_V2


@dataclass(frozen=True)
class Subject:
    """One operator, and how it is verified.

    Attributes:
        name: of the public function.
        operator: the public function.
        reference: what it is compared with.
        make_batch: the stream of batches, by seed, index and dtypes.
        make_result: of what the operator returns.
        judge: compares two results of a batch; the last argument says whether the device sorts probabilities.
        probes: the questions that are put to a device.
        scenarios: the names of the scenarios in reports, in their order, by what `Batch.scenarios` gives.
        dtypes: of logits, by device.
    """

    name: str
    operator: Operator
    reference: Operator
    make_batch: Callable[[int, int, tuple[torch.dtype, ...]], Batch]
    make_result: Callable[..., Result]
    judge: Callable[[Any, Any, Any, bool], Comparison]
    probes: tuple[Probe, ...]
    scenarios: dict[str, str]
    dtypes: dict[str, tuple[torch.dtype, ...]]


def _judge(batch: Batch, expected: Result, actual: Result, device_sorts_probabilities: bool) -> Comparison:
    logits, k, p, q = batch.tensors("cpu")
    assert logits is not None
    assert k is not None
    assert p is not None
    return compare(logits, k, p, q, batch.eps, expected, actual, device_sorts_probabilities=device_sorts_probabilities)


def _judge_v2(batch: BatchV2, expected: ResultV2, actual: ResultV2, device_sorts_probabilities: bool) -> Comparison:
    logits, k, p, q, min_p = batch.tensors("cpu")
    assert logits is not None
    assert k is not None
    assert p is not None
    return compare_v2(
        logits,
        k,
        p,
        q,
        min_p,
        batch.eps,
        batch.ks_max,
        batch.input_is_logits,
        expected,
        actual,
        device_sorts_probabilities=device_sorts_probabilities,
    )


_ALL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

SAMPLE: Final = Subject(
    name="top_k_top_p_sample",
    operator=ascend_sample.top_k_top_p_sample,
    reference=top_k_top_p_sample_reference,
    make_batch=cases.make_batch,
    make_result=Result,
    judge=_judge,
    probes=PROBES,
    scenarios=cases.SCENARIO_NAMES,
    dtypes={"cpu": _ALL_DTYPES, "npu": (torch.bfloat16, torch.float16)},
)
SAMPLE_V2: Final = Subject(
    name="top_k_top_p_sample_v2",
    operator=ascend_sample.top_k_top_p_sample_v2,
    reference=top_k_top_p_sample_v2_reference,
    make_batch=cases_v2.make_batch_v2,
    make_result=ResultV2,
    judge=_judge_v2,
    probes=PROBES_V2,
    scenarios=cases_v2.SCENARIOS,
    dtypes={"cpu": _ALL_DTYPES, "npu": _ALL_DTYPES},
)
SUBJECTS: Final = {subject.name: subject for subject in (SAMPLE, SAMPLE_V2)}
