"""Log-probabilities of what was sampled, and of the best tokens beside it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import refuse, show
from ascend_sample.sampling.best_tokens import CHUNK, best_entries
from ascend_sample.sampling.distribution import Distributions, kept_logits
from ascend_sample.sampling.row_parameters import RowParameters
from ascend_sample.sampling.row_table import to_device
from ascend_sample.sampling.segmented import SEGMENT

LARGEST: Final = torch.finfo(torch.float32).max
LEAST_SCALED: Final = -LARGEST * 2.0**-32
"""Below it are scaled logits that stand beside +inf, for temperatures up to 2^32."""


class LogprobsMode(str, enum.Enum):
    """Which numbers are reported: before or after processing, as logits or normalised. The names are vLLM's.

    Processed means: after mask, bias, penalties, temperature, top-k, top-p and min-p; -inf where a filter dropped the
    token.
    """

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"

    @classmethod
    def named(cls, owner: str, name: object) -> LogprobsMode:
        """Returns the mode of a name, or raises a ValueError that begins with its owner's."""
        modes = [mode.value for mode in cls]
        if name not in modes:
            rule = f"be one of {', '.join(modes)}"
            refuse(owner, "logprobs_mode", rule, show(name), "Leave it out for raw_logprobs.")
        return cls(name)

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


class AskingRows(NamedTuple):
    """The rows of a batch that ask for logprobs: what stays the same from step to step."""

    rows: list[int]  # their places in the batch, ascending
    there: Tensor | None  # int64 [rows], the same on the device; None where these are all rows of the batch
    most: int  # how many of the best tokens they ask for, at most
    lanes: Tensor | None  # int64, the numbers from 0 to `CHUNK` - 1 on a device that is no CPU

    @classmethod
    def of(cls, rows: Sequence[int], batch_size: int, most: int, device: torch.device) -> AskingRows:
        """Sends to the device what it has to know."""
        there = None if len(rows) == batch_size else to_device(np.asarray(rows, dtype=np.int64), device)
        lanes = None if device.type == "cpu" else torch.arange(CHUNK, device=device)
        return cls(list(rows), there, most, lanes)

    def of_batch(self, tensor: Tensor) -> Tensor:
        """Returns what a tensor has for each row of the batch, for these rows alone."""
        return tensor if self.there is None else tensor[self.there]

    def gathered(self) -> AskingRows:
        """Returns the same rows where `of_batch` has been called for what they have."""
        return self._replace(there=None)


def gather_logprobs(
    asking: AskingRows, logits: Tensor, mode: LogprobsMode, token_ids: Tensor, is_scaled: bool = False
) -> Logprobs:
    """Picks the sampled token's number, its rank, and the best tokens with theirs.

    The best are the first of the total order of the logits, so they do not depend on how many are asked for, and each
    number is a function of its row alone. A row whose logits are all -inf has no distribution: its logprobs are -inf.
    Where there is +inf, its entries share the probability. On a CPU a native operator reads each row once, in place.

    Args:
        asking: whose logprobs these are.
        logits: float32, float16 or bfloat16 [batch, vocab_size], raw or processed; NaN counts as -inf.
        mode: which numbers are reported of them.
        token_ids: int64 [batch], the sampled ones.
        is_scaled: the logits come from `Distributions.scaled`, and may be written over.

    Example:
        >>> logits, drawn = torch.tensor([[0.0, 2.0, 2.0]]), torch.tensor([0])
        >>> asking = AskingRows.of([0], batch_size=1, most=2, device=logits.device)
        >>> gather_logprobs(asking, logits, LogprobsMode.RAW_LOGITS, drawn)
        Logprobs(rows=[0], token_ids=tensor([[0, 1, 2]]), values=tensor([[0., 2., 2.]]), ranks=tensor([3]))
    """
    token_ids = asking.of_batch(token_ids)
    if logits.is_cpu:
        values, ids, ranks = torch.ops.ascend_sample.row_logprobs(
            logits, asking.there, token_ids, asking.most, mode.is_normalised
        )
        return Logprobs(asking.rows, ids, values, ranks)
    return Logprobs(asking.rows, *_gather_on_device(asking, asking.of_batch(logits), mode, token_ids, is_scaled))


