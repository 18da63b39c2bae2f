"""Log-probabilities of what was sampled, and of the best tokens beside it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import refuse, show
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.best_tokens import best_entries, chunk_lanes
from ascend_sample.sampling.draws.kept_choices import INFINITESIMAL
from ascend_sample.sampling.draws.segmented import SEGMENT
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import LEAST_SCALED, NO_EDITS, Distributions, undivided_logits

NEGLIGIBLE: Final = -200.0
"""A logarithm of what is nothing beside 1, but for a row of -inf, whose own sum has none."""
LEAST_SHIFTED: Final = -LARGEST / 2
"""The same of logits that are not scaled."""
NUMBERS_OF_BLOCK: Final = 1 << 20
"""So many processed logits are made at a time on a CPU, or as many rows as it has threads."""


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
        token_ids: int64 [rows, 1 + most + named], the sampled token, then the best in order, then the ids that the row
            names; a row that asked for n < most reads the first 1 + n columns, and of k ids that it names the last k.
        values: float32 [rows, 1 + most + named], theirs, as `LogprobsMode` says.
        ranks: int64 [rows], how many tokens have at least the sampled token's value; 1 is the best.
    """

    rows: list[int]
    token_ids: Tensor
    values: Tensor
    ranks: Tensor


class LogprobRows(NamedTuple):
    """The rows of a batch that ask for logprobs: what stays the same from step to step.

    Attributes:
        rows: which.
        mode: which numbers are reported.
        most: how many of the best tokens they ask for, at most.
        lanes: from `chunk_lanes`.
        sums: what `room_for_sums` has made.
        named: int64 [rows, ids], the ids that each names, at the end; None where none does.
        distributions: theirs; None where only logits as they came are reported.
    """

    rows: RowSet
    mode: LogprobsMode
    most: int
    lanes: Tensor | None
    sums: dict[int, Tensor]
    named: Tensor | None = None
    distributions: Distributions | None = None

    @classmethod
    def of(cls, rows: RowSet, mode: LogprobsMode, most: int, device: torch.device) -> LogprobRows:
        """Makes it of rows whose logits are on a device."""
        return cls(rows, mode, most, chunk_lanes(device), {})

    @classmethod
    def of_batch(cls, batch: SamplingBatch, mode: LogprobsMode, keep_ties: bool) -> LogprobRows | None:
        """Returns the rows of a batch that ask; None where none does."""
        rows = np.flatnonzero(batch.host.logprobs >= 0)
        if not len(rows):
            return None
        most, device = int(batch.host.logprobs.max()), batch.device
        asking = cls.of(RowSet.of(rows, len(batch), device), mode, most, device)
        parameters = batch.row_parameters().of_rows(asking.rows)
        asking = asking._replace(distributions=Distributions(parameters, batch.vocab_size, keep_ties))
        if (most := int(batch.host.logprob_token_ids.max())) > 0:
            named = np.zeros((len(rows), most), np.int64)
            for place, row in enumerate(rows.tolist()):
                ids = batch.params[row].logprob_token_ids
                named[place, most - len(ids) :] = ids
            asking = asking._replace(named=to_device(named, batch.device))
        return asking

    def native(self) -> dict[str, Any]:
        """Returns what asks the CPU kernel for logprobs of the tokens that it draws: arguments of its operator."""
        return {
            "logprobs": self.most,
            "logprob_rows": self.rows.device,
            "logprob_token_ids": self.named,
            "is_normalised": self.mode.is_normalised,
            "is_processed": self.mode.is_processed,
        }

    @property
    def at_least_one(self) -> int:
        """Returns how many of the best tokens are looked for: also where none is asked for, the largest logit is."""
        return max(1, self.most)

    def room_for_sums(self, segments: Tensor) -> Tensor:
        """Returns room for the logarithms of the sums of [rows, segments, ids], and a column more of `NEGLIGIBLE`.

        It is the same in each step: a device need not be told the last column again.
        """
        count = segments.shape[1]
        if count not in self.sums:
            self.sums[count] = segments.new_full((len(segments), count + 1), NEGLIGIBLE)
        return self.sums[count]

    def report(self, found: Sequence[Tensor]) -> Logprobs:
        """Returns the logprobs of values, ids and ranks."""
        values, ids, ranks = found
        return Logprobs(self.rows.host.tolist(), ids, values, ranks)


