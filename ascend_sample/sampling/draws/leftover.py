"""What a draw leaves for the logprobs of the same rows, which would otherwise be read, or made, twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from ascend_sample.sampling.draws.best_tokens import best_entries
from ascend_sample.sampling.draws.weights import base_of


class Weighing(Protocol):
    """A rule that changes what is drawn."""

    def __call__(self, kept: Tensor, weights: Tensor, status: Tensor) -> None:
        """Changes the weights of rows before a draw by segments.

        Args:
            kept: as of `Leftover`.
            weights: float32 [rows, vocab_size], the exponentials of what is kept.
            status: int8 [rows].
        """


@dataclass
class Leftover:
    """What logprobs or states of all rows of a batch ask of the route that draws them, and what it leaves.

    Attributes:
        count: how many of the best tokens are looked for.
        lanes: as for `best_entries`.
        is_filtered: what the filters keep is wanted; else the best of the logits that are drawn from.
        weighing: what a draw by segments lets change the weights.
        status: int8 [rows].
        logits: floats [rows, vocab_size], those that were drawn from.
        best_ids: int64 [rows, count], the first of the total order.
        base: float32 [rows, 1], as `base_of` has it.
        kept: float32 [rows, vocab_size], logits less their maximum, divided by the temperature, -inf where a filter
            dropped them. Rows that all have the temperature 1 are drawn from as they are.
    """

    count: int
    lanes: Tensor | None
    is_filtered: bool
    weighing: Weighing | None = None
    status: Tensor = field(init=False)
    logits: Tensor = field(init=False)
    best_ids: Tensor = field(init=False)
    base: Tensor = field(init=False)
    kept: Tensor = field(init=False)

    @property
    def reads_logits(self) -> bool:
        """Tells whether the logits are read again: the draw does not overwrite them."""
        return self.count > 0

    def look_for_best(self, values: Tensor) -> Tensor:
        """Finds the best of float32 logits that are cleaned, and returns the base."""
        best, self.best_ids = best_entries(values, self.count, self.lanes)
        self.base = base_of(best[:, :1])
        return self.base


@dataclass
class RankedRows:
    """What the logprobs of some rows of a batch ask of the CPU kernel that draws their tokens, and what it leaves.

    Attributes:
        rows: int64, which; None: all.
        count: how many of the best tokens are wanted beside the drawn one.
        is_normalised: logarithms of probabilities are wanted, not the logits themselves.
        is_processed: of what edits and filters leave.
        values: float32 [rows, 1 + count], as of the operator ``row_logprobs``.
        token_ids: int64 [rows, 1 + count], theirs.
        ranks: int64 [rows], of the drawn tokens.
    """

    rows: Tensor | None
    count: int
    is_normalised: bool
    is_processed: bool
    values: Tensor = field(init=False)
    token_ids: Tensor = field(init=False)
    ranks: Tensor = field(init=False)
