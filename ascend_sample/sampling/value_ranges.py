"""Filters that keep a range of a row's values: which rows have some, their numbers in a step, what devices make of it.

They look at a row after masks, biases and penalties, divided by its temperature, before top-k. On the CPU a native
operator finds the range (`csrc/cpu/rows/value_range.h`); elsewhere torch's operators do. docs/sampling.md has the
definitions, section "Ranges of values".
"""

from __future__ import annotations

import math
from typing import Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.best_tokens import sum_of_rows
from ascend_sample.sampling.fields import Stage
from ascend_sample.sampling.noise import Purpose, exponential_noise
from ascend_sample.sampling.params import DEFAULTS, SamplingParams, fields_of
from ascend_sample.sampling.processing import MASKED
from ascend_sample.sampling.row_table import HostMirrors, to_device
from ascend_sample.sampling.slots import StateSlots
from ascend_sample.sampling.weights import largest_of, scaled

RANGE: Final = fields_of(Stage.RANGE)
NUMBERS: Final = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_a", "top_n_sigma", "min_p", "xtc_threshold")
"""The filters as the kernel numbers them. The last two have numbers in steps alone in which the coin has fallen."""
Floats = NDArray[numpy.float32]
LARGEST: Final = torch.finfo(torch.float32).max
LEAST_LOG_WEIGHT: Final = -87.0
"""What lies deeper weighs nothing beside the best, which has 0."""
MOST_BITS: Final = 126.0
"""Of surprise: what is less probable than that weighs nothing, and no draw reaches it."""
EPSILON: Final = NUMBERS.index("epsilon_cutoff")
NEVER: Final = 2.0
"""A sum of probabilities that none reaches."""


def keeps_range(params: SamplingParams) -> bool:
    """Tells whether a request's rows lose values by a range: the best one of a greedy row is not looked for in it."""
    return params.temperature > 0 and (
        params.mirostat_tau > 0
        or any(getattr(params, name) != DEFAULTS[name] for name in RANGE if name != "xtc_threshold")
    )


def have_fallen(host: HostMirrors) -> NDArray[numpy.bool_]:
    """Tells of each row whether its top choices are excluded in this step: a coin of its seed and position.

    Example:
        >>> from ascend_sample.sampling import SamplingBatch
        >>> batch = SamplingBatch(vocab_size=3)
        >>> batch.extend([SamplingParams(xtc_probability=0.5, seed=1)] * 8, positions=range(8))
        range(0, 8)
        >>> have_fallen(batch.host)
        array([ True, False,  True,  True,  True,  True,  True,  True])
    """
    fallen = numpy.zeros(host.length, numpy.bool_)
    rows = numpy.flatnonzero(host.xtc_probability)
    if len(rows):
        seed, position = (torch.from_numpy(of_batch[rows]) for of_batch in (host.seed, host.position))
        noise = exponential_noise(seed, position, 1, purpose=Purpose.EXCLUSION).view(-1).double().numpy()
        # An exponential number is above -log(p) with probability p.
        fallen[rows] = noise > -numpy.log(host.xtc_probability[rows].astype(numpy.float64))
    return fallen


def numbers_of(host: HostMirrors, states: StateSlots) -> Floats:
    """Returns the numbers of filters in this step, float32 [`NUMBERS`, rows]: 1 is off for the first, 0 for others.

    On the CPU mirostat's bound, as bits of surprise, is one of `epsilon_cutoff`; on a device only the device knows it.
    """
    numbers: Floats = numpy.stack([getattr(host, name) for name in NUMBERS])
    numbers[-2:, ~have_fallen(host)] = 0
    rows = numpy.flatnonzero(host.mirostat_tau)
    if len(rows) and states.device.type == "cpu":
        assert states.values is not None, "rows hold slots"
        bounds = states.values.numpy()[host.state_slot[rows], 0]
        least = numpy.exp2(-numpy.clip(bounds, 0, MOST_BITS, dtype=numpy.float64))
        numbers[EPSILON, rows] = numpy.maximum(numbers[EPSILON, rows], least)
    return numbers


