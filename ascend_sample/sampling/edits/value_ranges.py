"""Filters that keep a range of a row's values: which rows have some, and their numbers in a step.

They look at a row after masks, biases and penalties, divided by its temperature, before top-k. On the CPU the kernel
finds the range (`csrc/cpu/filters/range_search.h`), elsewhere torch's operators (`device_ranges.py`). docs/filters.md
has the definitions, section "Ranges of values".

A new filter that keeps a range of values has these places:

1. `requests/params.py`: a field of `Stage.RANGE`, behind the last one and before those of xtc, and its line in the
   docstring. 0 switches it off; `typical_p` alone is off at 1. `NUMBERS` below follows the order of the fields.
2. `csrc/cpu/calls.h`: its name in the enum `RangeFilter`, at the same place. `csrc/cpu/filters/range_filters.h`: a row
   of `kRangeFormulas`, at the same place: what it needs of the row, and the least value that it keeps, which rises or
   falls with all that it is made of. A fact that `RowFacts` lacks is the scan's to find (`range_scan.h`). What is no
   lower bound, as `typical_p`, needs a step in `RangeFilters::range_of` as well.
3. `device_ranges.py`: an entry of `WEIGHT_BOUNDS` if it bounds what a value must weigh, else a branch in
   `DeviceRanges`, as `top_n_sigma` has.
4. `reference/distribution.py`: `keep_range`, in float64.
5. Tests: `FILTERS` in `tests/sampling/test_value_ranges.py`, and rows computed by hand; `near_ranges` in
   `tests/sampling/oracle.py`; `random_range` in `tests/sampling/run_rows.py`; `OUT_OF_RANGE` in
   `tests/sampling/test_params.py`.
6. The tables of docs/filters.md and docs/sampling.md, and, in `ascend_sample/requests`, those of the engines that have
   it.

Nothing else needs to name it. `keeps_range` finds the rows by the fields; graphs refuse such rows
(`static/edits.py`), and ranks that share a vocabulary gather them (`vocabulary_parallel/step.py`).

`min_p` is no such field. It is one of `Stage.DISTRIBUTION`, beside top-k and top-p, and the operators apply it after
these. It has a number here for rows that trigger xtc alone: there it is measured before the best ids go.
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


class RangeNumbers:
    """The numbers of the filters of a batch's rows, float32 [`NUMBERS`, rows]: 1 is off for the first, 0 for others.

    On the CPU mirostat's bound, as bits of surprise, is one of `epsilon_cutoff`; on a device only the device knows it.

    Args:
        host: of the batch; positions are read in each step.
        states: what its rows remember; read in each step too.
        rows: int64, which of its rows; they stay where they are, whatever others come and go. None: all.

    Attributes:
        change: whether some differ from step to step.

    Example:
        >>> from ascend_sample.sampling import SamplingBatch
        >>> batch = SamplingBatch(vocab_size=3)
        >>> batch.extend([SamplingParams(xtc_probability=0.5, seed=1)] * 4, positions=range(4))
        range(0, 4)
        >>> RangeNumbers(batch.host, batch.row_edits.states).of_step()[-1]
        array([0.1, 0. , 0.1, 0.1], dtype=float32)
    """

    def __init__(self, host: HostMirrors, states: StateSlots, rows: NDArray[numpy.int64] | None = None) -> None:
        self._host, self._states = host, states
        self._rows = rows = numpy.arange(host.length) if rows is None else rows
        self._numbers: Floats = host.stacked(NUMBERS)[:, rows]
        probability = host.xtc_probability[rows].astype(numpy.float64)
        self._numbers[-2:] *= probability > 0
        self._has_xtc = bool(probability.any())
        self._seed = torch.from_numpy(host.seed[rows])
        # An exponential number is above -log(p) with probability p.
        with numpy.errstate(divide="ignore"):
            self._xtc_bounds = -numpy.log(probability)
        self._bounded = numpy.flatnonzero(host.mirostat_tau[rows] if states.device.type == "cpu" else ())
        self._slots = host.state_slot[rows][self._bounded]
        self.change = self._has_xtc or len(self._bounded) > 0

    def of_step(self) -> Floats:
        """Returns those of this step, which nobody may write to."""
        if not self.change:
            return self._numbers
        numbers = self._numbers.copy()
        if self._has_xtc:  # it is triggered by a row's seed and position alone
            position = torch.from_numpy(self._host.position[self._rows])
            noise = exponential_noise(self._seed, position, 1, purpose=Purpose.EXCLUSION)
            numbers[-2:] *= noise.numpy()[:, 0] > self._xtc_bounds
        if len(self._bounded):
            bounds = self._states.values.numpy()[self._slots, 0]
            least = numpy.exp2(-numpy.clip(bounds, 0, MOST_BITS, dtype=numpy.float64))
            numbers[EPSILON, self._bounded] = numpy.maximum(numbers[EPSILON, self._bounded], least)
        return numbers


class RangedRows:
    """The rows of a batch that keep a range of their values.

    Args:
        host: of the batch; its seeds and positions are read in each step.
        states: what its rows remember, on the device of the logits; read in each step too.
    """

    def __init__(self, host: HostMirrors, states: StateSlots) -> None:
        rows, device = numpy.flatnonzero(host.is_ranged), states.device
        self._rows = RowSet(rows, to_device(rows, device))  # others may come, and are not ranged
        self._numbers = RangeNumbers(host, states, rows)
        self._temperature = torch.from_numpy(host.temperature[rows])  # for the CPU's operator
        self._on_device = None if device.type == "cpu" else DeviceRanges(host, rows, states)

    def apply(self, logits: Tensor) -> None:
        """Sets to -inf, in place, what is outside of the ranges; a NaN stays, to be told of.

        Args:
            logits: float32 [batch, vocab_size], after masks, biases and penalties.
        """
        has_all = len(self._rows) == len(logits)
        values = logits if has_all else self._rows.take(logits)
        numbers = self._numbers.of_step()
        if self._on_device is None:
            found = torch.ops.ascend_sample.value_ranges(values, self._temperature, torch.from_numpy(numbers))
            least, most = (bound.unsqueeze(1) for bound in found)
            values.masked_fill_((values < least) | (values > most), MASKED)
        else:
            values.masked_fill_(self._on_device.dropped(values, numbers), MASKED)
        if not has_all:
            self._rows.put(values, logits)
