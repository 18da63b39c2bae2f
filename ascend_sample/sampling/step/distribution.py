"""The distribution that a row is drawn from, from its logits and parameters: the kept logits, and the probabilities.

All other modules leave it to these functions which parameters there are and what each of them keeps. Nothing here reads
a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import check_bool
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.best_tokens import without_nan
from ascend_sample.sampling.draws.total_order import mask_below_top_k
from ascend_sample.sampling.draws.weights import is_outside_nucleus
from ascend_sample.sampling.requests.checks import LARGEST, LARGEST_FRACTION
from ascend_sample.sampling.rows.parameters import (
    DTYPES,
    RowParameters,
    check_column,
    check_logits,
    check_numbers,
    is_limited,
)
from ascend_sample.sampling.rows.table import COLUMNS
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K

LEAST_SCALED: Final = -LARGEST * 2.0**-32
"""Below it are scaled logits that stand beside +inf, for temperatures up to 2^32."""
INTEGERS: Final = (torch.int64, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)
"""What a top_k may be beside its own int32."""
NO_EDITS: Final[Mapping[str, Tensor]] = MappingProxyType({})


class Form(IntEnum):
    """What the CPU kernel writes of what is kept: its `FilteredForm` (`csrc/cpu/calls.h`)."""

    PROBABILITIES = 0
    LOGITS = 1
    """As they were."""
    DIVIDED = 2
    """By the temperature."""
    SHIFTED = 3
    """By the maximum, before they are divided."""


def filter_logits(
    logits: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    keep_ties: bool = False,
) -> Tensor:
    """Returns logits / temperature where top-k, top-p and min-p keep an entry, and -inf elsewhere.

    A softmax of the result is the distribution that `sample_rows` draws from, but for rounding the quotients to
    float32, by up to 2^-24 of each.

    Args:
        logits: float32, float16 or bfloat16 [rows, vocab_size]. NaN counts as -inf; where there is +inf, nothing else
            is kept.
        temperature: float32 [rows] >= 0; a row of 0 keeps its best token alone, with its logit. None: 1.
        top_k: int [rows]; outside [1, vocab_size) means off. None: off.
        top_p: float32 [rows] in (0, 1]; 1 means off. None: off.
        min_p: float32 [rows] in [0, 1]; 0 means off. None: off.
        keep_ties: top-k keeps every logit that is equal to the k-th; a top_k of 1 is greedy all the same.

    Returns:
        float32 [rows, vocab_size].

    Raises:
        TypeError: an argument is no tensor, or of another dtype.
        ValueError: an argument has another shape, or is on another device; on a CPU also where a number is outside of
            its range. On a device nobody looks, and what such a row keeps means nothing.

    Example:
        >>> filter_logits(torch.tensor([[4.0, 2.0, 3.0]]), temperature=torch.tensor([0.5]), top_k=torch.tensor([2]))
        tensor([[8., -inf, 6.]])

    Source: docs/sampling.md, section 1 "What is drawn".
    """
    check_logits("filter_logits", logits)
    check_bool("filter_logits", "keep_ties", keep_ties)
    if isinstance(top_k, Tensor) and top_k.dtype in INTEGERS:
        top_k = top_k.to(torch.int64).clamp(-1, logits.shape[1]).to(DTYPES["top_k"])
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for field, tensor in filters.items():
        if tensor is not None:
            check_column("filter_logits", field, tensor, logits)
    if logits.is_cpu:
        given = {field: tensor for field, tensor in filters.items() if tensor is not None}
        check_numbers("filter_logits", {field: tensor.detach().numpy() for field, tensor in given.items()})
    if _is_native(logits, filters):
        return _filtered_natively(logits, filters, Form.DIVIDED, keep_ties)
    scaled = _scaled(logits, filters, keep_ties)
    divided = logits.float() if temperature is None else logits.float() / divisor_of(temperature)
    return torch.where(scaled > -torch.inf, divided, -torch.inf)


def kept_logits(
    logits: Tensor, parameters: RowParameters, keep_ties: bool = False, edits: Mapping[str, Tensor] = NO_EDITS
) -> Tensor:
    """Does what `filter_logits` does, for parameters of which some are known to be off.

    ``edits`` are what the CPU kernel does to the logits first, as `SamplingBatch.native_edits` has it.
    """
    if edits:
        return _filtered_natively(logits, parameters.filters(), Form.DIVIDED, keep_ties, edits)
    return filter_logits(logits, **parameters.filters(), keep_ties=keep_ties)


def undivided_logits(
    logits: Tensor, parameters: RowParameters, keep_ties: bool = False, edits: Mapping[str, Tensor] = NO_EDITS
) -> Tensor:
    """Returns the logits of a CPU that `kept_logits` divides by the temperature, as they are, and -inf elsewhere."""
    filters = parameters.filters()
    if edits or _is_native(logits, filters):
        return _filtered_natively(logits, filters, Form.LOGITS, keep_ties, edits)
    return torch.where(_scaled(logits, filters, keep_ties) > -torch.inf, without_nan(logits), -torch.inf)


def scaled_logits(logits: Tensor, parameters: RowParameters, keep_ties: bool = False) -> Tensor:
    """Returns `kept_logits` less their maximum, for what shifts rows anyway: no digit is lost to how large they are.

    The difference of two logits is divided by the temperature: rounding each quotient would move the difference by as
    much as the quotients are large. Entries of +inf become 0, and a row without any logit above -inf stays so.
    """
    filters = parameters.filters()
    if _is_native(logits, filters):
        return _filtered_natively(logits, filters, Form.SHIFTED, keep_ties)
    return _scaled(logits, filters, keep_ties)


def drawn_from(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Returns the logits whose softmax the rows of a batch are drawn from: after masks, penalties and filters.

    Args:
        logits: float32, float16 or bfloat16 [batch, vocab_size], the model's.
        batch: the requests.

    Returns:
        float32 [batch, vocab_size].
    """
    if logits.is_cpu:
        return kept_logits(logits, batch.row_parameters(), edits=batch.native_edits())
    edited = batch.edited(logits)
    return kept_logits(logits if edited is None else edited, batch.row_parameters())