def gather_logprobs(
    asking: LogprobRows, logits: Tensor, token_ids: Tensor, temperature: Tensor | None = None
) -> Logprobs:
    """Picks the sampled token's number, its rank, and the best tokens with theirs.

    The best are the first of the total order of the logits, so they do not depend on how many are asked for, and each
    number is a function of its row alone. A row whose logits are all -inf has no distribution: its logprobs are -inf.
    Where there is +inf, its entries share the probability. On a CPU a native operator reads each row once, in place.

    Args:
        asking: whose logprobs these are.
        logits: float32, float16 or bfloat16 [batch, vocab_size]; NaN counts as -inf.
        token_ids: int64 [batch], the sampled ones.
        temperature: on a CPU alone, float32 [rows], which numbers are divided by: the order is that of the logits. 0
            counts as 1. None: 1.

    Example:
        >>> logits, drawn = torch.tensor([[0.0, 2.0, 2.0]]), torch.tensor([0])
        >>> asking = LogprobRows.of(RowSet.all(1), LogprobsMode.RAW_LOGITS, 2, logits.device)
        >>> gather_logprobs(asking, logits, drawn)
        Logprobs(rows=[0], token_ids=tensor([[0, 1, 2]]), values=tensor([[0., 2., 2.]]), ranks=tensor([3]))
    """
    token_ids = asking.rows.take(token_ids)
    if logits.is_cpu:
        values, ids, (ranks,) = torch.ops.ascend_sample.row_logprobs.default(
            logits,
            asking.rows.device,
            token_ids,
            asking.most,
            asking.mode.is_normalised,
            named=asking.named,
            temperature=temperature,
        )
        return asking.report((values, ids, ranks))
    # As in every route of a device, the largest finite float32 counts as +inf where probabilities are asked for.
    segments = _segments_of(asking.rows.take(logits), LARGEST if asking.mode.is_normalised else torch.inf)
    numbers = segments.flatten(1)[:, : logits.shape[1]]
    best, best_ids = best_entries(numbers, asking.at_least_one, asking.lanes)
    if not asking.mode.is_normalised:
        return _looked_up(asking, numbers, best_ids, token_ids)
    numbers.sub_(best[:, :1].clamp(min=-LARGEST))  # so that the sum of the row loses no digits
    return _normalised(asking, segments, numbers, best_ids, token_ids, LEAST_SHIFTED)


def _of_distributions(asking: LogprobRows, distributions: Distributions, logits: Tensor, token_ids: Tensor) -> Logprobs:
    """Looks up what the filters keep of rows on a device: logits and tokens are theirs alone."""
    scaled = distributions.scaled(logits)
    torch.nn.functional.threshold(scaled, LEAST_SCALED, -torch.inf, inplace=True)  # what stands beside +inf
    # Scaled logits may be equal where logits are not: the order is that of these.
    numbers = torch.add(logits, scaled, alpha=INFINITESIMAL)
    numbers.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    _, best_ids = best_entries(numbers, asking.at_least_one, asking.lanes)
    if not asking.mode.is_normalised:
        numbers = numbers if distributions.divisor is None else numbers.div_(distributions.divisor)
        return _looked_up(asking, numbers, best_ids, token_ids)
    segments = _segments_of(scaled, torch.inf, is_clean=True)
    return _normalised(asking, segments, segments.flatten(1)[:, : logits.shape[1]], best_ids, token_ids)


def _normalised(
    asking: LogprobRows,
    segments: Tensor,
    numbers: Tensor,
    best_ids: Tensor,
    token_ids: Tensor,
    least: float | None = None,
) -> Logprobs:
    """Does what `_looked_up` does, for the logarithms of probabilities.

    Args:
        asking: whose these are.
        segments: float32 [rows, segments, ids of a segment]; they are overwritten.
        numbers: the part of them that is rows, of which 0 is the largest.
        best_ids: of the best tokens.
        token_ids: the sampled ones.
        least: at or below it is what stands beside +inf; None: nothing.
    """
    # By segments, so that a row is added up in the same way whatever other rows there are.
    sums = asking.room_for_sums(segments)
    torch.logsumexp(segments, 2, out=sums[:, :-1])
    found = _looked_up(asking, numbers.sub_(sums.logsumexp(1, keepdim=True)), best_ids, token_ids)
    if least is None:
        return found
    return found._replace(values=torch.nn.functional.threshold(found.values, least, -torch.inf))


