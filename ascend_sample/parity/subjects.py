"""What can be verified: each operator with its reference, its batches, its judge and its probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS
from ascend_sample.reference import top_k_top_p_sample_reference
from ascend_sample.reference_apply import apply_top_k_top_p_reference
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_reference

from . import cases, cases_v2, filtering
from .cases import Batch
from .compare import Comparison, Result, compare
from .filtering import FilterBatch, compare_filtered
from .probe import PROBES, PROBES_V2, Operator, Probe
from .row_model import V1, V2, Rules

TENSORS: Final = ("logits", "k", "p", "q", "min_p")
"""The arguments that are tensors, in their order; each operator has the first ones."""


@dataclass(frozen=True)
class Subject:
    """One operator, and how it is verified."""

    operator: Operator  # the public function
    reference: Operator  # what it is compared with
    make_batch: Callable[[int, int, tuple[torch.dtype, ...]], Any]  # the stream of batches, by seed, index and dtypes
    probes: tuple[Probe, ...]  # the questions that are put to a device
    scenarios: dict[str, str]  # the names of the scenarios in reports, in their order, by what `Batch.scenarios` gives

    @property
    def name(self) -> str:
        """Returns the name of the public function."""
        return self.operator.__name__

    def dtypes(self, device: str) -> tuple[torch.dtype, ...]:
        """Returns the dtypes that logits may have on a device."""
        all_dtypes = (torch.bfloat16, torch.float16, torch.float32)
        return tuple(dtype for dtype in all_dtypes if device != "npu" or OPERATORS[self.name].takes(dtype))

    def result(self, returned: Any) -> Any:
        """Returns what the operator or its reference has returned, on the CPU, as `judge` takes it."""
        raise NotImplementedError

    def judge(self, batch: Any, expected: Any, actual: Any, device_sorts_probabilities: bool) -> Comparison:
        """Compares two results of a batch."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sampling(Subject):
    """One of the operators that draw."""

    rules: Rules  # of the operator

    def result(self, returned: Any) -> Result:
        """Returns what the operator or its reference has returned, on the CPU, as `judge` takes it."""
        ids, *others = returned
        return Result(ids.cpu(), *(None if part is None else part.cpu() for part in others))

    def judge(self, batch: Batch, expected: Result, actual: Result, device_sorts_probabilities: bool) -> Comparison:
        """Compares two results of a batch."""
        tensors = dict(zip(TENSORS, batch.tensors("cpu"), strict=False))
        options = {name: batch.options[name] for name in ("eps", "ks_max", "input_is_logits") if name in batch.options}
        given: dict[str, Any] = tensors | options
        return compare(
            **given,
            expected=expected,
            actual=actual,
            rules=self.rules,
            device_sorts_probabilities=device_sorts_probabilities,
        )


@dataclass(frozen=True)
class Filtering(Subject):
    """The operator that filters alone."""

    def result(self, returned: Any) -> torch.Tensor:
        """Returns the filtered logits, on the CPU."""
        filtered: torch.Tensor = returned.cpu()
        return filtered

    def judge(
        self, batch: FilterBatch, expected: torch.Tensor, actual: torch.Tensor, device_sorts_probabilities: bool
    ) -> Comparison:
        """Compares two results of a batch; a device sorts logits."""
        return compare_filtered(batch, expected, actual)


SAMPLE: Final = Sampling(
    operator=ascend_sample.top_k_top_p_sample,
    reference=top_k_top_p_sample_reference,
    make_batch=cases.make_batch,
    rules=V1,
    probes=PROBES,
    scenarios=cases.SCENARIO_NAMES,
)
SAMPLE_V2: Final = Sampling(
    operator=ascend_sample.top_k_top_p_sample_v2,
    reference=top_k_top_p_sample_v2_reference,
    make_batch=cases_v2.make_batch_v2,
    rules=V2,
    probes=PROBES_V2,
    scenarios=cases_v2.SCENARIOS,
)
APPLY: Final = Filtering(
    operator=ascend_sample.apply_top_k_top_p,
    reference=apply_top_k_top_p_reference,
    make_batch=filtering.make_filter_batch,
    probes=filtering.PROBES_OF_FILTER,
    scenarios=filtering.SCENARIOS,
)
SUBJECTS: Final[dict[str, Subject]] = {subject.name: subject for subject in (SAMPLE, SAMPLE_V2, APPLY)}
