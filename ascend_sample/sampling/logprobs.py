"""Log-probabilities of what was sampled, and of the best tokens beside it."""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch
from torch import Tensor


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
        """Whether the numbers are those after processing."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def is_normalised(self) -> bool:
        """Whether the numbers are logarithms of probabilities."""
        return self in (LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS)


class Logprobs(NamedTuple):
    """Of the rows that asked for logprobs.

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


def gather_logprobs(rows: list[int], values: Tensor, token_ids: Tensor, most: int) -> Logprobs:
    """Pick the sampled token's number, its rank, and the ``most`` best.

    Args:
        rows: the places of these rows in the batch.
        values: float32 [rows, vocab_size], logits or logprobs without NaN.
        token_ids: int64 [rows], the sampled ones.
        most: how many of the best.

    Example:
        >>> gather_logprobs([0], torch.tensor([[-3.0, -0.5, -1.0]]), torch.tensor([2]), most=1).ranks.tolist()
        [2]
    """
    own_ids = token_ids.unsqueeze(1)
    own = values.gather(1, own_ids)
    best = values.topk(most, dim=1)
    return Logprobs(
        rows,
        torch.cat((own_ids, best.indices), dim=1),
        torch.cat((own, best.values), dim=1),
        (values >= own).sum(1),
    )


def numbers_of(logits: Tensor, mode: LogprobsMode) -> Tensor:
    """The numbers that are reported, from raw or processed logits without NaN: float32 [rows, vocab_size].

    A row whose logits are all -inf has no distribution: its logprobs are -inf. Where there is +inf, its entries share
    the probability.
    """
    if not mode.is_normalised:
        return logits
    maximum = logits.amax(1, keepdim=True)
    shifted = torch.where(logits == maximum, 0.0, logits - maximum)
    return shifted.log_softmax(1).masked_fill(logits == -torch.inf, -torch.inf)
