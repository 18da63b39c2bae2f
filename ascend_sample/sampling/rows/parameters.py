"""What rows of logits are sampled with, and what comes of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE, SKIP_TOP_K
from ascend_sample._errors import check_instance, how_to_convert, refuse
from ascend_sample.sampling.requests.checks import LARGEST_FRACTION
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import COLUMNS

Facts = Mapping[str, npt.NDArray[Any]]
"""What the host knows of rows: an array [rows] for each field of `DISTRIBUTION`, or for those that are on."""
TENSORS: Final = (*DISTRIBUTION, "seed", "position")
"""Those that a draw goes by."""
DTYPES: Final = {name: getattr(torch, COLUMNS[name].dtype) for name in TENSORS}

FIRST: Final = "Give the model's output as the first argument."
"""What to do about logits that are something else."""
RANGES: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool], str]]] = {
    "temperature": ("be at least 0", lambda least, most: least >= 0, "0 takes the best id."),
    "top_p": ("lie in (0, 1]", lambda least, most: least > 0 and most <= 1, "1 switches top-p off."),
    "min_p": ("lie in [0, 1]", lambda least, most: least >= 0 and most <= 1, "0 switches min-p off."),
}
"""What numbers of rows must, whether the smallest and the largest of them do, and what else to give."""


class RowStatus(enum.IntEnum):
    """What was wrong with a row's logits. Its id is valid in any case."""

    OK = 0
    ALL_MASKED = 1  # every logit is -inf: the id is 0
    NAN_SEEN = 2  # counts as -inf
    INF_SEEN = 3  # the entries of +inf share the whole mass equally


class RowsOutput(NamedTuple):
    """What `sample_rows` returns.

    Attributes:
        token_ids: int64 [rows].
        status: int8 [rows], a `RowStatus` each.
    """

    token_ids: Tensor
    status: Tensor