def _looked_up(asking: LogprobRows, numbers: Tensor, best_ids: Tensor, token_ids: Tensor) -> Logprobs:
    """Returns the numbers of sampled tokens, of the best, and of those that are named, in few launches."""
    named = () if asking.named is None else (asking.named,)
    ids = torch.cat((token_ids.unsqueeze(1), best_ids[:, : asking.most], *named), dim=1)
    values = numbers.gather(1, ids)
    return asking.report((values, ids, (numbers >= values[:, :1]).sum(1)))


def processed_logprobs(
    asking: LogprobRows,
    logits: Tensor,
    token_ids: Tensor,
    edits: Mapping[str, Tensor] = NO_EDITS,
) -> Logprobs:
    """Does what `gather_logprobs` does, for what temperature and filters make of the logits of the asking rows.

    Args:
        asking: whose logprobs these are, by a mode of processed numbers, with their distributions.
        logits: [batch, vocab_size], after edits but for those that follow; they stay as they are.
        token_ids: int64 [batch].
        edits: of the batch, what the CPU kernel does to logits that are there.
    """
    distributions = asking.distributions
    assert distributions is not None, "filters go by them"
    if edits and asking.rows.device is not None:
        edits = edits_of_rows(edits, asking.rows.device)
    logits, token_ids = asking.rows.take(logits), asking.rows.take(token_ids)
    if logits.is_cpu:
        return _processed_in_blocks(asking, distributions, logits, token_ids, edits)
    return _of_distributions(asking, distributions, logits, token_ids)


def _processed_in_blocks(
    asking: LogprobRows,
    distributions: Distributions,
    logits: Tensor,
    token_ids: Tensor,
    edits: Mapping[str, Tensor],
) -> Logprobs:
    """Does what `processed_logprobs` does on a CPU, a few rows at a time: what they keep is read again from a cache.

    Logits, tokens, distributions and edits are of the asking rows alone.
    """
    parameters = distributions.parameters
    rows, vocab_size = logits.shape
    step = max(torch.get_num_threads(), NUMBERS_OF_BLOCK // vocab_size)
    found = []
    for start in range(0, max(1, rows), step):
        block = np.arange(start, min(start + step, rows))
        of_block = parameters if step >= rows else parameters.of_rows(RowSet(block, torch.from_numpy(block)))
        part = slice(start, start + step)
        kept = undivided_logits(logits[part], of_block, distributions.keep_ties, edits_of_rows(edits, part))
        named = None if asking.named is None else asking.named[part]
        asked = asking._replace(rows=RowSet.all(len(block)), named=named)
        found.append(gather_logprobs(asked, kept, token_ids[part], of_block.temperature))
        del kept  # the next block has its memory
    values, ids, ranks = (
        torch.cat(parts) for parts in zip(*((each.values, each.token_ids, each.ranks) for each in found), strict=True)
    )
    return asking.report((values, ids, ranks))


def _segments_of(logits: Tensor, infinity: float, is_clean: bool = False) -> Tensor:
    """Returns rows in segments, float32 [rows, segments, ids of a segment], with -inf for NaN and beyond the row.

    They are a copy unless the rows are clean and as long as whole segments.
    """
    rows, vocab_size = logits.shape
    width = _width_of_segments(vocab_size)
    if vocab_size % width == 0 and is_clean:
        return logits.view(rows, -1, width)
    if vocab_size % width == 0 and logits.dtype == torch.float32:
        return logits.nan_to_num(nan=-torch.inf, posinf=infinity, neginf=-torch.inf).view(rows, -1, width)
    segments = _room_for_segments(logits)
    segments.flatten(1)[:, :vocab_size] = logits
    return segments.nan_to_num_(nan=-torch.inf, posinf=infinity, neginf=-torch.inf)


def _room_for_segments(logits: Tensor) -> Tensor:
    """Allocates segments of rows, float32 [rows, segments, ids of a segment], with -inf beyond the rows."""
    rows, vocab_size = logits.shape
    width = _width_of_segments(vocab_size)
    columns = -(-vocab_size // width) * width
    room = torch.empty(rows, columns, dtype=torch.float32, device=logits.device)
    if columns > vocab_size:
        room[:, vocab_size:] = -torch.inf
    return room.view(rows, -1, width)


def _width_of_segments(vocab_size: int) -> int:
    """Returns how many ids a segment has: fewer where that cuts a row into whole ones."""
    return next((width for width in (SEGMENT, SEGMENT // 2) if vocab_size % width == 0), SEGMENT)
