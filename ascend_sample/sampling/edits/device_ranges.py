"""What a device makes of the filters that keep a range of a row's values, in few launches.

Values weigh exp((value - best) / temperature), so a probability is a weight over the sum of all. What it has to reach
is here what the weight has to reach: that times the sum, and 1 at most, as the best one stays. docs/filters.md has the
definitions, section "Ranges of values". Nothing here reads a device.

CANN documents sums that skip NaN for the Atlas A2 and A3 series.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.draws.best_tokens import sum_of_rows
from ascend_sample.sampling.draws.weights import largest_of, scaled
from ascend_sample.sampling.edits.processing import MASKED
from ascend_sample.sampling.edits.slots import HeldSlots, StateSlots
from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.requests.params import DEFAULTS
from ascend_sample.sampling.rows.table import HostMirrors, to_device

NEVER: Final = 2.0
"""A probability, or a sum of them, that nothing reaches."""


class Weighed(NamedTuple):
    """The weights of rows. NaN weighs NaN: no sum has it, and it is not below any bound, so it stays, to be told of.

    Attributes:
        weights: float32 [rows, vocab_size], exp(y), y being (value - best) / temperature.
        total: float32 [rows, 1], their sum.
        products: float32 [rows, 1], the sum of y * weight where it is asked for, for the entropy, which is
            log(total) - products / total; else the total.
        y: float32 [rows, vocab_size], where they are asked for; else what has no meaning.
    """

    weights: Tensor
    total: Tensor
    products: Tensor
    y: Tensor

    @classmethod
    def of(cls, values: Tensor, divisor: Tensor | None, sums: Tensor | None, has_y: bool) -> Weighed:
        """Weighs values.

        Args:
            values: float32 [rows, vocab_size]; they stay as they are.
            divisor: float32 [rows, 1], the temperatures; None where all are 1.
            sums: float32 [2, rows, 1], where total and products are written; None: the total alone is asked for.
            has_y: the y are.

        Example:
            >>> row = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
            >>> weighed = Weighed.of(row, None, torch.empty(2, 1, 1), has_y=False)
            >>> weighed.weights, weighed.total
            (tensor([[0.2500, 0.5000, 0.7500, 1.0000]]), tensor([[2.5000]]))
            >>> weighed.total.log() - weighed.products / weighed.total  # the entropy, in nats
            tensor([[1.2799]])
        """
        count = 1 if sums is None else 2
        both = values.new_empty(count, *values.shape)  # in one tensor: two sums are launched as one
        y = torch.nan_to_num(values, nan=-LARGEST, out=None if has_y else both[-1])
        scaled(values, largest_of(y), divisor, out=y)
        weights = torch.exp(y, out=both[0])
        if sums is not None:
            torch.mul(y, weights, out=both[1])  # NaN for what is masked
        room = None if sums is None else sums.view(-1, 1)
        total, *products = sum_of_rows(both.flatten(0, 1), skips_nan=True, out=room).view(count, -1, 1)
        return cls(weights, total, products[0] if products else total, y)


def least_by_epsilon(epsilon: Tensor, weighed: Weighed) -> Tensor:
    """Returns what weights have to reach so that p >= epsilon, float32 [rows, 1]: for the best one, 1 is enough."""
    return (weighed.total * epsilon).clamp_(max=1)


def least_by_top_a(top_a: Tensor, weighed: Weighed) -> Tensor:
    """Returns what weights have to reach so that p >= top_a (max p)^2, float32 [rows, 1]: max p is 1 / total."""
    return top_a / weighed.total


WEIGHT_BOUNDS: Final[Mapping[str, Callable[[Tensor, Weighed], Tensor]]] = {
    "epsilon_cutoff": least_by_epsilon,
    "top_a": least_by_top_a,
}
"""Filters that keep what weighs enough: what weights have to reach by the numbers of rows, each float32 [rows, 1].

