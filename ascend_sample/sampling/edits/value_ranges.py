"""Filters that keep a range of a row's values: which rows have some, and their numbers in a step.

They look at a row after masks, biases and penalties, divided by its temperature, before top-k. On the CPU a native
operator finds the range (`csrc/cpu/rows/value_range.h`), elsewhere torch's operators (`device_ranges.py`).
docs/filters.md has the definitions, section "Ranges of values".

A new filter is a field of `Stage.RANGE` in `SamplingParams`, behind the last one and before those of xtc; its number in
the kernel's `RangeFilter` (`csrc/cpu/calls.h`), at the same place; what `value_range.h` and `range_bounds.h` make of
that, and `RangeFilters::weighs`; an entry of `device_ranges.BOUNDS`, or code in `DeviceRanges`; `keep_range` of the
reference; and rows of `tests/sampling/test_value_ranges.py`.
"""

from __future__ import annotations

from typing import Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.edits.device_ranges import DeviceRanges
from ascend_sample.sampling.edits.processing import MASKED
from ascend_sample.sampling.edits.slots import StateSlots
from ascend_sample.sampling.requests.fields import Stage
from ascend_sample.sampling.requests.params import DEFAULTS, SamplingParams, fields_of
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import HostMirrors, to_device

RANGE: Final = fields_of(Stage.RANGE)
NUMBERS: Final = (*(name for name in RANGE if not name.startswith("xtc_")), "min_p", "xtc_threshold")
"""The filters as the kernel numbers them: as fields are ordered. Of xtc, what it needs where it is triggered."""
Floats = NDArray[numpy.float32]
MOST_BITS: Final = 126.0
"""Of surprise: what is less probable than that weighs nothing, and no draw reaches it."""
EPSILON: Final = NUMBERS.index("epsilon_cutoff")


def keeps_range(params: SamplingParams) -> bool:
    """Tells whether a request's rows lose values by a range: the best one of a greedy row is not looked for in it."""
    return params.temperature > 0 and (
        params.mirostat_tau > 0
        or any(getattr(params, name) != DEFAULTS[name] for name in RANGE if name != "xtc_threshold")
    )


def xtc_triggered(host: HostMirrors, rows: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
    """Tells which rows of a batch exclude their top choices in this step: by their seeds and positions alone.

    Example:
        >>> from ascend_sample.sampling import SamplingBatch
        >>> batch = SamplingBatch(vocab_size=3)
        >>> rows = batch.extend([SamplingParams(xtc_probability=0.5, seed=1)] * 8, positions=range(8))
        >>> xtc_triggered(batch.host, numpy.array(rows))
        array([ True, False,  True,  True,  True,  True,  True,  True])
    """
    seed, position = torch.from_numpy(host.seed[rows]), torch.from_numpy(host.position[rows])
    noise = exponential_noise(seed, position, 1, purpose=Purpose.EXCLUSION)
    # An exponential number is above -log(p) with probability p.
    with numpy.errstate(divide="ignore"):
        bounds = -numpy.log(host.xtc_probability[rows].astype(numpy.float64))
    triggered: NDArray[numpy.bool_] = noise.numpy()[:, 0] > bounds
    return triggered


def range_numbers(host: HostMirrors, states: StateSlots, rows: NDArray[numpy.int64] | None = None) -> Floats:
    """Returns the numbers of the filters in this step, float32 [`NUMBERS`, rows]: 1 is off for the first, 0 for others.

    On the CPU mirostat's bound, as bits of surprise, is one of `epsilon_cutoff`; on a device only the device knows it.

    Args:
        host: of the batch.
        states: what its rows remember.
        rows: int64, which of its rows; None: all.
    """
    rows = numpy.arange(host.length) if rows is None else rows
    numbers: Floats = host.stacked(NUMBERS)[:, rows]
    numbers[-2:] *= xtc_triggered(host, rows) if host.xtc_probability[rows].any() else 0
    if states.device.type == "cpu" and len(bounded := numpy.flatnonzero(host.mirostat_tau[rows])):
        bounds = states.values.numpy()[host.state_slot[rows[bounded]], 0]
        least = numpy.exp2(-numpy.clip(bounds, 0, MOST_BITS, dtype=numpy.float64))
        numbers[EPSILON, bounded] = numpy.maximum(numbers[EPSILON, bounded], least)
    return numbers


def do_ranges_change(host: HostMirrors) -> bool:
    """Tells whether `range_numbers` of all rows on a CPU may be others in the next step, as long as the rows stay."""
    return bool(host.xtc_probability.any() or host.mirostat_tau.any())


class RangedRows:
    """The rows of a batch that keep a range of their values.

    Args:
        host: of the batch; its seeds and positions are read in each step.
        states: what its rows remember, on the device of the logits; read in each step too.
    """

    def __init__(self, host: HostMirrors, states: StateSlots) -> None:
        self._host, self._states = host, states
        rows, device = numpy.flatnonzero(host.is_ranged), states.device
        self._rows = RowSet(rows, to_device(rows, device))  # others may come, and are not ranged
        self._temperature = torch.from_numpy(host.temperature[rows])  # for the CPU's operator
        self._on_device = None if device.type == "cpu" else DeviceRanges(host, rows, states)

    def apply(self, logits: Tensor) -> None:
        """Sets to -inf, in place, what is outside of the ranges; a NaN stays, to be told of.

        Args:
            logits: float32 [batch, vocab_size], after masks, biases and penalties.
        """
        has_all = len(self._rows) == len(logits)
        values = logits if has_all else self._rows.take(logits)
        numbers = range_numbers(self._host, self._states, self._rows.host)
        if self._on_device is None:
            found = torch.ops.ascend_sample.value_ranges(values, self._temperature, torch.from_numpy(numbers))
            least, most = (bound.unsqueeze(1) for bound in found)
            values.masked_fill_((values < least) | (values > most), MASKED)
        else:
            values.masked_fill_(self._on_device.dropped(values, numbers), MASKED)
        if not has_all:
            self._rows.put(values, logits)
