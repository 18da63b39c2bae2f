"""Kept sets: the ids that all filters leave of the rows that ask, with their log-probabilities.

On the CPU the draw itself tells what it draws from (`csrc/cpu/filters/kept_list.h`); elsewhere torch's operators list
what the device's filters keep. docs/logprobs.md has the meaning, section "Kept sets".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import check_integer
from ascend_sample.sampling.draws.best_tokens import sum_of_rows
from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.rows.parameters import RowParameters, RowStatus
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.serving import Drawn

NO_ID: Final = -1
"""What stands where there is room for an id, and none was kept."""


class KeptSets(NamedTuple):
    """What was kept of each row, one row behind the other, on the device of the logits.

    A row keeps nothing if it has not asked, if its status is not `RowStatus.OK`, if it is a place of drafts that gave
    no token, or if it keeps more than the bound that was set: then ``counts`` tells how many.

    Attributes:
        offsets: int64 [batch + 1]: what row i keeps lies from offsets[i] to offsets[i + 1].
        ids: int32 [kept], ascending in each row. Where a device was given a bound there may be more, of no meaning.
        logprobs: float32 [kept], the logarithms of the probabilities that they are drawn with, which sum to 1 in a row.
        counts: int32 [batch], how many ids the filters leave, also where that is more than the bound.

    Example:
        >>> kept = KeptSets(
        ...     torch.tensor([0, 2, 2]), torch.tensor([1, 4]), torch.tensor([0.75, 0.25]).log(), torch.tensor([2, 0])
        ... )
        >>> kept.of_row(0)
        (tensor([1, 4]), tensor([-0.2877, -1.3863]))
    """

    offsets: Tensor
    ids: Tensor
    logprobs: Tensor
    counts: Tensor

    def of_row(self, row: int) -> tuple[Tensor, Tensor]:
        """Returns the ids that a row keeps, and their log-probabilities: on a device, by waiting for the offsets."""
        row = check_integer("KeptSets", "row", row, low=0, high=len(self.counts) - 1)
        start, end = self.offsets[row : row + 2].tolist()
        return self.ids[start:end], self.logprobs[start:end]

    def padded(self, width: int) -> tuple[Tensor, Tensor]:
        """Returns the sets as tables, without waiting: what trainers and engines pass on.

        Args:
            width: how many columns; a row's ids beyond them are left out.

        Returns:
            int32 [batch, width] with -1 behind a row's ids, and float32 [batch, width] with -inf.

        Example:
            >>> KeptSets(
            ...     torch.tensor([0, 2, 2]), torch.tensor([1, 4]), torch.tensor([0.5, 0.5]).log(), torch.tensor([2, 0])
            ... ).padded(3)[0]
            tensor([[ 1,  4, -1],
                    [-1, -1, -1]])
        """
        width = check_integer("KeptSets", "width", width, low=0, high=MAX_VOCAB_SIZE)
        columns = torch.arange(width, device=self.offsets.device)
        places = self.offsets[:-1].unsqueeze(1) + columns
        is_there = places < self.offsets[1:].unsqueeze(1)
        # One more entry, so that there is one to look at where nothing is kept.
        ids = torch.cat((self.ids, self.ids.new_full((1,), NO_ID)))
        logprobs = torch.cat((self.logprobs, self.logprobs.new_full((1,), -torch.inf)))
        places = places.masked_fill(~is_there, len(self.ids))
        return ids[places], logprobs[places]

    def of_rows(self, stays: Tensor) -> KeptSets:
        """Returns the same without what some rows keep; on the CPU, where sizes are known.

        Args:
            stays: bool [batch].
        """
        if bool(stays.all()):
            return self
        entries = stays.repeat_interleave(self.counts)
        return KeptSets(offsets_of(self.counts * stays), self.ids[entries], self.logprobs[entries], self.counts)

    def in_batch(self, rows: Tensor, batch_size: int) -> KeptSets:
        """Returns the same as sets of a batch whose other rows keep nothing.

        Args:
            rows: int64, ascending, those of the batch whose sets these are.
            batch_size: of how many.
        """
        lengths, counts = (each.new_zeros(batch_size) for each in (self.offsets, self.counts))
        lengths[rows], counts[rows] = self.offsets.diff(), self.counts
        return KeptSets(offsets_of(lengths), self.ids, self.logprobs, counts)


class KeptRows(NamedTuple):
    """The rows of a batch that ask for kept sets: what stays the same from step to step.

    Attributes:
        rows: which.
        is_wanted: bool [batch] on the CPU, the same.
        distributions: theirs.
        most: no set is larger; None: it may be.
        are_others_listed: a draw on a CPU lists what other rows keep as well.
    """

    rows: RowSet
    is_wanted: Tensor
    distributions: Distributions
    most: int | None
    are_others_listed: bool = False

    @classmethod
    def of_rows(
        cls,
        rows: npt.NDArray[np.int64],
        parameters: RowParameters,
        vocab_size: int,
        keep_ties: bool,
        most: int | None = None,
    ) -> KeptRows:
        """Returns those of which rows ask, given the parameters of all rows."""
        device, count = parameters.seed.device, len(parameters.seed)
        asking = RowSet.of(rows, count, device)
        distributions = Distributions(parameters.of_rows(asking), vocab_size, keep_ties)
        is_wanted = torch.zeros(count, dtype=torch.bool, device="cpu")
        is_wanted[torch.from_numpy(rows)] = True
        return cls(asking, is_wanted, distributions, most)

    def sets(self, drawn: Drawn, is_unreached: Tensor | None = None) -> KeptSets:
        """Returns what was kept of all rows: on a device it is listed now, and waited for where there is no bound.

        Args:
            drawn: a draw that has returned what is kept of these rows on a CPU, and on a device has not overwritten its
                logits.
            is_unreached: bool [batch], on a device, places of drafts that gave no token: they keep nothing. None: there
                are none.
        """
        if drawn.sets:
            found = KeptSets(*drawn.sets)
            if not self.are_others_listed:
                return found if self.most is None else found.of_rows(found.counts <= self.most)
            stays = self.is_wanted if self.most is None else self.is_wanted & (found.counts <= self.most)
            found = found.of_rows(stays | (found.counts == 0))
            return found._replace(counts=found.counts * self.is_wanted)
        values = self.distributions.kept_values(self.rows.take(drawn.logits))
        is_out = drawn.status != RowStatus.OK
        if is_unreached is not None:
            is_out.logical_or_(is_unreached)
        return listed(values, self.rows.take(is_out), self.rows, len(drawn.logits), self.most)


def offsets_of(counts: Tensor) -> Tensor:
    """Returns where rows begin that have so many entries, and where the last one ends: int64 [rows + 1].

    Example:
        >>> offsets_of(torch.tensor([2, 0, 1]))
        tensor([0, 2, 2, 3])
    """
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int64), (1, 0))


def listed(values: Tensor, is_out: Tensor, asking: RowSet, batch_size: int, most: int | None) -> KeptSets:
    """Lists what is above -inf of some rows of a batch.

    Args:
        values: float32 [rows, vocab_size]; they may be overwritten.
        is_out: bool [rows], of which nothing is listed.
        asking: which rows.
        batch_size: of how many.
        most: no list is longer: what would be is empty. Then nobody waits, and as much is allocated as that may be.
            None: the host waits for the number.
    """
    vocab_size = values.shape[1]
    is_kept = values > -torch.inf
    counts = is_kept.sum(1, dtype=torch.int32).masked_fill_(is_out, 0)
    if most is not None:
        taken = counts.masked_fill(counts > most, 0)
        offsets = offsets_of(_of_batch(taken, asking, batch_size))
        starts = asking.take(offsets[:-1])
        return KeptSets(offsets, *_first(values, taken, starts, most), _of_batch(counts, asking, batch_size))
    places = is_kept.masked_fill_(is_out.unsqueeze(1), False).flatten().nonzero().squeeze(1)
    logprobs = _normalised(values).flatten()[places]
    counts = _of_batch(counts, asking, batch_size)
    return KeptSets(offsets_of(counts), places.remainder_(vocab_size).to(torch.int32), logprobs, counts)


def _of_batch(counts: Tensor, asking: RowSet, batch_size: int) -> Tensor:
    """Returns what rows that ask have as the batch has it, 0 for the others."""
    return counts if asking.device is None else asking.put(counts, counts.new_zeros(batch_size))


def _first(values: Tensor, taken: Tensor, starts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Lists the first ``taken`` of the largest values of rows, at most ``most`` each, by id, with log-probabilities.

    Args:
        values: float32 [rows, vocab_size].
        taken: int32 [rows], all that is above -inf, or 0.
        starts: int64 [rows], where the lists begin.
        most: no row has more.
    """
    width = min(most, values.shape[1])
    found, ids = values.topk(width, 1)
    found = found.sub_(found[:, :1].clone())  # so that the sum of the row loses no digits
    found = found.sub_(found.logsumexp(1, keepdim=True))
    columns = torch.arange(width, device=values.device)
    # By id, and those that are none last.
    ids, order = ids.masked_fill_(columns >= taken.unsqueeze(1), values.shape[1]).sort(1)
    end = len(values) * width  # where what is none goes
    places = (starts.unsqueeze(1) + columns).masked_fill_(ids == values.shape[1], end).flatten()
    listed_ids = ids.new_full((end + 1,), NO_ID, dtype=torch.int32).scatter_(0, places, ids.flatten().to(torch.int32))
    listed_values = found.new_full((end + 1,), -torch.inf).scatter_(0, places, found.gather(1, order).flatten())
    return listed_ids[:end], listed_values[:end]