A number of 0 is off. Other filters need more than their numbers, and have their places in `DeviceRanges`.
"""


def least_by_eta(addends: Tensor, quotients: Tensor) -> Tensor:
    """Returns what weights have to reach so that p >= min(eta, sqrt(eta) exp(-entropy)), float32 [rows, 1].

    The total times exp(-entropy) is exp(products / total), which is 1 at most. One division makes both bounds.

    Args:
        addends: float32 [2, rows, 1], 0 and log(eta) / 2.
        quotients: float32 [3, rows, 1], 1 / eta, the total and the products.
    """
    by_eta, by_entropy = torch.addcdiv(addends, quotients[1:], quotients[:2])
    return torch.minimum(by_eta, by_entropy.exp_())


def are_far(weighed: Weighed, typical_p: Tensor, infinity: Tensor) -> Tensor:
    """Tells what is farther from the entropy than those that reach `typical_p` together: bool [rows, vocab_size].

    |-log(p) - entropy| is the distance of y from its mean, products / total. The y are overwritten.
    """
    distances = weighed.y.addcdiv_(weighed.products, weighed.total, value=-1).abs_()
    ordered = distances.sort(dim=1)
    is_enough = weighed.weights.gather(1, ordered.indices).cumsum(1) >= weighed.total * typical_p
    return distances > torch.where(is_enough, ordered.values, infinity).amin(1, keepdim=True)


def are_above_lowest(weights: Tensor, threshold: Tensor, infinity: Tensor) -> Tensor:
    """Tells what weighs more than the least of those that reach the threshold: bool [rows, vocab_size]."""
    return weights > torch.where(weights >= threshold, weights, infinity).amin(1, keepdim=True)


def least_by_deviation(values: Tensor, minus_sigmas: Tensor | float, zero: Tensor) -> Tensor:
    """Returns what values have to reach to be within so many standard deviations of the best, float32 [rows, 1].

    What is masked does not count: it has the mean's place, so all lanes together deviate less, by the share that does.
    The temperature divides both sides. A mean comes with a variance, since torch's own adds a row up in an order that
    depends on how many there are.

    Args:
        values: float32 [rows, vocab_size].
        minus_sigmas: how many, less than 0: float32 [rows, 1], or a number for all rows, which takes a launch less.
        zero: float32 [1].
    """
    counts, lanes = values > MASKED, values.shape[1]
    number = counts.sum(1, keepdim=True, dtype=torch.float32)  # exact, as it is below 2**24
    mean_of_lanes = torch.var_mean(torch.nan_to_num(values, nan=0.0, neginf=0.0), 1, keepdim=True)[1]
    filled = torch.where(counts, values, torch.addcdiv(zero, mean_of_lanes, number, value=lanes))
    deviation_of_lanes, factor = filled.std(1, correction=0, keepdim=True), math.sqrt(lanes)
    if isinstance(minus_sigmas, float):
        factor *= minus_sigmas
    else:
        deviation_of_lanes.mul_(minus_sigmas)
    # The mean is rounded, perhaps to more than any value.
    torch.nan_to_num(values, nan=MASKED, posinf=torch.inf, neginf=MASKED, out=filled)
    return torch.addcdiv(largest_of(filled), deviation_of_lanes, number.sqrt_(), value=factor)


class DeviceRanges:
    """The filters of those rows of a batch that keep a range of their values, on a device.

    Args:
        host: of the batch.
        rows: which of its rows.
        states: what they remember, on the device of the logits.
    """

    def __init__(self, host: HostMirrors, rows: NDArray[numpy.int64], states: StateSlots) -> None:
        self._device = device = states.device
        names = ("temperature", "typical_p", "eta_cutoff", "top_n_sigma", *WEIGHT_BOUNDS)
        numbers = {name: getattr(host, name)[rows] for name in names}
        typical_p, eta, sigmas = (numbers[name] for name in ("typical_p", "eta_cutoff", "top_n_sigma"))
        with numpy.errstate(divide="ignore"):  # what a row is sent where its filter is off keeps all of its values
            terms = {name: number[None] for name, number in numbers.items()} | {
                "typical_p": numpy.where(typical_p < 1, typical_p, NEVER)[None],
                "eta_cutoff": numpy.stack((1 / eta, 0 * eta, numpy.log(eta) / 2)),
                "top_n_sigma": -numpy.where(sigmas > 0, sigmas, LARGEST)[None],
            }
        sent = to_device(numpy.concatenate(list(terms.values())).astype(numpy.float32), device).unsqueeze(2)
        parts = zip(terms, sent.split([len(term) for term in terms.values()]), strict=True)
        on = {name: part.squeeze(0) for name, part in parts if (numbers[name] != DEFAULTS[name]).any()}
        self._divisor, self._typical_p = on.get("temperature"), on.get("typical_p")
        self._minus_sigmas: Tensor | float | None = on.get("top_n_sigma")
        if sigmas[0] > 0 and (sigmas == sigmas[0]).all():
            self._minus_sigmas = -float(sigmas[0])
        self._bounds: list[Callable[[Weighed], Tensor]] = []
        self._bounds += [functools.partial(least, on[name]) for name, least in WEIGHT_BOUNDS.items() if name in on]
        self._sums = None
        if "eta_cutoff" in on:
            quotients = on["eta_cutoff"].clone()  # the first stays, and each step writes its sums over the others
            self._sums = quotients[1:]
            self._bounds.append(lambda _: least_by_eta(on["eta_cutoff"][1:], quotients))
        elif self._typical_p is not None:
            self._sums = torch.empty(2, len(rows), 1, device=device, dtype=torch.float32)
        if host.mirostat_tau[rows].any():
            self._bounds.append(bound_by_surprise(host.mirostat_tau[rows] > 0, host.state_slot[rows], states))
        self._is_xtc_on = bool(host.xtc_probability[rows].any())
        self._has_min_p = self._is_xtc_on and bool(host.min_p[rows].any())
        self._has_bounds = self._has_min_p or bool(self._bounds)
        self._zero, self._infinity = to_device(numpy.array([0, numpy.inf], numpy.float32), device).split(1)

    def dropped(self, values: Tensor, numbers: NDArray[numpy.float32]) -> Tensor:
        """Tells which values the rows lose: bool [rows, vocab_size], False for NaN.

        Args:
            values: float32 [rows, vocab_size]; they stay as they are.
            numbers: from `value_ranges.RangeNumbers`, of these rows.
        """
        dropped = None
        if self._minus_sigmas is not None:
            dropped = values < least_by_deviation(values, self._minus_sigmas, self._zero)
        if self._has_bounds or self._is_xtc_on or self._typical_p is not None:
            weighed = Weighed.of(values, self._divisor, self._sums, self._typical_p is not None)
            dropped = self._dropped_by_weight(weighed, numbers, dropped)
        assert dropped is not None, "some filter is on"
        return dropped

    def _dropped_by_weight(
        self, weighed: Weighed, numbers: NDArray[numpy.float32], dropped: Tensor | None
    ) -> Tensor | None:
        """Adds to what is dropped already what the filters drop that look at weights, which are overwritten."""
        weights, far, best = weighed.weights, None, None
        min_p, threshold = self._of_xtc(numbers)
        if self._typical_p is not None:
            far = are_far(weighed, self._typical_p, self._infinity)
            if self._has_bounds or dropped is not None:
                best = largest_of(torch.where(far | weights.isnan(), self._zero, weights))
        if self._has_bounds:
            dropped = _either(dropped, weights < self._least(weighed, min_p, best))
        if dropped is not None and best is not None:
            dropped.logical_and_(weights < best)
        if far is not None:
            dropped = _either(dropped, far)
        if threshold is not None:
            if dropped is not None:
                weights.masked_fill_(dropped, 0)
            dropped = _either(dropped, are_above_lowest(weights, weighed.total * threshold, self._infinity))
        return dropped

    def _least(self, weighed: Weighed, min_p: Tensor | None, best: Tensor | None) -> Tensor:
        """Returns what weights have to reach: the most of what any filter asks for."""
        bounds = [bound(weighed) for bound in self._bounds]
        if min_p is not None:
            bounds.append(min_p if best is None else min_p * best)
        return functools.reduce(torch.maximum, bounds)

    def _of_xtc(self, numbers: NDArray[numpy.float32]) -> tuple[Tensor | None, Tensor | None]:
        """Returns min_p and the threshold of rows that trigger xtc, float32 [rows, 1]; None where nothing asks."""
        if not self._is_xtc_on:
            return None, None
        min_p, threshold = numbers[-2:]
        sent = numpy.stack((min_p, numpy.where(threshold > 0, threshold, NEVER))).astype(numpy.float32)
        of_rows = to_device(sent, self._device).unsqueeze(2)
        return of_rows[0] if self._has_min_p else None, of_rows[1]


def _either(one: Tensor | None, other: Tensor) -> Tensor:
    """Tells what one of two tells, in the place of the first, if there is one."""
    return other if one is None else one.logical_or_(other)


def bound_by_surprise(
    is_bounded: NDArray[numpy.bool_], slots: NDArray[numpy.int64], states: StateSlots
) -> Callable[[Weighed], Tensor]:
    """Returns what makes mirostat's bounds of some rows, float32 [rows, 1], in each step: of 0 for rows without one.

    Args:
        is_bounded: bool [rows], which of them have one.
        slots: int64 [rows], where it lies.
        states: the slots; the bounds are read in each step.
    """
    held = HeldSlots.of(numpy.where(is_bounded, slots, slots.max()), states.device)
    factors = numpy.where(is_bounded, [[0.0], [1.0]], [[LARGEST], [0.0]]).astype(numpy.float32)
    there = None if is_bounded.all() else to_device(factors, states.device).unsqueeze(2)

    def least(weighed: Weighed) -> Tensor:
        bits = states.read(held)[:, :1]
        if there is not None:
            bits = torch.addcmul(there[0], bits, there[1])
        return least_by_epsilon(torch.pow(0.5, bits), weighed)

    return least
