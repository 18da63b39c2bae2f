"""What requests remember of their draws, where it lies, and how an engine reads and sets it.

A row that remembers holds a slot, as rows with penalties do. The numbers lie on the batch's device, in float32: a step
changes them there, and nobody waits. docs/filters.md has the meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ascend_sample._errors import is_real, refuse, show
from ascend_sample.sampling.edits.slots import StateSlots
from ascend_sample.sampling.requests.checks import LARGEST, SMALLEST_POSITIVE
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.arguments import to_row
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.table import NO_SLOT, HostMirrors

OWNER: Final = "SamplingBatch"
ASKED: Final = "mirostat_tau or adaptive_target"
"""What requests have that remember their draws."""
State = tuple[float, ...]


def initial_state(params: SamplingParams) -> State | None:
    """Returns what a request remembers before its first draw; None for one that remembers nothing.

    Example:
        >>> initial_state(SamplingParams(mirostat_tau=3.0))
        (6.0,)
        >>> initial_state(SamplingParams(adaptive_target=0.5, adaptive_decay=0.75))
        (2.0, 4.0)
    """
    if params.adaptive_target is not None:
        weights = 1 / (1 - params.adaptive_decay)  # as if the target had been met for ever
        return params.adaptive_target * weights, weights
    return (2 * params.mirostat_tau,) if params.mirostat_tau > 0 else None


def refuse_states(owner: str, host: HostMirrors, remedy: str) -> None:
    """Raises, for ``owner``, where a request of a batch remembers its draws."""
    has_state = host.state_slot != NO_SLOT
    if has_state.any():
        rule = f"hold no request with {ASKED}"
        refuse(owner, "batch", rule, f"row {int(has_state.argmax())}", remedy)


class DrawStates:
    """What the rows of a batch remember of their draws, by row: `SamplingBatch.states`.

    An engine that preempts a request reads its state, and sets it when the request has come back.

    Args:
        slots: where it lies.
        host: the rows' slots.
        params: the rows' requests.

    Example:
        >>> import torch
        >>> from ascend_sample.sampling import Sampler, SamplingBatch
        >>> batch, params = SamplingBatch(vocab_size=4), SamplingParams(mirostat_tau=1.0, seed=3)
        >>> row = batch.add(params)
        >>> _ = Sampler()(torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log(), batch)
        >>> state = batch.states[row]
        >>> state[0] != 2.0
        True
        >>> _ = batch.remove(row)
        >>> row = batch.add(params, output_ids=[1])
        >>> batch.states[row] = state
    """

    def __init__(self, slots: StateSlots, host: HostMirrors, params: Sequence[SamplingParams]) -> None:
        self._slots, self._host, self._params = slots, host, params

    @in_normal_mode
    def __getitem__(self, row: int) -> State | None:
        """Returns the state of a row; None where it has none. A device is waited for.

        Of mirostat it is the bound, in bits; of adaptive-p the weighted sum of probabilities, and that of the weights.

        Raises:
            IndexError: there is no such row.
        """
        slot = self._slot(row)
        if slot == NO_SLOT:
            return None
        self._slots.flush()
        return tuple(self._slots.values[slot, : len(self._first(row))].tolist())

    @in_normal_mode
    def __setitem__(self, row: int, state: Sequence[float]) -> None:
        """Sets the state of a row.

        Raises:
            TypeError: the state has another form.
            ValueError: a number is not finite in float32, the weights sum to none, or the row has no state.
            IndexError: there is no such row.
        """
        slot = self._slot(row)
        if slot == NO_SLOT:
            refuse(OWNER, "row", f"be that of a request with {ASKED}", row, "Others remember nothing.")
        count = len(self._first(row))
        if not isinstance(state, Sequence) or len(state) != count or not all(map(is_real, state)):
            rule = f"be a tuple of {count} float" + "s" * (count > 1)
            refuse(OWNER, "state", rule, show(state), "Give what was read.", TypeError)
        if not all(abs(number) <= LARGEST for number in state):
            refuse(OWNER, "state", "be finite in float32", show(state), "Give what was read.")
        if count > 1 and state[1] < SMALLEST_POSITIVE:  # it divides the other sum
            refuse(OWNER, "state", "have weights whose sum is above 0", show(state), "Give what was read.")
        self._slots.write(slot, state)

    def _slot(self, row: Any) -> int:
        return int(self._host.state_slot[to_row(row, len(self._params))])

    def _first(self, row: int) -> State:
        state = initial_state(self._params[row])
        assert state is not None, "it holds a slot"
        return state
