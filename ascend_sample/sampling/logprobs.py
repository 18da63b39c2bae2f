"""Log-probabilities of what was sampled, and of the best tokens beside it."""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.best_tokens import best_entries, best_tokens, relative_to_best
from ascend_sample.sampling.distribution import cleaned_rows
from ascend_sample.sampling.segmented import SEGMENT, whole_segments


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
        logits: floats [rows, vocab_size], raw or processed; NaN counts as -inf.
        mode: which numbers are reported of them.
        token_ids: int64 [rows], the sampled ones.
        most: how many of the best.

    Example:
        >>> logits, drawn = torch.tensor([[0.0, 2.0, 2.0]]), torch.tensor([0])
        >>> gather_logprobs([0], logits, LogprobsMode.RAW_LOGITS, drawn, most=2)
        Logprobs(rows=[0], token_ids=tensor([[0, 1, 2]]), values=tensor([[0., 2., 2.]]), ranks=tensor([3]))
    """
    if not logits.is_cpu:
        return _gather_on_device(rows, logits, mode, token_ids, most)
    logits = cleaned_rows(logits).logits
    if mode.is_normalised:
        best, best_ids = best_tokens(logits, max(1, most))
        numbers = relative_to_best(logits, best[:, :1])
    else:
        best_ids = best_entries(logits, most)[1]
        numbers = logits
    return _picked(rows, numbers, torch.cat((token_ids.unsqueeze(1), best_ids), dim=1), most)


def _gather_on_device(rows: list[int], logits: Tensor, mode: LogprobsMode, token_ids: Tensor, most: int) -> Logprobs:
    """Does what `gather_logprobs` does in few launches."""
    vocab_size = logits.shape[1]
    segments = whole_segments(len(logits), vocab_size, logits.device)
    numbers = segments[:, :vocab_size]
    numbers.copy_(logits)
    segments[:, vocab_size:] = -torch.inf
    segments.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    best_ids = _best_ids(segments, vocab_size, max(1, most))
    ids = torch.cat((token_ids.unsqueeze(1), best_ids), dim=1)
    if not mode.is_normalised:
        return _picked(rows, numbers, ids, most)
    largest = numbers.gather(1, best_ids[:, :1])
    # The difference from an infinite maximum is NaN: of +inf, which shares the mass. That of a row of -inf is -inf.
    segments.sub_(largest.clamp_(min=torch.finfo(torch.float32).min)).nan_to_num_(nan=0.0, neginf=-torch.inf)
    # By segments, so that a row is added up in the same way whatever other rows there are.
    log_sum = segments.view(len(logits), -1, SEGMENT).logsumexp(2).logsumexp(1, keepdim=True).clamp_(min=0)
    segments.sub_(log_sum)
    return _picked(rows, numbers, ids, most)


def _picked(rows: list[int], numbers: Tensor, ids: Tensor, most: int) -> Logprobs:
    """Reports the numbers of the first ids, of which the very first are the sampled ones."""
    ids = ids[:, : 1 + most]
    values = numbers.gather(1, ids)
    return Logprobs(rows, ids, values, (numbers >= values[:, :1]).sum(1))


def _best_ids(segments: Tensor, vocab_size: int, count: int) -> Tensor:
    """Returns the first ids of the total order, int64 [rows, count]: they lie in as many segments with the best maxima.

    Args:
        segments: float32 [rows, whole segments] without NaN, -inf beyond the vocabulary.
        vocab_size: how many columns are ids.
        count: how many ids.
    """
    by_segment = segments.view(len(segments), -1, SEGMENT)
    if 2 * count >= by_segment.shape[1]:
        return segments[:, :vocab_size].sort(dim=1, descending=True, stable=True).indices[:, :count]
    leading = by_segment.amax(2).sort(dim=1, descending=True, stable=True).indices[:, :count]
    # In ascending order again, so that what is gathered keeps the order of the ids.
    leading = leading.sort(dim=1).values
    gathered = by_segment.gather(1, leading.unsqueeze(2).expand(-1, -1, SEGMENT)).flatten(1)
    places = gathered.sort(dim=1, descending=True, stable=True).indices[:, :count]
    of_segment = leading.gather(1, places.div(SEGMENT, rounding_mode="floor"))
    return torch.add(places.remainder(SEGMENT), of_segment, alpha=SEGMENT)
