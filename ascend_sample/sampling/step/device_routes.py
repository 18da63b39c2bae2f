"""Each device route's few operators. What stays the same from step to step is made when a route is chosen.

A route is a class: it is made with the parameters of its rows, and called with their logits and noise in every step.
What was wrong with the logits is told elsewhere, of all routes' rows together. Nothing here reads a device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample._validate import convert_p
from ascend_sample.sampling.draws.best_tokens import best_entries
from ascend_sample.sampling.draws.segmented import draw_from_segments, lanes_of, segments_around, whole_segments
from ascend_sample.sampling.draws.weights import (
    base_of,
    cleaned,
    cleaned_in_float32,
    drop_below_min_p,
    drop_outside_nucleus,
    largest_of,
    scaled,
)
from ascend_sample.sampling.rows.parameters import RowParameters, is_limited
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.distribution import exceeded
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K, SamplingRoute, are_greedy


class Route:
    """What serves rows of a batch.

    Attributes:
        rows: which; set where a batch is placed.
        is_edited: they are drawn from edited logits, where there are some.
        lanes: how many numbers of noise each row reads.
        is_widened: the operator is given `widened` noise.
        returns_kept: a call can return what the filters keep, if it is asked to.
    """

    rows: RowSet
    is_edited = False
    lanes = 0
    is_widened = False
    returns_kept = False

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        """Draws one token a row.

        Args:
            logits: [rows, vocab_size].
            noise: float32 [rows, lanes]; None for no lanes.
            is_own: the logits may be overwritten.

        Returns:
            int64 [rows].
        """
        return self.draw(logits, noise, is_own)[0]

    def draw(
        self, logits: Tensor, noise: Tensor | None, is_own: bool, is_kept_wanted: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Does what a call does, and returns what the filters keep as well if that is wanted.

        Returns:
            int64 [rows]; float32 [rows, vocab_size], scaled logits but for a shift of a row, -inf for what is dropped.
        """
        raise NotImplementedError


class Greedy(Route):
    """The best id of each row: the lowest among equals."""

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        out = logits if is_own else None
        return torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf, out=out).argmax(1)


class FusedV2(Route):
    """The second operator, for rows that all have a top_k that it honours, and the argmax for those that are greedy.

    At temperature 1 logits are taken as they are, whatever the other rows have: a shift would round them.

    Args:
        rows: their parameters, in the operators' terms.
        most_k: no top_k among them that is on is larger.
    """

    is_widened = True

    def __init__(self, rows: RowParameters, most_k: int) -> None:
        self.lanes = most_k
        self._top_k, self._min_p = rows.top_k, rows.min_p
        self._top_p = exceeded(rows.top_p)
        self._divisor, facts = rows.divisor(), rows.facts
        self._is_plain, self._is_greedy = None, None
        if self._divisor is not None and (facts is None or np.isin(facts["temperature"], (0, 1)).any()):
            self._is_plain = self._divisor == 1
        if facts is not None and are_greedy(facts).any():
            self._is_greedy = self._top_k == 1
        self.returns_kept = self._is_greedy is None  # of a greedy row the operator keeps something else

    def draw(
        self, logits: Tensor, noise: Tensor | None, is_own: bool, is_kept_wanted: bool = False
    ) -> tuple[Tensor, Tensor]:
        assert noise is not None, "each row reads its ranks"
        values = cleaned_in_float32(logits, is_own)
        best_ids = None if self._is_greedy is None else values.argmax(1, keepdim=True)
        if self._divisor is not None:
            base = base_of(largest_of(values) if best_ids is None else values.gather(1, best_ids))
            if self._is_plain is not None:
                base.masked_fill_(self._is_plain, 0)
            scaled(values, base, self._divisor, out=values)
        options = (self._top_k, self._top_p, noise, self._min_p, is_kept_wanted)
        token_ids, kept = draw_by_second_operator(values, *options)
        if best_ids is not None and self._is_greedy is not None:
            token_ids = torch.where(self._is_greedy, best_ids.squeeze(1), token_ids)
        return token_ids, kept