class RangedRows:
    """The rows of a batch that keep a range of their values.

    Args:
        host: of the batch; its seeds and positions are read in each step.
        states: what its rows remember, on the device of the logits; read in each step too.
    """

    def __init__(self, host: HostMirrors, states: StateSlots) -> None:
        self._host, self._rows = host, numpy.flatnonzero(host.is_ranged)
        device, self._states = states.device, states
        self._rows_there = to_device(self._rows, device)
        self._temperature = to_device(host.temperature[self._rows], device)
        self._on_device = None if device.type == "cpu" else DeviceRanges(host, self._rows, states)

    def apply(self, logits: Tensor) -> None:
        """Sets to -inf, in place, what is outside of the ranges; a NaN stays, to be told of.

        Args:
            logits: float32 [batch, vocab_size], after masks, biases and penalties.
        """
        has_all = len(self._rows) == len(logits)
        values = logits if has_all else logits.index_select(0, self._rows_there)
        numbers = numbers_of(self._host, self._states)[:, self._rows]
        if self._on_device is None:
            found = torch.ops.ascend_sample.value_ranges(values, self._temperature, torch.from_numpy(numbers))
            least, most = (bound.unsqueeze(1) for bound in found)
            values.masked_fill_((values < least) | (values > most), MASKED)
        else:
            values.add_(self._on_device.kept(values, numbers).log())  # -inf for False: NaN stays NaN
        if not has_all:
            logits.index_copy_(0, self._rows_there, values)