class Distributions:
    """The distributions of rows whose parameters stay the same from step to step.

    On a device the operators' filters find what is kept, in fewer launches, where top-k cuts ties and the host knows
    the parameters. Else the functions above do.

    Args:
        parameters: of the rows.
        vocab_size: how many columns the logits have.
        keep_ties: as for `filter_logits`.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=3)
        >>> row = batch.add(SamplingParams(temperature=0.5, top_k=2))
        >>> Distributions(batch.row_parameters(), 3).probabilities(torch.tensor([[0.3, 0.6, 0.1]]).log())
        tensor([[0.2000, 0.8000, 0.0000]])
    """

    def __init__(self, parameters: RowParameters, vocab_size: int, keep_ties: bool = False) -> None:
        self.parameters, self.keep_ties, self._vocab_size = parameters, keep_ties, vocab_size
        facts = parameters.facts
        self._is_by_operators = facts is not None and not keep_ties and parameters.seed.device.type != "cpu"
        if facts is None or not self._is_by_operators:
            return
        is_k_on = is_limited(facts["top_k"], vocab_size)
        is_greedy = facts["temperature"] == 0
        self._has_top_k = bool((is_k_on | is_greedy).any())
        self._has_top_p, self._has_min_p = bool((facts["top_p"] < 1).any()), bool((facts["min_p"] > 0).any())
        self._is_filtered = self._has_top_k or self._has_top_p or self._has_min_p
        self._has_large_k = bool((is_k_on & (facts["top_k"] > LARGEST_FUSED_K) & ~is_greedy).any())
        self._has_temperature = bool(((facts["temperature"] != 1) & ~is_greedy).any())
        self._exceeded = exceeded(self._own.top_p)
        self._ends: Tensor | None = None

    @classmethod
    def of_any(
        cls, parameters: RowParameters, vocab_size: int, largest_k: int, keep_ties: bool = False
    ) -> Distributions:
        """Returns those of rows of which the host knows nothing but that no top_k that is on is above ``largest_k``."""
        count = len(parameters.seed)
        most = {"temperature": 0.5, "top_k": min(largest_k, vocab_size - 1), "top_p": 0.5, "min_p": 0.5}
        facts = {name: np.full(count, number, COLUMNS[name].dtype) for name, number in most.items()}
        return cls(replace(parameters, facts=facts), vocab_size, keep_ties)

    @cached_property
    def _own(self) -> RowParameters:
        return self.parameters.for_operators(self._vocab_size)

    @cached_property
    def divisor(self) -> Tensor | None:
        """Returns the temperatures with 1 for 0, float32 [rows, 1]; None where the operators need none."""
        if not self._is_by_operators:
            return divisor_of(self.parameters.temperature)
        return divisor_of(self._own.temperature) if self._has_temperature else None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns softmax(logits / temperature) among what the filters keep of each row.

        A greedy row's has a single 1. NaN counts as -inf; entries of +inf share the whole mass; a row without any logit
        above -inf is all NaN.

        Args:
            logits: floats [rows, vocab_size]. They stay as they are.

        Returns:
            float32 [rows, vocab_size].
        """
        if logits.is_cpu and not self.keep_ties:
            own = self._own  # each row is read, filtered and normalised while it is in a cache
            found: Tensor = torch.ops.ascend_sample.filter_logits.default(
                logits, own.temperature, own.top_k, own.top_p, own.min_p, Form.PROBABILITIES.value
            )
            return found
        return torch.softmax(self.kept_values(logits), dim=1)

    def kept(self, logits: Tensor) -> Tensor:
        """Returns what `filter_logits` does, in fewer launches than `filtered`.

        Args:
            logits: float32 [rows, vocab_size] without NaN and +inf, of rows that are not greedy. They stay as they are.
        """
        if not self._is_by_operators or (self._is_filtered and not _has_v2(logits)):
            return self.filtered(logits)
        divided = logits if self.divisor is None else logits / self.divisor
        return self._filtered(divided) if self._is_filtered else divided  # the operator shifts rows itself

    def filtered(self, logits: Tensor) -> Tensor:
        """Does what `kept` does for any logits: NaN counts as -inf, and where there is +inf nothing else is kept.

        Args:
            logits: floats [rows, vocab_size]. They stay as they are.
        """
        if not self._is_by_operators:
            return kept_logits(logits, self.parameters, self.keep_ties)
        divided = logits.float() if self.divisor is None else logits / self.divisor
        return torch.where(self.scaled(logits) > LEAST_SCALED, divided, -torch.inf)

    def scaled(self, logits: Tensor) -> Tensor:
        """Returns logits less their maximum, divided by the temperature, -inf where they are filtered out.

        What is kept is what the routes of a device with the second operator draw from.
        """
        if not self._is_by_operators:
            return scaled_logits(logits, self.parameters, self.keep_ties)
        values = _finite(logits)
        values.sub_(values.amax(1, keepdim=True).clamp(min=-LARGEST))
        if self.divisor is not None:
            values.div_(self.divisor)
        return self._filtered(values) if self._is_filtered else values

    def kept_values(self, logits: Tensor) -> Tensor:
        """Does what `scaled` does but for a shift of a row, for what shifts rows anyway, as a softmax does."""
        is_plain = self._is_by_operators and self.divisor is None and not self._is_filtered
        return _finite(logits) if is_plain else self.scaled(logits)

    def _filtered(self, values: Tensor) -> Tensor:
        """Returns the values, with -inf in the place of what the filters do not keep."""
        own = self._own
        if not _has_v2(values):
            return self._filtered_by_rank(values)
        if self._has_large_k:  # the operator skips it
            values = mask_below_top_k(values, own.top_k, keep_ties=False)
        operator = torch.ops.ascend_sample.top_k_top_p_sample_v2
        min_p = own.min_p if self._has_min_p else None
        kept: Tensor = operator(values, own.top_k, self._exceeded, None, min_p, 0.0, True, 32, LARGEST_FUSED_K)[1]
        return kept

    def _filtered_by_rank(self, values: Tensor) -> Tensor:
        """Does what `_filtered` does on a device without the second operator, as its routes do: rows are sorted."""
        own, vocab_size = self._own, values.shape[1]
        ordered = values.sort(dim=1, descending=True, stable=True)
        kept = ordered.values
        if self._has_top_k:
            if self._ends is None:  # the last rank that stays, and one more
                self._ends = torch.where(is_limited(own.top_k, vocab_size), own.top_k, vocab_size).unsqueeze(1)
                self._ranks = torch.arange(vocab_size, dtype=torch.int32, device=values.device)
            kept.masked_fill_(self._ranks >= self._ends, -torch.inf)
        if self._has_top_p or self._has_min_p:
            weights = kept.exp()
            if self._has_top_p:
                kept.masked_fill_(is_outside_nucleus(weights, own.top_p.unsqueeze(1)), -torch.inf)
            if self._has_min_p:
                kept.masked_fill_(weights < own.min_p.unsqueeze(1), -torch.inf)
        return torch.empty_like(values).scatter_(1, ordered.indices, kept)


def _has_v2(logits: Tensor) -> bool:
    return routes.abilities_of(logits.device, logits.dtype).fused_v2


def _finite(logits: Tensor) -> Tensor:
    """Returns a float32 copy with -inf for NaN, and no +inf: the difference from an infinite maximum would be NaN."""
    return torch.nan_to_num(logits.float(), -torch.inf, LARGEST, -torch.inf)


def _is_native(logits: Tensor, filters: Mapping[str, Tensor | None]) -> bool:
    """Tells whether the CPU kernel filters rows: it has no gradients, so not where one is asked for."""
    given = (logits, *filters.values())
    return logits.is_cpu and not (
        torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)
    )


def _filtered_natively(
    logits: Tensor,
    filters: Mapping[str, Tensor | None],
    form: Form,
    keep_ties: bool,
    edits: Mapping[str, Tensor] = NO_EDITS,
) -> Tensor:
    """Does what `filter_logits` does, `scaled_logits` or `undivided_logits`, by the CPU kernel."""
    columns = []
    for name, off in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
        column = filters.get(name)
        if column is None:
            column = torch.full((len(logits),), off, dtype=DTYPES[name], device="cpu")
        elif name == "min_p":  # as in `RowParameters.for_operators`
            column = column.clamp(max=LARGEST_FRACTION)
        columns.append(column)
    found: Tensor = torch.ops.ascend_sample.filter_logits.default(logits, *columns, form.value, keep_ties, **edits)
    return found


def _scaled(logits: Tensor, filters: Mapping[str, Tensor | None], keep_ties: bool) -> Tensor:
    """Does what `scaled_logits` does, with the filters by name that are on."""
    values = without_nan(logits)
    if (top_k := filters.get("top_k")) is not None:
        values = mask_below_top_k(values, top_k, keep_ties)
    if (temperature := filters.get("temperature")) is None:
        temperature = torch.ones(values.shape[:1], device=values.device, dtype=torch.float32)
    is_greedy = temperature == 0
    if keep_ties and top_k is not None:
        is_greedy |= top_k == 1
    values = mask_below_top_k(values, is_greedy.to(torch.int32), keep_ties=False, most=1)
    scaled = divided_by_temperature(values, values.amax(1, keepdim=True), temperature)
    weights = scaled.exp()
    if (top_p := filters.get("top_p")) is not None:
        scaled.masked_fill_(~_is_in_nucleus(weights, values, top_p), -torch.inf)
    if (min_p := filters.get("min_p")) is not None:
        scaled.masked_fill_(weights < min_p.unsqueeze(1), -torch.inf)
    return scaled


def divided_by_temperature(logits: Tensor, maximum: Tensor, temperature: Tensor) -> Tensor:
    """Returns (logits - maximum) / temperature, which never overflows: 0 for the maximum, +inf too; -inf stays.

    Args:
        logits: float32 [rows, columns] without NaN.
        maximum: float32 [rows, 1], of the logits.
        temperature: float32 [rows]; 0 counts as 1.

    Returns:
        float32 [rows, columns].
    """
    maximum = maximum.clamp(min=-LARGEST)  # which no -inf equals
    return torch.where(logits == maximum, 0.0, (logits - maximum) / divisor_of(temperature))


def divisor_of(temperature: Tensor) -> Tensor:
    """Returns temperatures with 1 for 0, float32 [rows, 1]."""
    return torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)


def exceeded(top_p: Tensor) -> Tensor:
    """Returns what a float32 sum has to reach in order to exceed top_p: V2 keeps until a sum reaches its p."""
    return (top_p.view(torch.int32) + 1).view(torch.float32)  # the next float32


def _is_in_nucleus(weights: Tensor, values: Tensor, top_p: Tensor) -> Tensor:
    """Tells of each entry whether the weights before it, in the total order, are no more than top_p of all."""
    _, order = values.sort(dim=1, descending=True, stable=True)
    # Devices whose float64 is missing or emulated use float32.
    ranked = weights.gather(1, order).to(torch.float64 if values.is_cpu or values.is_cuda else torch.float32)
    sums = ranked.cumsum(1)
    target = top_p.unsqueeze(1) * sums[:, -1:]  # a sum apart would be rounded by the number of rows
    stays = (sums - ranked <= target) | (top_p.unsqueeze(1) >= 1)
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter_(1, order, stays)