def _normalised(values: Tensor) -> Tensor:
    """Returns the logarithms of the probabilities, -inf where a row has -inf; a row is added up as if it were alone."""
    values.sub_(values.amax(1, keepdim=True).clamp_(-LARGEST, LARGEST))
    return values.sub_(sum_of_rows(values.exp()).log_())


def _fake(
    logits: Tensor,
    rows: Tensor | None,
    *requests: Any,
    is_kept_wanted: Tensor | None = None,
    logprobs: int = -1,
    logprob_rows: Tensor | None = None,
    logprob_token_ids: Tensor | None = None,
    is_normalised: bool = True,
    is_processed: bool = False,
    **edits: Any,
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Has the shapes of the operator's results; how much is kept is a size that is not known before."""
    wanted = {"is_kept_wanted": is_kept_wanted, "logprobs": logprobs, "logprob_rows": logprob_rows}
    wanted |= {"logprob_token_ids": logprob_token_ids, "is_normalised": is_normalised, "is_processed": is_processed}
    torch.ops.ascend_sample.check_sample_rows(logits, rows, *requests, **edits, **wanted)
    count = (logits if rows is None else rows).shape[0]
    kept_shapes: list[tuple[Any, torch.dtype]] = []
    logprob_shapes: list[tuple[Any, torch.dtype]] = []
    if is_kept_wanted is not None:
        kept = torch.library.get_ctx().new_dynamic_size()
        sizes = (count + 1, kept, kept, count)
        kept_shapes = list(zip(sizes, (torch.int64, torch.int32, torch.float32, torch.int32), strict=True))
    if logprobs >= 0:
        asking = count if logprob_rows is None else logprob_rows.shape[0]
        ranked = (asking, 1 + logprobs + (0 if logprob_token_ids is None else logprob_token_ids.shape[1]))
        logprob_shapes = [(ranked, torch.float32), (ranked, torch.int64), (asking, torch.int64)]
    return (
        logits.new_empty(count, dtype=torch.int64),
        logits.new_empty(count, dtype=torch.int8),
        [logits.new_empty(shape, dtype=dtype) for shape, dtype in kept_shapes],
        [logits.new_empty(shape, dtype=dtype) for shape, dtype in logprob_shapes],
    )


torch.library.register_fake("ascend_sample::sample_rows", _fake)
