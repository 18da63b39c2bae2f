"""The batches of the second operator: those of the first, with what only the second takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from .cases import BATCHES, LOWEST_SAFE_MAXIMUM, MAX_TOP_K, NOISES, SEEDS, Batch, deal, make_batch, undefined_values
from .operands import Layout, Operand

KS_MAX = (1024, 1024, 1024, 1, 10, 50, 1000)
_EFFECTIVE_MIN_P = (1e-3, 0.05, 0.25, 0.5, 0.9, 1.0, 1.5)
_SKIPPING_MIN_P = (-0.5, 0.0, float("nan"))
_HANDS = tuple(itertools.product((True, False), ("", "sample", "result"), (False, True)))
"""What is dealt out to the batches: whether the input is logits, what is asked for, whether min_p is given."""
_GIVEN = tuple(noise for noise in NOISES if noise != "none")

_FILTERS = ("", "top-k", "top-p", "top-k top-p", "one entry")
SCENARIOS = {
    name: name
    for name in (
        " ".join(word for word in words if word) or "argmax"
        for words in itertools.product(("", "probabilities:"), _FILTERS, ("", "min-p"), ("", "sample", "result"))
    )
}
"""What may be on in a row: probabilities instead of logits, the filters, a draw or the sample result."""


@dataclass(frozen=True)
class BatchV2(Batch):
    """Inputs of one call of the second operator."""

    min_p: Operand | None  # `[B]`, the dtype of the logits, or None
    ks_max: int  # for the operator
    input_is_logits: bool  # for the operator
    is_need_sample_result: bool  # for the operator

    def tensors(self, device: str) -> tuple[torch.Tensor | None, ...]:
        """Returns copies of logits, k, p, q and min_p on a device, in their layouts."""
        return *super().tensors(device), None if self.min_p is None else self.min_p.view(device)

    @property
    def options(self) -> dict[str, Any]:
        """Returns the other arguments, by their names."""
        return super().options | {
            "ks_max": self.ks_max,
            "input_is_logits": self.input_is_logits,
            "is_need_sample_result": self.is_need_sample_result,
        }

    def scenarios(self) -> list[str]:
        """Returns what is on in every row, in words, each one of :data:`SCENARIOS`."""
        batch_size, vocab_size = self.shape
        limit = min(vocab_size, -(-self.ks_max // 8) * 8, MAX_TOP_K)
        min_p = [0.0] * batch_size if self.min_p is None else self.min_p.view().float().tolist()
        values = zip(self.k.view().tolist(), self.p.view().float().tolist(), min_p, strict=True)
        last = "result" if self.is_need_sample_result else "" if self.q is None else "sample"
        names = []
        for k, p, m in values:
            filters = ["top-k"] * (1 <= k <= limit) + ["top-p"] * (0 < p < 1)
            words = ["one entry"] if p <= 0 else filters
            words = ["probabilities:"] * (not self.input_is_logits) + words + ["min-p"] * (m > 0) + [last]
            names.append(" ".join(word for word in words if word) or "argmax")
        return names

    def undefined_on_device(self) -> list[bool]:
        """Tells which rows a real device gives no promise for: as in the first operator, and probabilities below 0."""
        logits = self.logits.view().float()
        undefined = undefined_values(self)
        if self.input_is_logits:
            whole_row = torch.tensor(["top-k" not in scenario for scenario in self.scenarios()])
            undefined |= whole_row & (logits.amax(dim=1) < LOWEST_SAFE_MAXIMUM)
        else:
            undefined |= (logits < 0).any(dim=1) | (logits <= 0).all(dim=1)
        return list(undefined.tolist())

    def describe(self, row: int) -> str:
        """Describes the parameters of one row, for a report of a failure."""
        min_p = "None"
        if self.min_p is not None:
            min_p = f"{float(self.min_p.view()[row]):.9g} ({self.min_p.layout.value})"
        return (
            f"{super().describe(row)}, min_p={min_p}, ks_max={self.ks_max}, input_is_logits={self.input_is_logits}, "
            f"is_need_sample_result={self.is_need_sample_result}"
        )


def make_batch_v2(seed: int, index: int, dtypes: tuple[torch.dtype, ...]) -> BatchV2:
    """Makes one batch of the stream; arguments as for `cases.make_batch`.

    Returns:
        The batch, on the CPU.
    """
    input_is_logits, asked, has_min_p = _HANDS[deal(seed, index, len(dtypes), len(_HANDS))]
    base = make_batch(seed, index, dtypes, noises=_GIVEN if asked == "sample" else ("none",))
    generator = torch.Generator().manual_seed(2 * SEEDS * BATCHES + seed * BATCHES + index)

    def integer(bound: int) -> int:
        return int(torch.randint(bound, (), generator=generator))

    logits = base.logits
    if not input_is_logits:
        probabilities = _as_probabilities(logits.view(), generator)
        logits = Operand.arrange(probabilities, logits.layout, filler=1e4)
    min_p = None
    if has_min_p:
        dtype = logits.memory.dtype
        batch_size, _ = base.shape
        choices = torch.tensor((*_EFFECTIVE_MIN_P, *_SKIPPING_MIN_P), dtype=torch.float64).to(dtype)
        values = choices[torch.randint(len(choices), (batch_size,), generator=generator)]
        layouts = [layout for layout in Layout if layout is not Layout.TRANSPOSED]
        min_p = Operand.arrange(values, layouts[integer(len(layouts))], filler=0.7)
    return BatchV2(
        **vars(base) | {"logits": logits},
        min_p=min_p,
        ks_max=KS_MAX[integer(len(KS_MAX))],
        input_is_logits=input_is_logits,
        is_need_sample_result=asked == "result",
    )


def _as_probabilities(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns the softmax of the rows in their dtype.

    NaN and +inf stay, and in a third of the rows some zeros become negative.
    """
    values = logits.double()
    finite = values.masked_fill(values.isnan() | values.isposinf(), -torch.inf)
    probabilities = torch.softmax(finite, dim=1).nan_to_num(0.0).to(logits.dtype)
    share = torch.tensor((0.0, 0.0, 0.1))[torch.randint(3, (len(logits), 1), generator=generator)]
    negative = (probabilities == 0) & (torch.rand(logits.shape, generator=generator) < share)
    probabilities = probabilities.masked_fill(negative, -0.25)
    return torch.where(logits.isnan() | logits.isposinf(), logits, probabilities)
