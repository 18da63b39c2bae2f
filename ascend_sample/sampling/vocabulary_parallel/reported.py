"""Logprobs of rows that no rank has as a whole: the bits of those of a step that is not split.

Once the tokens are known, a rank tells what its part of a row adds up to, its n best and the drawn token's value where
it has that; then how many of its logits have at least the token's number, unless the best tell the rank already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.draws.best_tokens import without_nan
from ascend_sample.sampling.step.distribution import divided_by_temperature
from ascend_sample.sampling.step.logprobs import Logprobs, LogprobsMode
from ascend_sample.sampling.vocabulary_parallel.chunks import CHUNK, Chunks
from ascend_sample.sampling.vocabulary_parallel.cuts import LEAST_KEY, key_of, value_of
from ascend_sample.sampling.vocabulary_parallel.kinds import Rows
from ascend_sample.sampling.vocabulary_parallel.messages import Part
from ascend_sample.sampling.vocabulary_parallel.shard import Borders

NO_ID: Final = 2**31 - 1
"""Stands where a part has fewer ids than are asked for."""
UNSURE: Final = 1e-6
"""A share of a weight within which its last bits may decide whether min-p keeps it."""

Singles = npt.NDArray[np.float32]


class PartOfRows(NamedTuple):
    """Some of the reported rows, as far as a rank has them.

    Attributes:
        tensor: floats [rows of the tensor, ids of the part].
        rows: int64, where they are in the tensor; None: as many as it has, in order.
        where: int64, which of the reported rows they are.
        weighed: floats like the tensor, what sums are made of; None: the tensor.
    """

    tensor: Tensor
    rows: Tensor | None
    where: Tensor
    weighed: Tensor | None = None


class Scales(NamedTuple):
    """What rows are divided by, once their maxima are subtracted where they are normalised.

    Attributes:
        maxima: float32 [rows], of what is divided.
        temperature: float32 [rows]; not above 0: 1.
    """

    maxima: Singles
    temperature: Singles


class Numbers(NamedTuple):
    """What is reported of values: they themselves, or the logarithms of their probabilities.

    Attributes:
        maxima: float32 [rows, 1]; None: values are reported as they are.
        log_sums: float64 [rows, 1], of whole rows.
        divisors: float32 [rows, 1], which values are divided by.
    """

    maxima: Singles | None
    log_sums: npt.NDArray[np.float64]
    divisors: Singles

    def of(self, values: Singles) -> Singles:
        """Returns the numbers of values [rows, n], in the arithmetic of the CPU kernel."""
        if self.maxima is None:
            quotients: Singles = values / self.divisors
            return quotients
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(values == self.maxima, 0.0, values.astype(np.float64) - self.maxima)
            numbers = (difference / self.divisors - self.log_sums).astype(np.float32)
        return np.where(np.isneginf(values), values, numbers)

    def last_below(self, values: Singles) -> Singles:
        """Returns the largest values whose numbers are less than those of ``values`` [rows]."""
        numbers = self.of(values[:, None])
        below, enough = np.full(len(values), LEAST_KEY), key_of(values)
        while (enough - below > 1).any():
            middle = (below + enough) // 2
            is_enough = (self.of(value_of(middle)[:, None]) >= numbers)[:, 0]
            below, enough = np.where(is_enough, below, middle), np.where(is_enough, middle, enough)
        return value_of(below)


class ReportedRows:
    """The rows of a step that are reported by parts, on one rank.

    Args:
        borders: of the ranks.
        rank: of the caller.
        rows: int64, which rows of the batch, ascending.
        parts: what the rank has of them; nothing where it has no ids.
        dtype: of the parts.
        most: how many of the best tokens are reported.
        is_normalised: logarithms of probabilities are reported.
        token_ids: int64 [rows], the drawn ones.
        entropy: entropies are reported as well, of logarithms of probabilities.
        scales: of processed rows.

    Attributes:
        rows: as given.
        is_counted: bool [rows], whether the best do not tell the rank of the token; known when `take` was called.
        entropies: float32 [rows], or [0] where they are not wanted; likewise.
    """

    is_counted: npt.NDArray[np.bool_]
    entropies: Tensor

    def __init__(
        self,
        borders: Borders,
        rank: int,
        rows: Rows,
        parts: Sequence[PartOfRows],
        dtype: torch.dtype,
        most: int,
        is_normalised: bool,
        token_ids: Tensor,
        entropy: bool = False,
        scales: Scales | None = None,
    ) -> None:
        self.rows, self._has_entropy, self._scales = rows, entropy, scales
        self._rank, self._ids = rank, range(borders.firsts[rank], borders.ends[rank])
        self._parts, self._dtype, self._most = parts, dtype, most
        self._chunks = Chunks(borders) if is_normalised else None
        self._token_ids = token_ids
        self._owners = torch.from_numpy(np.searchsorted(borders.ends, token_ids.numpy(), side="right"))
        self._vocab_size = borders.ends[-1]

    def told(self) -> list[Part]:
        """Returns what the rank tells of its parts."""
        rows, ids = len(self.rows), self._ids
        values = torch.full((rows,), -torch.inf, dtype=torch.float32, device="cpu")
        best = torch.full((rows, self._most), -torch.inf, dtype=torch.float32, device="cpu")
        best_ids = torch.full((rows, self._most), NO_ID, dtype=torch.int64, device="cpu")
        count = min(self._most, len(ids))
        for part in self._parts:
            local = (self._token_ids[part.where] - ids.start).clamp_(0, len(ids) - 1)
            numbers, named, *_ = torch.ops.ascend_sample.row_logprobs(part.tensor, part.rows, local, count, False)
            values[part.where] = numbers[:, 0]
            best[part.where, :count], best_ids[part.where, :count] = numbers[:, 1:], named[:, 1:] + ids.start
        return [
            Part("report_values", torch.float32, values),
            Part("report_best", torch.float32, best),
            Part("report_best_ids", torch.int32, best_ids),
            *([] if self._chunks is None else self._told_of_chunks(self._chunks)),
        ]

    def _told_of_chunks(self, chunks: Chunks) -> list[Part]:
        rows, ids, whole = len(self.rows), self._ids, chunks.whole[self._rank]
        maxima = torch.full((rows, chunks.most_whole), -torch.inf, dtype=torch.float32, device="cpu")
        sums = torch.zeros(rows, chunks.most_whole, dtype=torch.float64, device="cpu")
        distances = torch.zeros(rows if self._has_entropy else 0, chunks.most_whole, dtype=torch.float32, device="cpu")
        pieces = torch.zeros(rows, chunks.most_in_pieces, dtype=self._dtype, device="cpu")
        for part in self._parts:
            weighed = part.tensor if part.weighed is None else part.weighed
            if len(whole):
                columns = slice(whole.start * CHUNK - ids.start, min(whole.stop * CHUNK, ids.stop) - ids.start)
                found = torch.ops.ascend_sample.chunk_sums(weighed[:, columns], part.rows, self._has_entropy)
                maxima[part.where, : len(whole)], sums[part.where, : len(whole)] = found[:2]
                if self._has_entropy:
                    distances[part.where, : len(whole)] = found[2]
            for piece in chunks.pieces[self._rank]:
                there = weighed[:, piece.ids.start - ids.start : piece.ids.stop - ids.start]
                end = piece.column + len(piece.ids)
                pieces[part.where, piece.column : end] = there if part.rows is None else there[part.rows]
        return [
            Part("report_maxima", torch.float32, maxima),
            Part("report_sums", torch.float64, sums),
            Part("report_distances", torch.float32, distances),
            Part("report_pieces", self._dtype, pieces),
        ]

    def take(self, told: Mapping[str, Tensor]) -> None:
        """Takes in what all ranks have told."""
        ranks, rows = len(told["report_values"]), len(self.rows)
        divisors = np.ones((rows, 1), np.float32)
        if self._scales is not None:
            divisors = np.where(self._scales.temperature > 0, self._scales.temperature, 1)[:, None].astype(np.float32)
        numbers = Numbers(None, np.empty(0), divisors)
        if self._chunks is not None:
            whole = (ranks, rows, self._chunks.most_whole)
            maxima, log_sums, self.entropies = self._chunks.log_sums(
                told["report_maxima"].view(whole),
                told["report_sums"].view(whole),
                told["report_pieces"].view(ranks, rows, self._chunks.most_in_pieces),
                told["report_distances"].view(whole) if self._has_entropy else None,
            )
            of_rows = maxima.numpy() if self._scales is None else self._scales.maxima
            numbers = Numbers(of_rows[:, None], log_sums.numpy()[:, None], divisors)
        best, best_ids = best_of_ranks(
            told["report_best"].view(ranks, rows, self._most), told["report_best_ids"].view(ranks, rows, self._most)
        )
        drawn = told["report_values"].gather(0, self._owners.unsqueeze(0))[0]
        reported = numbers.of(torch.cat((drawn.unsqueeze(1), best), 1).numpy())
        self._values = torch.from_numpy(reported)
        self._best_ids = best_ids
        is_masked = np.isneginf(reported[:, 0])
        among_best = (reported[:, 1:] >= reported[:, :1]).sum(1)
        self._ranks = np.where(is_masked, self._vocab_size, among_best)
        self.is_counted = (among_best == self._most) & ~is_masked
        self._bounds = torch.from_numpy(numbers.last_below(drawn.numpy()))

    def counts(self) -> Part:
        """Returns what the rank tells of rows whose ranks the best do not tell."""
        counts = torch.zeros(len(self.rows), dtype=torch.int64, device="cpu")
        for part in self._parts:
            bounds = self._bounds[part.where]
            counts[part.where] = torch.ops.ascend_sample.count_above(part.tensor, part.rows, bounds)
        return Part("report_counts", torch.int32, counts)

    def take_counts(self, told: Mapping[str, Tensor]) -> None:
        """Takes in what all ranks have counted."""
        counted = told["report_counts"].sum(0, dtype=torch.int64).numpy()
        self._ranks = np.where(self.is_counted, counted, self._ranks)

    def logprobs(self) -> Logprobs:
        """Returns what is reported."""
        ids = torch.cat((self._token_ids.unsqueeze(1), self._best_ids), 1)
        return Logprobs(self.rows.tolist(), ids, self._values, torch.from_numpy(self._ranks))


def best_of_ranks(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Merges the best tokens of all ranks: float32 and int64 [rows, n] each.

    Args:
        values: float32 [ranks, rows, n], descending; -inf for what is nothing.
        ids: int32, with `NO_ID` where there is nothing.

    Example:
        >>> best_of_ranks(torch.tensor([[[1.0, -torch.inf]], [[1.0, 0.5]]]), torch.tensor([[[3, NO_ID]], [[4, 9]]]))
        (tensor([[1., 1.]]), tensor([[3, 4]]))
    """
    count = values.shape[2]
    flat, flat_ids = (tensor.transpose(0, 1).flatten(1) for tensor in (values, ids.to(torch.int64)))
    by_id = flat_ids.sort(dim=1, stable=True)
    by_value = flat.gather(1, by_id.indices).sort(dim=1, descending=True, stable=True)
    return by_value.values[:, :count], by_id.values.gather(1, by_value.indices[:, :count])


