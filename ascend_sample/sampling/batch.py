"""A persistent batch of requests: rows that come, move and go, with their parameters on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import check_device
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.row_edits import Known, RowEdits
from ascend_sample.sampling.edits.state_slots import DrawStates
from ascend_sample.sampling.edits.stops import Ended
from ascend_sample.sampling.edits.value_ranges import keeps_range
from ascend_sample.sampling.requests.checks import LARGEST_COUNT
from ascend_sample.sampling.requests.params import DISTRIBUTION, FIELDS, SamplingParams
from ascend_sample.sampling.requests.seeds import seeds_of
from ascend_sample.sampling.rows import arguments
from ascend_sample.sampling.rows.arguments import TokenIds
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import TENSORS, RowParameters
from ascend_sample.sampling.rows.table import NO_SLOT, DeviceColumn, HostMirrors, RowTable, to_device

LARGEST_POSITION: Final = 2**62
"""Behind it there is room for as many tokens more."""
MOST_PLANS: Final = 32
Plan = TypeVar("Plan")


class Plans(dict[Hashable, Any]):
    """What samplers keep for a batch as it is: of each kind, and for each set of rows that a step's bitmask is for.

    These may be others in each step, so few are kept.

    Example:
        >>> plans = Plans()
        >>> for rows in range(100):
        ...     plans[rows] = "a plan"
        >>> len(plans), min(plans)
        (32, 68)
    """

    def of(self, kind: type[Plan], key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Returns what is kept of a kind under a key, or makes it and keeps it."""
        found = self.get((kind, key))
        if not isinstance(found, kind):
            found = self[kind, key] = make()
        return found

    def has(self, kind: type[object], key: Hashable = ()) -> bool:
        """Tells whether something of a kind is kept under a key."""
        return (kind, key) in self

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Keeps one more, and forgets the oldest."""
        if key not in self and len(self) == MOST_PLANS:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class ProcessedRows(NamedTuple):
    """The rows whose logits masks, biases, penalties or ranges change.

    Attributes:
        logits: float32 [processed rows, vocab_size], what becomes of their logits.
        rows: int64 [processed rows] on the device, which rows of the batch they are, ascending.
        host_rows: the same on the host.
    """

    logits: Tensor
    rows: Tensor
    host_rows: list[int]


class SamplingBatch:
    """The requests that a serving engine samples for together, as rows 0 to len - 1 without gaps.

    Adding, removing and moving rows cost what the rows that change cost; those that stay are not touched. The device
    gets what has changed at the next `flush`, which every reading method calls; on the CPU a tensor of the batch is
    what the host has, and changes with it. Nothing here waits for the device, but for tokens of rows whose rules look
    at their text.

    Args:
        vocab_size: the number of columns of the logits.
        device: where the logits are.
        capacity: for how many rows there is room at first; it doubles when it is exceeded.
        generator: where the seeds of requests without one come from, on the CPU; None is torch's default one.

    Attributes:
        host: numpy mirrors of the per-row tensors, and what only the host needs; valid at once.
        temperature, top_k, top_p, min_p, seed, position: tensors [rows] on the device, as `RowParameters` has them:
            views, which are renewed by reading the attribute again.
        repetition_penalty, presence_penalty, frequency_penalty: the same, float32; 1, 0 and 0 where they are off.
        version: changes whenever something changes that a plan for the batch may depend on: which rows there are, their
            order, their parameters, and the end of a `min_tokens`.
        plans: what samplers keep for the batch as it is: emptied when `version` changes, and gone with the batch.
        row_edits: what its rows change about their logits; it is there for the layer's own modules.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> batch = SamplingBatch(vocab_size=4)
        >>> batch.add(SamplingParams(temperature=0.5, seed=3), prompt_ids=[2, 1])
        0
        >>> batch.add(SamplingParams(suppress_token_ids=[3], seed=-1 % 2**64))
        1
        >>> batch.temperature, batch.seed, batch.position
        (tensor([0.5000, 1.0000]), tensor([ 3, -1]), tensor([2, 0]))
        >>> batch.process(torch.zeros(2, 4)).logits
        tensor([[0., 0., 0., -inf]])
        >>> batch.append(torch.tensor([1, 0]))
        >>> batch.position
        tensor([3, 1])
        >>> batch.remove(0)
        1
        >>> batch.seed
        tensor([-1])
    """

    def __init__(
        self,
        vocab_size: int,
        device: str | torch.device = "cpu",
        *,
        capacity: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        self.vocab_size = arguments.to_integer(vocab_size, "vocab_size", 1, MAX_VOCAB_SIZE)
        capacity = arguments.to_integer(capacity, "capacity", 1, LARGEST_COUNT)
        arguments.check_generator(generator)
        check_device(arguments.OWNER, device)
        self.device = torch.empty(0, device=device, dtype=torch.float32).device  # with its index, as tensors name it
        self.version = 0
        self.plans = Plans()
        self._generator = generator
        self._params: list[SamplingParams] = []
        self._table = RowTable(self.device, capacity)
        self.row_edits = RowEdits(self._table, self.vocab_size)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the plans of samplers: a copy, or what is unpickled, draws on as the batch does, apart from it."""
        return vars(self) | {"plans": Plans()}

    def __len__(self) -> int:
        return len(self._params)

    @property
    def host(self) -> HostMirrors:
        """Returns the host's view of the rows."""
        return self._table.host

    @property
    def slot_bytes(self) -> int:
        """Returns how many bytes of device memory masks, biases and what rows have seen take at the moment."""
        return sum(slots.bytes for slots in self.row_edits.slots.values())

    @property
    def states(self) -> DrawStates:
        """Returns what the rows remember of their draws, by row: to be read and set."""
        return DrawStates(self.row_edits.states, self.host, self._params)

    @property
    def params(self) -> Sequence[SamplingParams]:
        """Returns the request of each row: a view, to be read only."""
        return self._params

    temperature = DeviceColumn()
    top_k = DeviceColumn()
    top_p = DeviceColumn()
    min_p = DeviceColumn()
    repetition_penalty = DeviceColumn()
    presence_penalty = DeviceColumn()
    frequency_penalty = DeviceColumn()
    seed = DeviceColumn()
    position = DeviceColumn()

    def add(
        self,
        params: SamplingParams,
        prompt_ids: TokenIds = (),
        *,
        output_ids: TokenIds = (),
        position: int | None = None,
    ) -> int:
        """Appends a row.

        Args:
            params: the request.
            prompt_ids: the tokens of its prompt. They are looked at only where the row has a repetition penalty, or
                rules that look at its text: no repeated n-grams, DRY, bad words.
            output_ids: the tokens that were generated already, of a request that comes back. They are looked at only
                where the row has penalties or such rules.
            position: how many tokens the sequence has; None for as many as the two name.

        Returns:
            The row's number.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: something does not fit the batch's vocabulary; the batch has not changed then.
        """
        return self.extend([params], [prompt_ids], output_ids=[output_ids], positions=[position]).start

    def extend(
        self,
        params: Sequence[SamplingParams],
        prompt_ids: Sequence[TokenIds] | None = None,
        *,
        output_ids: Sequence[TokenIds] | None = None,
        positions: Sequence[int | None] | None = None,
    ) -> range:
        """Appends several rows, as `add` does one by one.

        Returns:
            Their numbers.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the arguments have different lengths, or as for `add`; the batch has not changed then.
        """
        count = arguments.length_of("params", params, "Use add() for one request.")
        prompts = arguments.as_many("prompt_ids", prompt_ids, count, ())
        outputs = arguments.as_many("output_ids", output_ids, count, ())
        places = arguments.as_many("positions", positions, count, None)
        lengths = [
            [arguments.length_of_text(name, given) for given in lists]
            for name, lists in (("prompt_ids", prompts), ("output_ids", outputs))
        ]
        known = [Known.of(*request, self.vocab_size) for request in zip(params, prompts, outputs, strict=True)]
        position = [
            sum(length) if place is None else arguments.to_integer(place, "position", 0, LARGEST_POSITION)
            for *length, place in zip(*lengths, places, strict=True)
        ]
        if not count:
            return range(len(self), len(self))
        self._table.reserve(len(self) + count)  # the last thing that can fail
        left = [max(0, one.min_tokens - length) for one, length in zip(params, lengths[1], strict=True)]
        slots = self.row_edits.allocate(params, known, left)
        columns: dict[str, Iterable[Any]] = {
            name: declaration.column.numbers([getattr(one, name) for one in params], self.vocab_size)
            for name, declaration in FIELDS.items()
            if declaration.column is not None
        }
        seeds = seeds_of([one.seed for one in params], self._generator)
        columns |= {"seed": seeds, "position": position, "min_tokens_left": left, **slots}
        is_ranged = [keeps_range(one) for one in params]
        rows = self._table.extend(columns | {"is_ranged": is_ranged})
        self._params.extend(params)
        self._changed(any(is_ranged) or max(map(max, slots.values())) != NO_SLOT)
        return rows

    def remove(self, row: int) -> int | None:
        """Removes a row, whose place the last row takes.

        Returns:
            Where the row came from that is now at `row`, or None if `row` was the last one.

        Raises:
            IndexError: there is no such row.
        """
        row = arguments.to_row(row, len(self))
        last = len(self) - 1
        processed = bool(self.host.is_processed[[row, last]].any())
        self.row_edits.release(row)
        self._params[row] = self._params[last]
        self._params.pop()
        moved = self._table.remove(row)
        self._changed(processed)
        return moved

    def swap(self, first: int, second: int) -> None:
        """Lets two rows change places.

        Raises:
            IndexError: there is no such row.
        """
        first, second = arguments.to_row(first, len(self)), arguments.to_row(second, len(self))
        if first != second:
            self._permute(numpy.array([first, second]), numpy.array([second, first]))

    def reorder(self, permutation: Sequence[int] | NDArray[Any]) -> None:
        """Puts the rows in another order: row i becomes what row `permutation[i]` is now; rows that stay cost nothing.

        Raises:
            ValueError: it is no permutation of the rows.
        """
        source = arguments.to_permutation(permutation, len(self))
        moved = numpy.flatnonzero(source != numpy.arange(len(self)))
        if len(moved):
            self._permute(moved, source[moved])

    def append(self, token_ids: Tensor, rows: Iterable[int] | NDArray[Any] | Tensor | None = None) -> None:
        """Takes in the tokens that were drawn: updates positions, the counts of penalised rows, and `min_tokens`.

        Where a row has rules that look at its text, the tokens are sent to the host, and the next step waits for them.

        Args:
            token_ids: int64 [tokens] on the batch's device. What is no id of the vocabulary counts as a token, but
                for no penalty and no rule.
            rows: the row of each token, on the host, because the host counts `min_tokens`; a row may occur several
                times, with as many tokens. None: one token for each row.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an argument has the wrong shape or device, or a graph is captured there.
            IndexError: there is no such row.
        """
        host_rows = None if rows is None else arguments.to_rows(rows, len(self))
        count = len(self) if host_rows is None else len(host_rows)
        arguments.check_token_ids(token_ids, count, self.device)
        if host_rows is None:
            self.advance(token_ids)
        elif count:
            self._flush(int(numpy.bincount(host_rows).max()))
            self.row_edits.append_to(host_rows, token_ids)
            self._allow_stop_token_ids(self._table.advance(host_rows))

    def advance(self, token_ids: Tensor, *, are_ids: bool = False) -> None:
        """Takes in one token for each row, as `append` does, without checks.

        Args:
            token_ids: int64 [rows] on the batch's device.
            are_ids: all are known to be ids of the vocabulary, as what was drawn is: nobody looks whether they are.

        Example:
            >>> batch = SamplingBatch(vocab_size=3)
            >>> batch.add(SamplingParams(presence_penalty=0.5))
            0
            >>> batch.advance(torch.tensor([2]))
            >>> batch.position, batch.process(torch.zeros(1, 3)).logits
            (tensor([1]), tensor([[ 0.0000,  0.0000, -0.5000]]))
        """
        self._flush(1)
        self.row_edits.append(token_ids, are_ids)
        self._allow_stop_token_ids(self._table.advance(None))

    def set_seeds(self, rows: NDArray[numpy.int64], seeds: NDArray[numpy.int64]) -> None:
        """Gives rows other seeds: ranks that share a vocabulary draw with those of the first."""
        self._table.set_seeds(rows, seeds)
        self._changed(bool(self.host.is_processed[rows].any()))  # XTC throws its coins by them

    def ended(self) -> list[Ended]:
        """Returns which requests have ended since the last call, each once: by their `stop_token_ids` or
        `stop_sequences`.

        Tokens that a device has drawn are waited for.
        """
        return self.row_edits.ended()

    def row_tensor(self, name: str) -> Tensor:
        """Returns one of the per-row tensors, after a flush."""
        self.flush()
        return self._table.column(name)

    def row_parameters(self) -> RowParameters:
        """Returns what the rows are sampled with: views of what the device and the host have."""
        facts = {name: getattr(self.host, name) for name in DISTRIBUTION}
        return RowParameters(**{name: getattr(self, name) for name in TENSORS}, facts=facts)

    def flush(self) -> None:
        """Writes what has changed since the last call to the device, without waiting for it."""
        self._flush()

    @in_normal_mode
    def _flush(self, more: int = 0) -> None:
        """Does what `flush` does, and makes room for so many more tokens in the lists of rows with penalties."""
        self._table.flush()
        self.row_edits.flush(more)

    @in_normal_mode
    def process(self, logits: Tensor) -> ProcessedRows | None:
        """Applies masks, biases, penalties and ranges of values to the rows that have any.

        Args:
            logits: float32, float16 or bfloat16 [rows, vocab_size] on the batch's device. They stay as they are.

        Returns:
            The rows that change, in float32; None if none does.

        Raises:
            TypeError: the logits are no tensor of floats.
            ValueError: they have the wrong shape or device, or a graph is captured there.
        """
        arguments.check_batch_logits(logits, len(self), self.vocab_size, self.device)
        whole = self.edited(logits)
        if whole is None:
            return None
        host_rows = numpy.flatnonzero(self.host.is_processed)
        rows = self.plans.of(Tensor, "processed", lambda: to_device(host_rows, self.device))
        changed = whole if len(host_rows) == len(self) else whole.index_select(0, rows)
        return ProcessedRows(changed.contiguous(), rows, host_rows.tolist())

    @in_normal_mode
    def edited(
        self, logits: Tensor, bitmask: Bitmask | None = None, columns: int | None = None, has_ranges: bool = True
    ) -> Tensor | None:
        """Returns a copy of logits with all that is done to them before top-k.

        Args:
            logits: as for `process`, but not checked.
            bitmask: the ids that a grammar allows as well; None: all.
            columns: how far the rows of the copy are to be apart; None: as they were in the last step.
            has_ranges: whether rows lose what is outside of their ranges; where they are parts, nobody knows it yet.

        Returns:
            float32 [rows, vocab_size]; None if nothing changes.

        Example:
            >>> batch = SamplingBatch(vocab_size=3)
            >>> batch.extend([SamplingParams(), SamplingParams(logit_bias={1: 2.0})])
            range(0, 2)
            >>> batch.edited(torch.ones(2, 3, dtype=torch.bfloat16))
            tensor([[1., 1., 1.],
                    [1., 3., 1.]])
        """
        if columns is not None:
            self.row_edits.use_columns(columns)
        self.flush()
        return self.row_edits.applied_to(logits, bitmask, has_ranges)

    def native_edits(self, bitmask: Bitmask | None = None) -> dict[str, Tensor]:
        """Returns what the CPU kernel does to logits before top-k, as `edited`: arguments of its operator, by name.

        Example:
            >>> batch = SamplingBatch(vocab_size=3)
            >>> batch.extend([SamplingParams(), SamplingParams(logit_bias={1: 2.0})])
            range(0, 2)
            >>> sorted(batch.native_edits())
            ['addend_ids', 'addend_lengths', 'addend_slot', 'addends']
        """
        self.flush()
        edits = self.row_edits.native()
        return edits if bitmask is None else edits | bitmask.native_edits(len(self))

    def _allow_stop_token_ids(self, rows: NDArray[numpy.int64]) -> None:
        """Lets rows that have their `min_tokens` draw their stop ids."""
        for row in rows.tolist():
            self.row_edits.allow_stop_token_ids(row, self._params[row])
            self._changed(True)

    def _permute(self, to: NDArray[numpy.int64], source: NDArray[numpy.int64]) -> None:
        moved = [self._params[row] for row in source.tolist()]
        for row, params in zip(to.tolist(), moved, strict=True):
            self._params[row] = params
        processed = self.host.is_processed[to].any()
        self._table.permute(to, source)
        self._changed(bool(processed))

    def _changed(self, processed: bool) -> None:
        """Notes that a plan made before is stale: the caller's, and ours if a processed row was concerned."""
        self.version += 1
        self.plans.clear()
        self.row_edits.rows_changed(processed)