class Fused(Route):
    """The first operator, on 16-bit logits, for rows that all have a top_k that it honours.

    A draw from softmax(x / t) is argmax of w^(1/t) / q, where w = softmax(x); the same entry has the largest w / q^t.

    Args:
        rows: their parameters, in the operators' terms.
        most_k: no top_k among them that is on is larger.
        logits: of the dtype of those that they are sampled from.
    """

    is_widened = True

    def __init__(self, rows: RowParameters, most_k: int, logits: Tensor) -> None:
        self.lanes = most_k
        self._top_k = rows.top_k
        self._top_p = convert_p(rows.top_p, logits)
        self._exponent = rows.divisor()

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        assert noise is not None, "each row reads its ranks"
        if self._exponent is not None:
            noise = noise**self._exponent
        return draw_by_operator(cleaned(logits, logits if is_own else None), self._top_k, self._top_p, noise)


class Segments(Route):
    """The weights of whole rows: an operator drops what is outside the nucleus, and min-p drops what weighs little.

    Args:
        rows: their parameters, in the operators' terms; top_k is off for all, unless it keeps ties.
        logits: of the dtype and with the columns of those that they are sampled from.
        has_v2: the device has the second operator.
        keep_ties: another operator drops what is below the k-th logit before, on a device that has the second one.
    """

    def __init__(self, rows: RowParameters, logits: Tensor, has_v2: bool, keep_ties: bool = False) -> None:
        self.lanes = lanes_of(logits.shape[1])
        self._divisor, self._min_p, self._top_k = rows.divisor(), rows.column("min_p"), rows.top_k
        self._k_with_ties = None
        if keep_ties and rows.facts is not None and is_limited(rows.facts["top_k"], logits.shape[1]).any():
            self._k_with_ties, self._top_k = rows.top_k, torch.full_like(rows.top_k, SKIP_TOP_K)
        has_top_p = rows.column("top_p") is not None
        self._exceeded = exceeded(rows.top_p) if has_top_p and has_v2 else None
        self._top_p = convert_p(rows.top_p, logits) if has_top_p and not has_v2 else None
        # What the first operator and min-p drop is known of weights, not of logits.
        self.returns_kept = self._min_p is None and self._top_p is None

    def draw(
        self, logits: Tensor, noise: Tensor | None, is_own: bool, is_kept_wanted: bool = False
    ) -> tuple[Tensor, Tensor]:
        assert noise is not None, "each row reads its places and segments"
        vocab_size = logits.shape[1]
        segments = segments_around(logits) if is_own else None
        if segments is None:
            segments = whole_segments(len(logits), vocab_size, logits.device)
        weights = segments[:, :vocab_size]
        if self._top_p is None:
            values = cleaned_in_float32(logits, is_own, out=weights)
            if self._k_with_ties is not None:
                values = torch.ops.ascend_sample.apply_top_k_top_p(values, None, self._k_with_ties)
        else:
            operator = torch.ops.ascend_sample.top_k_top_p_sample
            values = operator(cleaned(logits), self._top_k, self._top_p, None, 0.0, True, 32)[1]
        # The largest of these very values: what stands for +inf is not the same number in every dtype.
        stays = is_kept_wanted and self._exceeded is None  # an operator's result is not overwritten anyway
        values = scaled(values, base_of(largest_of(values)), self._divisor, out=None if stays else weights)
        kept = self._weigh(values, weights)
        return draw_from_segments(segments, vocab_size, noise), kept

    def _weigh(self, values: Tensor, weights: Tensor) -> Tensor:
        """Turns scaled logits into weights, perhaps in their place, and returns the logits that the operator keeps."""
        if self._exceeded is not None:
            operator = torch.ops.ascend_sample.top_k_top_p_sample_v2
            values = operator(values, self._top_k, self._exceeded, None, None, 0.0, True, 32, LARGEST_FUSED_K)[1]
        torch.exp(values, out=weights)
        drop_below_min_p(weights, self._min_p)
        return values