class DeviceRanges:
    """What the rows that keep a range of their values keep, on a device.

    Values are y = (value - maximum) / temperature, so 0 is the best, and log(probability) is y - log(sum of exp(y)).

    Args:
        host: of the batch.
        rows: which of its rows.
        states: what they remember, on the device of the logits.
    """

    def __init__(self, host: HostMirrors, rows: NDArray[numpy.int64], states: StateSlots) -> None:
        self._device = device = states.device
        numbers = {name: getattr(host, name)[rows] for name in (*NUMBERS, "temperature", "xtc_probability")}
        with numpy.errstate(divide="ignore"):
            terms = {
                "temperature": numbers["temperature"],
                "typical_p": numpy.where(numbers["typical_p"] < 1, numbers["typical_p"], NEVER),
                "epsilon_cutoff": numpy.log(numbers["epsilon_cutoff"]),
                "eta_cutoff": numpy.log(numbers["eta_cutoff"]),
                "top_a": numpy.log(numbers["top_a"]),
                "top_n_sigma": -numpy.where(numbers["top_n_sigma"] > 0, numbers["top_n_sigma"], LARGEST),
            }
        is_on = {name: bool((numbers[name] > 0).any()) for name in NUMBERS}
        is_on |= {"typical_p": bool((numbers["typical_p"] < 1).any()), "xtc": bool(numbers["xtc_probability"].any())}
        is_on["temperature"] = bool((numbers["temperature"] != 1).any())
        sent = to_device(numpy.stack(list(terms.values())).astype(numpy.float32), device).unsqueeze(2)
        columns = dict(zip(terms, sent, strict=True))
        self._divisor, self._typical_p, self._log_epsilon, self._log_eta, self._log_a, self._minus_sigmas = (
            columns[name] if is_on[name] else None for name in terms
        )
        self._is_xtc_on = is_on["xtc"]
        self._has_min_p = is_on["xtc"] and is_on["min_p"]
        self._surprises = None
        if host.mirostat_tau[rows].any():
            self._surprises = SurpriseBounds(host.mirostat_tau[rows] > 0, host.state_slot[rows], states)

    def kept(self, values: Tensor, numbers: Floats) -> Tensor:
        """Tells which values the rows keep: bool [rows, vocab_size].

        Args:
            values: float32 [rows, vocab_size]; they stay as they are. NaN counts as the smallest one.
            numbers: from `numbers_of`, of these rows.
        """
        y = torch.nan_to_num(values, nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
        scaled(y, largest_of(y), self._divisor, out=y)
        weights = total = log_sum = mean = None
        if self._needs_weights:
            weights = y.exp()
            total = sum_of_rows(weights)
            log_sum = total.log()
            if self._log_eta is not None or self._typical_p is not None:
                mean = sum_of_rows(y.clamp(min=LEAST_LOG_WEIGHT).mul_(weights)).div_(total)
        kept, most = None, None
        if self._typical_p is not None:
            assert weights is not None, "it is needed"
            assert total is not None, "it is needed"
            assert mean is not None, "it is needed"
            kept = _nearest(y, mean, weights, total * self._typical_p)
            most = y.masked_fill(~kept, MASKED).amax(1, keepdim=True)
        bounds = self._bounds(y, values, log_sum, mean)
        if self._is_xtc_on:
            with numpy.errstate(divide="ignore"):
                log_min_p, log_threshold = numpy.log(numbers[-2:])
            # A threshold that nothing reaches where the coin has not fallen.
            log_threshold[numbers[-1] == 0] = LARGEST
            sent = to_device(numpy.stack((log_min_p, log_threshold)), self._device).unsqueeze(2)
            if self._has_min_p:
                bounds.append(sent[0] if most is None else most + sent[0])
        least = None
        for bound in bounds:
            least = bound if least is None else torch.maximum(least, bound)
        if least is not None:
            least = least.clamp(max=0) if most is None else torch.minimum(least, most)
            kept = y >= least if kept is None else kept.logical_and_(y >= least)
        if self._is_xtc_on:
            assert log_sum is not None, "it is needed"
            is_top = y >= log_sum + sent[1]
            if kept is not None:
                is_top.logical_and_(kept)
            lowest = torch.where(is_top, y, torch.inf).amin(1, keepdim=True)
            kept = y <= lowest if kept is None else kept.logical_and_(y <= lowest)
        assert kept is not None, "some filter is on"
        return kept

    @property
    def _needs_weights(self) -> bool:
        by_weight = (self._typical_p, self._log_epsilon, self._log_eta, self._log_a)
        is_on = self._is_xtc_on or self._surprises is not None
        return is_on or any(column is not None for column in by_weight)

    def _bounds(self, y: Tensor, values: Tensor, log_sum: Tensor | None, mean: Tensor | None) -> list[Tensor]:
        """Returns what y must reach to stay, float32 [rows, 1], of each filter that is on."""
        bounds = []
        if log_sum is not None:
            if self._log_epsilon is not None:
                bounds.append(log_sum + self._log_epsilon)
            if self._log_eta is not None and mean is not None:  # the entropy is log_sum - mean
                bounds.append(torch.minimum(log_sum + self._log_eta, torch.add(mean, self._log_eta, alpha=0.5)))
            if self._log_a is not None:  # the largest probability is 1 / sum
                bounds.append(self._log_a - log_sum)
            if self._surprises is not None:
                bounds.append(log_sum + self._surprises.logarithms())
        if self._minus_sigmas is not None:
            bounds.append(_deviation(y, values > MASKED) * self._minus_sigmas)
        return bounds


class SurpriseBounds:
    """Mirostat's bounds of some rows on a device.

    Args:
        is_bounded: bool [rows], which of them have one.
        slots: int64 [rows], where it lies.
        states: the slots; the bounds are read in each step.
    """

    def __init__(self, is_bounded: NDArray[numpy.bool_], slots: NDArray[numpy.int64], states: StateSlots) -> None:
        self._states = states
        self._slots = to_device(numpy.where(is_bounded, slots, slots.max()), states.device)
        terms = numpy.where(is_bounded, [[0.0], [-math.log(2.0)]], [[-LARGEST], [0.0]]).astype(numpy.float32)
        self._least, self._scale = to_device(terms, states.device).unsqueeze(2)

    def logarithms(self) -> Tensor:
        """Returns the logarithms of the least probabilities that stay, float32 [rows, 1]: of bits of surprise."""
        assert self._states.values is not None, "rows hold slots"
        bounds = self._states.values[:, :1].index_select(0, self._slots)
        return torch.addcmul(self._least, bounds, self._scale)


def _nearest(y: Tensor, mean: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Tells what lies nearest to the mean, until it weighs enough: |-log(probability) - entropy| is |y - mean|.

    Args:
        y: float32 [rows, vocab_size], as are the weights.
        mean: float32 [rows, 1], of y by weight.
        weights: of y.
        target: float32 [rows, 1], what they have to reach.
    """
    distances = (y - mean).abs_()
    ordered = distances.sort(dim=1)
    sums = weights.gather(1, ordered.indices).cumsum(1)
    last = (sums < target).sum(1, keepdim=True).clamp_(max=y.shape[1] - 1)
    return distances <= ordered.values.gather(1, last)


def _deviation(y: Tensor, counts: Tensor) -> Tensor:
    """Returns the standard deviation, float32 [rows, 1], of those entries that count, bool [rows, vocab_size]."""
    number = counts.sum(1, keepdim=True)
    mean = sum_of_rows(torch.where(counts, y, 0.0)).div_(number)
    return sum_of_rows(torch.where(counts, y - mean, 0.0).square_()).div_(number).sqrt_()
