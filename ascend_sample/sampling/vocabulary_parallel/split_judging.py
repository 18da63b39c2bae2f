"""Drafts that were drawn, judged by ranks that have parts of the vocabulary: as whole logits judge them, bit for bit.

All places are drawn by a step first, as under the rule match. What a draft is judged by, and what replaces it, depend
on the whole distribution p of its place, and on q where p is not 0. Of places that are drawn from few candidates, those
with a top-k and greedy ones, all ranks have p then: only q of these candidates travels. The logits of other places and
their q are gathered. Every rank judges the same rows by the code of whole logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.drafts.judging import Proposals
from ascend_sample.sampling.drafts.places import DraftPlaces
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.vocabulary_parallel.kinds import Rows
from ascend_sample.sampling.vocabulary_parallel.local_rows import edited_rows
from ascend_sample.sampling.vocabulary_parallel.messages import Part, digest_of, tell
from ascend_sample.sampling.vocabulary_parallel.shard import Borders, VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.step import Drawn


class Judging(NamedTuple):
    """By what drafts are judged.

    Attributes:
        rule: its number for the CPU kernel.
        proposals: what they were drawn from; dense ones are float32 [drafts, width], of a rank's part.
        keep_ties: as for `Sampler`.
    """

    rule: int
    proposals: Proposals
    keep_ties: bool

    @property
    def dense(self) -> Tensor | None:
        """Returns the probabilities where they are those of the vocabulary, not of listed ids."""
        return self.proposals.probabilities if self.proposals.candidates is None else None

    def digest(self) -> bytes:
        """Returns a digest of what all ranks have to be given."""
        parts = [f"{self.rule} {self.dense is not None}".encode()]
        if self.proposals.candidates is not None and self.proposals.probabilities is not None:
            parts += [self.proposals.candidates.numpy().tobytes(), self.proposals.probabilities.numpy().tobytes()]
        return digest_of(*parts)


class Judged(NamedTuple):
    """What becomes of drafts.

    Attributes:
        token_ids: int64 [places]: of each request the drafts that stay, the token behind them, and then any.
        status: int8 [places].
        accepted: int64 [requests], how many drafts stay.
    """

    token_ids: Tensor
    status: Tensor
    accepted: Tensor


class _Requests(NamedTuple):
    """Requests that are judged in one call.

    Attributes:
        requests: int64, which, ascending.
        places, drafts: int64, theirs, request by request.
        ends: int64, where the places of each end.
        places_of_drafts: int64, among the places.
    """

    requests: Tensor
    places: Tensor
    drafts: Tensor
    ends: Tensor
    places_of_drafts: Tensor


class SplitJudge:
    """The drafts of one pass, on one rank.

    Args:
        shard: what the rank has.
        borders: of the ranks.
        logits: floats [places, width].
        places: of the drafts, as chains.
        edits: arguments of `verify_drafts` for whole logits, which counts the drafts before a place itself.
        draft_ids: int64 [drafts].
        judging: by what.
    """

    def __init__(
        self,
        shard: VocabularyShard,
        borders: Borders,
        logits: Tensor,
        places: DraftPlaces,
        edits: Mapping[str, Tensor],
        draft_ids: Tensor,
        judging: Judging,
    ) -> None:
        self._exchange, self._ids, self._borders = shard.exchange, shard.ids, borders
        self._own, self._places, self._edits = logits[:, : len(shard.ids)], places, edits
        self._draft_ids, self._judging = draft_ids, judging

    def judged(self, drawn: Drawn) -> Judged:
        """Judges the drafts, after all places were drawn: without any the step's tokens stay."""
        result = Judged(*drawn.output, torch.zeros(len(self._places.layout.ends), dtype=torch.int64, device="cpu"))
        has_drafts = np.diff(self._places.layout.ends, prepend=0) > 1
        if not has_drafts.any():
            return result
        place_of, values, ids = self._candidates(drawn.candidates)
        starts = np.r_[0, self._places.layout.ends[:-1]]
        is_few = np.minimum.reduceat(place_of >= 0, starts)
        is_wide = np.maximum.reduceat(edited_rows(self._edits, len(place_of))[0], starts)
        few, whole = self._requests(has_drafts & is_few), self._requests(has_drafts & ~is_few)
        there = torch.from_numpy(place_of)
        told = self._tell(few, whole, ids[there[few.places]])
        # As whole logits are read: where nothing has widened them, in their own dtype.
        for is_of, dtype in ((is_wide, torch.float32), (~is_wide, self._own.dtype)):
            some = self._requests(has_drafts & is_few & is_of)
            if len(some.requests):
                rows, shape = there[some.places], (len(some.places), self._places.vocab_size)
                kept = torch.full(shape, -torch.inf, dtype=torch.float32, device="cpu")
                kept.scatter_reduce_(1, ids[rows], values[rows], "amax")  # ids that stand for nothing have -inf
                dense = None if told["few"] is None else told["few"][torch.searchsorted(few.drafts, some.drafts)]
                self._judge(some, kept.to(dtype), {}, dense, drawn.seeds, result)
        if len(whole.requests):
            own = edits_of_rows(self._edits, whole.places)
            self._judge(whole, told["logits"], own, told["whole"], drawn.seeds, result)
        return result

    def _candidates(self, known: Sequence[tuple[Rows, Tensor, Tensor]]) -> tuple[Rows, Tensor, Tensor]:
        """Returns which row of the candidates each place has, -1 for none, and these: float32, int64 [rows, n]."""
        place_of, most = np.full(len(self._places), -1), max((ids.shape[1] for _, _, ids in known), default=1)
        all_values = [torch.empty(0, most, dtype=torch.float32, device="cpu")]
        all_ids = [torch.empty(0, most, dtype=torch.int64, device="cpu")]
        start = 0
        for rows, values, ids in known:
            place_of[rows] = np.arange(start, start + len(rows))
            start += len(rows)
            all_values.append(pad(values, (0, most - values.shape[1]), value=-torch.inf))
            all_ids.append(pad(ids, (0, most - ids.shape[1])))
        return place_of, torch.cat(all_values), torch.cat(all_ids)

    def _requests(self, is_meant: np.ndarray) -> _Requests:
        layout = self._places.layout
        requests = np.flatnonzero(is_meant)
        is_place = is_meant[layout.request]
        is_last = np.zeros(len(layout.request), np.bool_)
        is_last[layout.ends - 1] = True
        places = np.flatnonzero(is_place)
        drafts = np.flatnonzero(is_place[~is_last])
        ends = np.cumsum(np.diff(layout.ends, prepend=0)[requests])
        of_drafts = np.flatnonzero(~is_last[places])
        return _Requests(*map(torch.from_numpy, (requests, places, drafts, ends, of_drafts)))

    def _tell(self, few: _Requests, whole: _Requests, ids: Tensor) -> dict[str, Tensor | None]:
        """Returns the logits of whole places, and dense proposals of both: None without any."""
        dense, most_ids, own = self._judging.dense, self._borders.most_ids, self._ids
        ids = ids[few.places_of_drafts]
        parts = [Part("logits", self._own.dtype, self._borders.padded(self._own[whole.places]))]
        if dense is not None:
            local, here = ids - own.start, torch.zeros(ids.shape, dtype=torch.float32, device="cpu")
            is_here = (local >= 0) & (local < len(own))
            rows = few.drafts.unsqueeze(1).expand_as(ids)
            here[is_here] = dense[rows[is_here], local[is_here]]
            of_whole = self._borders.padded(dense[whole.drafts, : len(own)])
            parts += [Part("few", torch.float32, here), Part("whole", torch.float32, of_whole)]
        told = tell(self._exchange, parts)
        ranks = self._exchange.size
        logits = self._borders.joined(told["logits"].view(ranks, len(whole.places), most_ids))
        if dense is None:
            return {"few": None, "whole": None, "logits": logits}
        owners = torch.from_numpy(np.searchsorted(self._borders.ends, ids.numpy(), side="right"))
        of_ids = told["few"].view(ranks, *ids.shape).gather(0, owners.unsqueeze(0))[0]
        nothing = torch.zeros(len(ids), self._places.vocab_size, dtype=torch.float32, device="cpu")
        return {
            "few": nothing.scatter_(1, ids, of_ids),
            "whole": self._borders.joined(told["whole"].view(ranks, len(whole.drafts), most_ids)),
            "logits": logits,
        }

    def _judge(
        self,
        some: _Requests,
        logits: Tensor | None,
        edits: Mapping[str, Tensor],
        dense: Tensor | None,
        seeds: Tensor,
        result: Judged,
    ) -> None:
        """Judges some requests by logits of the whole vocabulary [places, vocab_size], and writes what they get."""
        parameters, (rule, proposals, keep_ties) = self._places.row_parameters(), self._judging
        parameters = parameters.for_operators(self._places.vocab_size)
        probabilities, candidates = dense, None
        if proposals.candidates is not None and proposals.probabilities is not None:
            probabilities, candidates = proposals.probabilities[some.drafts], proposals.candidates[some.drafts]
        result.token_ids[some.places], _, result.accepted[some.requests] = torch.ops.ascend_sample.verify_drafts(
            logits,
            self._draft_ids[some.drafts],
            some.ends,
            *(getattr(parameters, name)[some.places] for name in DISTRIBUTION),
            seeds[some.places],
            self._places.position[some.places],
            int(Purpose.DRAW),
            keep_ties,
            **edits,
            draft_probabilities=probabilities,
            draft_candidates=candidates,
            rule=rule,
            acceptance_purpose=int(Purpose.ACCEPTANCE),
            resampling_purpose=int(Purpose.RESAMPLING),
        )