def processed_part(
    logits: Tensor, maximum: Tensor, temperature: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `undivided_logits` makes of parts of rows without top-k and top-p, float32 [rows, ids].

    Args:
        logits: floats [rows, ids], edited.
        maximum: float32 [rows], of the whole rows.
        temperature: float32 [rows] > 0.
        min_p: float32 [rows].

    Returns:
        These; the terms of the sums, divided where the temperature is not 1; and for each row whether a weight is as
        near to min_p as weights in float32 are to what they should be: where it lies in a row may then decide.
    """
    values, maximum, limit = without_nan(logits), maximum.unsqueeze(1), min_p.unsqueeze(1)
    scaled = divided_by_temperature(values, maximum, temperature)
    is_kept, is_unsure = scaled > -torch.inf, torch.zeros(len(logits), dtype=torch.bool, device="cpu")
    if bool((min_p > 0).any()):
        weights = scaled.exp()
        is_kept &= weights >= limit
        is_unsure = (((weights - limit).abs() <= UNSURE * limit) & (scaled < 0) & (limit > 0)).any(1)
    values.masked_fill_(~is_kept, -torch.inf)
    scaled.masked_fill_(~is_kept, -torch.inf)
    return values, torch.where(temperature.unsqueeze(1) == 1, values, scaled), is_unsure


def report_kept(
    rows: Rows,
    kept: Tensor,
    ids: Tensor,
    token_ids: Tensor,
    vocab_size: int,
    most: int,
    mode: LogprobsMode,
    temperature: Tensor,
) -> Logprobs:
    """Reports rows of which all ranks know what is kept, as if the rest of the vocabulary were there.

    Args:
        rows: which rows of the batch.
        kept: float32 [rows, n], the logits of what is kept, not divided, -inf for the rest.
        ids: int64 [rows, n].
        token_ids: int64 [rows], the drawn ones.
        vocab_size: of the whole vocabulary.
        most: how many of the best tokens are reported.
        mode: a processed one.
        temperature: float32 [rows].
    """
    whole = torch.full((len(rows), vocab_size), -torch.inf, dtype=torch.float32, device="cpu")
    whole.scatter_reduce_(1, ids, kept, "amax")  # ids that stand for nothing have -inf
    options = (whole, None, token_ids, most, mode.is_normalised)
    values, named, ranks, _ = torch.ops.ascend_sample.row_logprobs(*options, temperature=temperature)
    return Logprobs(rows.tolist(), named, values, ranks)


def without_rows(found: Logprobs, rows: Rows) -> Logprobs:
    """Returns the logprobs of all rows but these."""
    if not len(rows):
        return found
    there = torch.from_numpy(np.flatnonzero(~np.isin(found.rows, rows)))
    return Logprobs([found.rows[place] for place in there.tolist()], *(tensor[there] for tensor in found[1:]))


def in_order(found: Sequence[Logprobs]) -> Logprobs:
    """Returns the logprobs of several sets of rows as those of one, by ascending rows.

    Args:
        found: at least one; as many of the best tokens in each.
    """
    if len(found) == 1:
        return found[0]
    rows = [row for each in found for row in each.rows]
    order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__), device="cpu")
    tensors = (torch.cat(same)[order] for same in zip(*(each[1:] for each in found), strict=True))
    return Logprobs(sorted(rows), *tensors)