def _gather_on_device(
    asking: AskingRows, logits: Tensor, mode: LogprobsMode, token_ids: Tensor, is_scaled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids, values and ranks in few launches, from one float32 copy of the rows.

    As in every route of a device, the largest finite float32 counts as +inf where probabilities are asked for.
    """
    segments = _segments_of(logits, LARGEST if mode.is_normalised else torch.inf, is_scaled)
    numbers = segments.flatten(1)[:, : logits.shape[1]]
    best, best_ids = best_entries(numbers, max(1, asking.most), asking.lanes)
    if mode.is_normalised:
        if not is_scaled:  # else the best is 0 already
            numbers.sub_(best[:, :1].clamp(min=-LARGEST))  # so that the sum below loses no digits
        # By segments, so that a row is added up in the same way whatever other rows there are. The best adds 1.
        numbers.sub_(segments.logsumexp(2).logsumexp(1, keepdim=True).clamp_(min=0))
    ids = torch.cat((token_ids.unsqueeze(1), best_ids[:, : asking.most]), dim=1)
    values = numbers.gather(1, ids)
    ranks = (numbers >= values[:, :1]).sum(1)
    if mode.is_normalised:  # what is beside +inf
        values = torch.nn.functional.threshold(values, LEAST_SCALED if is_scaled else -LARGEST / 2, -torch.inf)
    return ids, values, ranks


def processed_logprobs(
    asking: AskingRows,
    logits: Tensor,
    mode: LogprobsMode,
    token_ids: Tensor,
    parameters: RowParameters,
    distributions: Distributions | None,
    keep_ties: bool,
) -> Logprobs:
    """Does what `gather_logprobs` does, for what temperature and filters make of the logits of the asking rows.

    Args:
        asking: whose logprobs these are.
        logits: of these rows alone, after edits; they stay as they are.
        mode: a processed one.
        token_ids: int64, theirs.
        parameters: theirs.
        distributions: theirs, on a device whose operators find what is kept; None: `kept_logits` does.
        keep_ties: as for `Sampler`.
    """
    asking = asking.gathered()
    if distributions is None:
        return gather_logprobs(asking, kept_logits(logits, parameters, keep_ties), mode, token_ids)
    found = gather_logprobs(asking, distributions.scaled(logits), mode, token_ids, is_scaled=True)
    return found if mode.is_normalised else divided_logits(found, logits, distributions.divisor)


def divided_logits(found: Logprobs, logits: Tensor, divisor: Tensor | None) -> Logprobs:
    """Returns what was found among scaled logits, with the numbers of the logits that were scaled.

    Args:
        found: by `gather_logprobs`, of scaled logits in a mode that is not normalised.
        logits: [rows, vocab_size], before they were scaled.
        divisor: float32 [rows, 1], the temperatures; None where all are 1.
    """
    values = logits.gather(1, found.token_ids)
    values = values.float() if divisor is None else values / divisor
    return found._replace(values=torch.where(found.values > LEAST_SCALED, values, -torch.inf))


def _segments_of(logits: Tensor, infinity: float, is_clean: bool) -> Tensor:
    """Returns rows in segments, float32 [rows, segments, ids of a segment], with -inf for NaN and beyond the row.

    They are a copy unless the rows are clean and as long as whole segments.
    """
    rows, vocab_size = logits.shape
    width = next((width for width in (SEGMENT, SEGMENT // 2) if vocab_size % width == 0), SEGMENT)
    columns = -(-vocab_size // width) * width
    if columns == vocab_size and is_clean:
        cleaned = logits
    elif columns == vocab_size and logits.dtype == torch.float32:
        cleaned = logits.nan_to_num(nan=-torch.inf, posinf=infinity, neginf=-torch.inf)
    else:
        cleaned = torch.empty(rows, columns, dtype=torch.float32, device=logits.device)
        cleaned[:, :vocab_size] = logits
        if columns > vocab_size:
            cleaned[:, vocab_size:] = -torch.inf
        cleaned.nan_to_num_(nan=-torch.inf, posinf=infinity, neginf=-torch.inf)
    return cleaned.view(rows, -1, width)