class TopK(Route):
    """The weights of the first of each sorted row, less what the filters drop: they race by rank.

    Args:
        rows: their parameters, in the operators' terms.
        vocab_size: the number of columns.
        width: how many of the first; what top-k keeps is among them.
        keep_ties: top-k keeps every tie at the k-th value.
        chunk_lanes: as of `best_tokens.chunk_lanes`: the first ones are looked for where chunks are best, in more
            launches that read less. None: rows are sorted as a whole.
    """

    def __init__(
        self,
        rows: RowParameters,
        vocab_size: int,
        width: int,
        keep_ties: bool = False,
        chunk_lanes: Tensor | None = None,
    ) -> None:
        self._chunk_lanes, self._width, self.lanes, top_k = chunk_lanes, width, width, rows.top_k
        self._divisor, self._min_p, self._top_p = rows.divisor(), rows.column("min_p"), rows.column("top_p")
        ends = torch.where(is_limited(top_k, vocab_size), top_k, vocab_size).unsqueeze(1)
        self._last_rank = ends.to(torch.int64) - 1 if keep_ties else None
        if keep_ties:  # but for rows that are greedy
            ends = torch.where(ends == 1, 1, vocab_size)
        self._is_beyond_k = torch.arange(self._width, device=top_k.device) >= ends

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        assert noise is not None, "each row reads its ranks"
        return drawn_by_rank(*self._weigh(logits, is_own), noise)

    def _weigh(self, logits: Tensor, is_own: bool) -> tuple[Tensor, Tensor]:
        """Returns weights [rows, width] in the order of their logits, and their ids."""
        clean = cleaned(logits, logits if is_own else None)
        if self._chunk_lanes is None:
            values, ids = (all_of[:, : self._width] for all_of in clean.sort(dim=1, descending=True, stable=True))
        else:
            values, ids = best_entries(clean, self._width, self._chunk_lanes)
        weights = scaled(values, base_of(values[:, :1]), self._divisor).exp_()
        if self._last_rank is not None:
            weights.masked_fill_(values < values.gather(1, self._last_rank), 0)
        weights.masked_fill_(self._is_beyond_k, 0)
        drop_outside_nucleus(weights, self._top_p)
        drop_below_min_p(weights, self._min_p)
        return weights, ids


class SortedSegments(TopK):
    """What a sorted row keeps, back in the places of its ids: it races by segment.

    Args:
        rows, vocab_size, keep_ties: as for `TopK`.
        most_k: no top_k among them that is on is larger.
    """

    def __init__(self, rows: RowParameters, vocab_size: int, most_k: int, keep_ties: bool) -> None:
        is_bounded = rows.facts is not None and not keep_ties and is_limited(rows.facts["top_k"], vocab_size).all()
        super().__init__(rows, vocab_size, most_k if is_bounded else vocab_size, keep_ties)
        self.lanes = lanes_of(vocab_size)

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        assert noise is not None, "each row reads its places and segments"
        return drawn_from_places(*self._weigh(logits, is_own), noise, logits.shape[1])