@dataclass(frozen=True)
class RowParameters:
    """The parameters of rows: tensors [rows] on the device of their logits, and what the host knows of them."""

    temperature: Tensor  # float32, 0 for greedy rows
    top_k: Tensor  # int32; outside [1, vocab_size) means off. A batch has SKIP_TOP_K there.
    top_p: Tensor  # float32; 1 means off, and nothing else does
    min_p: Tensor  # float32; 0 means off
    seed: Tensor  # int64, the 64 bits of the request's seed as two's complement
    position: Tensor  # int64, how many tokens the sequence has before the one that is drawn, prompt and output
    # the fields of `DISTRIBUTION`, all of them, on the host; None: the host does not know them
    facts: Facts | None = None

    @classmethod
    def of_tensors(
        cls, name: str, logits: Tensor, given: Mapping[str, Tensor | None], facts: Facts | None
    ) -> RowParameters:
        """Makes parameters of what a caller has for rows of logits.

        Args:
            name: of the function that messages begin with.
            logits: valid.
            given: a tensor for each field; None: the field is off for all rows.
            facts: what the caller knows on the host of the fields of `DISTRIBUTION`, at least of those that are given.
                Tensors on the CPU need none.

        Raises:
            TypeError: a tensor is none, or of another dtype; facts are none of a field, or leave one out.
            ValueError: a tensor has another shape or device, or facts another shape.
        """
        tensors: dict[str, Any] = dict(given)
        for field, tensor in given.items():
            if tensor is None:
                tensors[field] = uniform(field, COLUMNS[field].off, len(logits), logits.device)
            else:
                check_column(name, field, tensor, logits)
        known = {field for field in DISTRIBUTION if given[field] is not None}
        if facts is not None:
            check_instance(name, "facts", facts, Mapping, "Give a dict of arrays.")
        if facts is not None and not known <= facts.keys() <= set(DISTRIBUTION):
            rule = f"name {', '.join(sorted(known))}, and no other than {', '.join(DISTRIBUTION)}"
            refuse(name, "facts", rule, ", ".join(facts) or "nothing", "Give an array for each.", TypeError)
        if logits.is_cpu:
            facts = {field: tensors[field].detach().numpy() for field in DISTRIBUTION}
        elif facts is not None:
            facts = _columns_of(name, {field: facts[field] for field in known}, len(logits))
        return cls(**tensors, facts=facts)

    @classmethod
    def of_facts(cls, name: str, logits: Tensor, facts: Facts, seed: Tensor, position: Tensor) -> RowParameters:
        """Makes parameters that the host alone knows, for rows on a device: their tensors mean nothing.

        Args:
            name: of the function that messages begin with.
            logits: valid.
            facts: of the fields that are on for some row.
            seed: int64 [rows], on the device; it is read where the host does not make the noise.
            position: as well.

        Raises:
            ValueError: facts have another shape.
        """
        unread = dict.fromkeys(DISTRIBUTION, logits.new_empty(len(logits), dtype=torch.float32))
        return cls(**unread, seed=seed, position=position, facts=_columns_of(name, facts, len(logits)))

    @classmethod
    def uniform(cls, values: Mapping[str, Any], logits: Tensor) -> RowParameters:
        """Makes parameters of rows that share theirs: values of `SamplingParams`; what is not named is off, or 0."""
        rows, vocab_size = logits.shape
        numbers = {name: COLUMNS[name].numbers([values.get(name)], vocab_size)[0] for name in TENSORS}
        tensors = {name: uniform(name, number, rows, logits.device) for name, number in numbers.items()}
        facts = {name: np.full(rows, numbers[name], COLUMNS[name].dtype) for name in DISTRIBUTION}
        return cls(**tensors, facts=facts)

    def of_rows(self, rows: RowSet) -> RowParameters:
        """Returns the parameters of some rows, in their order."""
        if rows.device is None:
            return self
        return self._each(rows.take, lambda array: array[rows.host])

    def repeated(self, times: int) -> RowParameters:
        """Returns the parameters of rows that follow one another, ``times`` for each row."""
        return self._each(lambda tensor: tensor.repeat_interleave(times), lambda array: array.repeat(times))

    def tensors_at(self, position: Tensor) -> list[Tensor]:
        """Returns the `TENSORS`, in their order, at another position."""
        return [position if name == "position" else getattr(self, name) for name in TENSORS]

    def for_operators(self, vocab_size: int) -> RowParameters:
        """Returns the same requests in the operators' terms.

        Greedy rows get a top_k of 1. A top_k of the whole vocabulary is off. A min_p of 1 keeps every logit that is
        equal to the best: to the operators, a min_p just below 1 says that, and 1 keeps a single entry.
        """
        top_k = self.top_k.masked_fill(self.top_k >= vocab_size, SKIP_TOP_K)
        return replace(
            self, top_k=top_k.masked_fill(self.temperature == 0, 1), min_p=self.min_p.clamp(max=LARGEST_FRACTION)
        )

    def with_meaning(self) -> RowParameters:
        """Returns parameters with numbers of a distribution alone: to refuse others on a device would take a wait.

        A temperature that is negative or NaN becomes 0, and a negative top_p becomes 0, which keeps the best id alone.
        All other numbers mean the same in each route.
        """
        temperature = torch.where(self.temperature > 0, self.temperature, 0.0)
        return replace(self, temperature=temperature, top_p=self.top_p.clamp(min=0.0))

    def filters(self) -> dict[str, Tensor]:
        """Returns the tensors that shape the distribution of some row, as far as the host knows."""
        return {
            field: getattr(self, field)
            for field in DISTRIBUTION
            if self.facts is None or (self.facts[field] != COLUMNS[field].off).any()
        }

    def column(self, field: str) -> Tensor | None:
        """Returns a parameter, [rows, 1]; None where it is off for all, as far as the host knows."""
        tensor = self.filters().get(field)
        return None if tensor is None else tensor.unsqueeze(1)

    def divisor(self) -> Tensor | None:
        """Returns the temperatures, float32 [rows, 1] with 1 for 0; None where all are 1, as the host knows."""
        temperature = self.column("temperature")
        if temperature is None or (self.facts is not None and np.isin(self.facts["temperature"], (0, 1)).all()):
            return None
        # Those that the host knows were sent so.
        return temperature if self.facts is not None else torch.where(temperature == 0, 1.0, temperature)

    def _each(
        self, on_device: Callable[[Tensor], Tensor], on_host: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> RowParameters:
        tensors = {name: on_device(getattr(self, name)) for name in TENSORS}
        facts = None if self.facts is None else {name: on_host(array) for name, array in self.facts.items()}
        return RowParameters(**tensors, facts=facts)


def _columns_of(name: str, facts: Facts, rows: int) -> Facts:
    """Returns facts of all fields of `DISTRIBUTION`, in their dtypes: those that are not named are off."""
    for field, numbers in facts.items():
        if np.shape(numbers) != (rows,):
            rule = f"have one value for each of the {rows} rows of logits"
            refuse(name, "facts", rule, f"{field} of shape {list(np.shape(numbers))}", "Give arrays [rows].")
    off = {field: np.full(rows, COLUMNS[field].off, COLUMNS[field].dtype) for field in DISTRIBUTION}
    return off | {field: np.asarray(numbers, COLUMNS[field].dtype) for field, numbers in facts.items()}


def check_numbers(name: str, numbers: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raises unless numbers of rows are such as a distribution has.

    Args:
        name: of the function that messages begin with.
        numbers: arrays [rows] by the names of fields; those of `RANGES` are looked at.
    """
    for field, (rule, is_right, remedy) in RANGES.items():
        values = numbers.get(field)
        if values is not None and len(values) and not is_right(values.min(), values.max()):  # of NaN both are NaN
            row = int(np.argmin([is_right(value, value) for value in values]))
            refuse(name, field, rule, f"{values[row]} in row {row}", remedy)


def is_limited(top_k: Any, vocab_size: int) -> Any:
    """Tells of each top_k, of an array or a tensor, whether it is on."""
    return (top_k >= 1) & (top_k < vocab_size)


def uniform(field: str, number: Any, rows: int, device: torch.device) -> Tensor:
    """Returns a field's tensor for rows that all have the same number."""
    return torch.full((rows,), number, dtype=DTYPES[field], device=device)


def check_uncaptured(owner: str, tensor: Tensor, name: str = "logits") -> None:
    """Raises while a graph captures what the stream of a tensor's device is given.

    The graph would hold the noise of one step, and what the host knows of it: each replay would draw from that again.

    Args:
        owner: whose message this is.
        tensor: on any device.
        name: of the argument.
    """
    if tensor.is_cpu:
        return
    is_capturing = getattr(torch.get_device_module(tensor.device), "is_current_stream_capturing", None)
    if is_capturing is not None and is_capturing():
        remedy = (
            "Capture the model and call this behind it, or capture StaticStep or StaticVerification: their prepare "
            "writes each replay's noise, outside of the graph."
        )
        refuse(owner, name, "be on a device whose stream no graph captures", tensor.device, remedy)


def check_logits(name: str, logits: object) -> None:
    """Raises unless logits are a [rows, vocab_size] tensor that can be sampled from.

    Args:
        name: of the function that messages begin with.
        logits: what was given.

    Raises:
        TypeError: it is no tensor, or of another dtype.
        ValueError: its shape is another.
    """
    if not isinstance(logits, Tensor):
        is_array = isinstance(logits, Sequence | np.ndarray)
        remedy = "Convert them with torch.as_tensor(logits)." if is_array else FIRST
        refuse(name, "logits", "be a torch.Tensor", type(logits).__name__, remedy, TypeError)
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        remedy = "Convert them with logits.float()." if logits.is_floating_point() else FIRST
        refuse(name, "logits", "be float32, float16 or bfloat16", logits.dtype, remedy, TypeError)
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_VOCAB_SIZE:
        rule = f"have shape [rows, vocab_size] with vocab_size in [1, {MAX_VOCAB_SIZE}]"
        refuse(name, "logits", rule, list(logits.shape), "Take the last position of each sequence.")


def check_column(name: str, field: str, tensor: object, logits: Tensor) -> None:
    """Raises unless the tensor of a field fits the logits."""
    dtype = DTYPES[field]
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        refuse(name, field, f"be a tensor of {dtype}", got, how_to_convert(field, tensor, dtype), TypeError)
    if tensor.shape != logits.shape[:1]:
        rule = f"have one value for each of the {len(logits)} rows of logits"
        refuse(name, field, rule, f"shape {list(tensor.shape)}", f"Expand it with .expand({len(logits)}).")
    if tensor.device != logits.device:
        rule = f"be on the device of logits, {logits.device}"
        refuse(name, field, rule, tensor.device, f"Call {field}.to(logits.device).")
