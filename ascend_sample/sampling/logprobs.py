"""Log-probabilities of what was sampled, and of the best tokens beside it."""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.best_tokens import best_entries, best_tokens, relative_to_best


class LogprobsMode(str, enum.Enum):
    """Which numbers are reported: before or after processing, as logits or normalised. The names are vLLM's.

    Processed means: after mask, bias, penalties, temperature, top-k, top-p and min-p; -inf where a filter dropped the
    token.
    """

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"

    @property
    def is_processed(self) -> bool:
        """Tells whether the numbers are those after processing."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def is_normalised(self) -> bool:
        """Tells whether the numbers are logarithms of probabilities."""
        return self in (LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS)


class Logprobs(NamedTuple):
    """The log-probabilities of the rows that asked for them.

    Attributes:
        rows: their places in the batch, ascending.
        token_ids: int64 [rows, 1 + most], the sampled token, then the best in order; a row that asked for n < most
            reads the first 1 + n columns.
        values: float32 [rows, 1 + most], theirs, as `LogprobsMode` says.
        ranks: int64 [rows], how many tokens have at least the sampled token's value; 1 is the best.
    """

    rows: list[int]
    token_ids: Tensor
    values: Tensor
    ranks: Tensor


def gather_logprobs(rows: list[int], logits: Tensor, mode: LogprobsMode, token_ids: Tensor, most: int) -> Logprobs:
    """Picks the sampled token's number, its rank, and the ``most`` best.

    The best are the first of the total order of the logits, so they do not depend on how many are asked for, and each
    number is a function of its row alone. A row whose logits are all -inf has no distribution: its logprobs are -inf.
    Where there is +inf, its entries share the probability.

    Args:
        rows: the places of these rows in the batch.
        logits: float32 [rows, vocab_size] without NaN, raw or processed.
        mode: which numbers are reported of them.
        token_ids: int64 [rows], the sampled ones.
        most: how many of the best.

    Example:
        >>> logits, drawn = torch.tensor([[0.0, 2.0, 2.0]]), torch.tensor([0])
        >>> gather_logprobs([0], logits, LogprobsMode.RAW_LOGITS, drawn, most=2)
        Logprobs(rows=[0], token_ids=tensor([[0, 1, 2]]), values=tensor([[0., 2., 2.]]), ranks=tensor([3]))
    """
    if mode.is_normalised:
        best, best_ids = best_tokens(logits, max(1, most))
        numbers = relative_to_best(logits, best[:, :1])
    else:
        best_ids = best_entries(logits, most)[1]
        numbers = logits
    ids = torch.cat((token_ids.unsqueeze(1), best_ids[:, :most]), dim=1)
    values = numbers.gather(1, ids)
    return Logprobs(rows, ids, values, (numbers >= values[:, :1]).sum(1))