class AnyRows(TopK):
    """Rows of which the host knows nothing: both races are run, and the parameters choose.

    Args:
        rows, vocab_size, keep_ties: as for `TopK`.
    """

    def __init__(self, rows: RowParameters, vocab_size: int, keep_ties: bool) -> None:
        super().__init__(rows, vocab_size, vocab_size, keep_ties)
        self._most_k = min(LARGEST_FUSED_K, vocab_size)
        self.lanes = max(self._most_k, lanes_of(vocab_size))
        most_k = 1 if keep_ties else LARGEST_FUSED_K
        self._is_ranked = is_limited(rows.top_k, vocab_size) & (rows.top_k <= most_k)

    def __call__(self, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        assert noise is not None, "each row reads ranks, or places and segments"
        weights, ids = self._weigh(logits, is_own)
        vocab_size = logits.shape[1]
        by_rank = drawn_by_rank(weights[:, : self._most_k], ids, noise[:, : self._most_k])
        by_segment = drawn_from_places(weights, ids, noise[:, : lanes_of(vocab_size)], vocab_size)
        return torch.where(self._is_ranked, by_rank, by_segment)


def drawn_by_rank(weights: Tensor, ids: Tensor, noise: Tensor) -> Tensor:
    """Returns the ids whose weights win, int64 [rows]; the first of the row where none has any."""
    ranks = (weights / noise).argmax(1)
    return ids.gather(1, ranks.unsqueeze(1)).squeeze(1)


def drawn_from_places(weights: Tensor, ids: Tensor, noise: Tensor, vocab_size: int) -> Tensor:
    """Draws by segments from weights of ids; what is not among them has none."""
    segments = whole_segments(len(weights), vocab_size, weights.device)
    segments.zero_().scatter_(1, ids, weights)
    return draw_from_segments(segments, vocab_size, noise)


def draw_by_operator(logits: Tensor, top_k: Tensor, top_p: Tensor, noise: Tensor) -> Tensor:
    """Calls top_k_top_p_sample once, on rows that all have a top_k: it reads no lane beyond the first ones."""
    operator = torch.ops.ascend_sample.top_k_top_p_sample
    return an_id(operator(logits, top_k, top_p, widened(noise, logits), 0.0, False, 32)[0], logits)


def draw_by_second_operator(
    values: Tensor, top_k: Tensor, top_p: Tensor, noise: Tensor, min_p: Tensor, is_kept_wanted: bool = False
) -> tuple[Tensor, Tensor]:
    """Calls top_k_top_p_sample_v2 once, on float32 rows that all have a top_k; top_p is what `exceeded` returns.

    Returns:
        The ids, and the values that are kept, with -inf elsewhere: none unless they are wanted.
    """
    operator = torch.ops.ascend_sample.top_k_top_p_sample_v2
    # eps is 0: noise is never 0, and an eps of 1e-8 would halve the draws of a token 18 nats below the best.
    drawn = operator(values, top_k, top_p, widened(noise, values), min_p, 0.0, is_kept_wanted, 32, LARGEST_FUSED_K)
    return an_id(drawn[0], values), drawn[1]


def widened(noise: Tensor, logits: Tensor) -> Tensor:
    """Returns the noise in the shape of the logits, for operators that read the first lanes alone.

    A row's columns beyond them are those of the rows that follow, where there is memory enough behind the last row.
    """
    step, between = noise.stride()
    end = noise.storage_offset() + (len(noise) - 1) * step + logits.shape[1]
    if between == 1 and 4 * end <= noise.untyped_storage().nbytes():
        return noise.as_strided(logits.shape, (step, 1))
    wide = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    wide[:, : noise.shape[1]] = noise
    return wide


def an_id(token_ids: Tensor, logits: Tensor) -> Tensor:
    """Returns ids of the vocabulary: what a device's operator makes of a row of -inf is not documented."""
    return token_ids.clamp_(0, logits.shape[1] - 1)


def route_of(
    name: SamplingRoute, rows: RowParameters, logits: Tensor, most_k: int, keep_ties: bool, has_v2: bool
) -> Route:
    """Makes the route of some rows.

    Args:
        name: of the route.
        rows: their parameters, in the operators' terms.
        logits: of the dtype, on the device and with the columns of those that they are sampled from.
        most_k: no top_k among them that is on is larger.
        keep_ties: top-k keeps every tie at the k-th value.
        has_v2: the device has the second operator.
    """
    vocab_size = logits.shape[1]
    most_k = min(most_k, vocab_size)
    match name:
        case SamplingRoute.GREEDY:
            return Greedy()
        case SamplingRoute.FUSED_V2:
            return FusedV2(rows, most_k)
        case SamplingRoute.FUSED:
            return Fused(rows, most_k, logits)
        case SamplingRoute.TOP_K:
            return TopK(rows, vocab_size, most_k, keep_ties)
        case SamplingRoute.SORTED_SEGMENTS:
            return SortedSegments(rows, vocab_size, most_k, keep_ties)
    return Segments(rows, logits, has_v2, keep_ties)
