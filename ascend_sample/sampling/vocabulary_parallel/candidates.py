"""The verb `candidates`: rows that the first k logits of each rank decide, greedy ones and those with top-k."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.step.serving import Placement, draw_tokens
from ascend_sample.sampling.vocabulary_parallel.exchange import Field
from ascend_sample.sampling.vocabulary_parallel.rows_of_verb import OwnPart, RowsOfVerb


class CandidateRows:
    """Rows that the first ``count`` logits of each rank decide.

    Args:
        of: The rows.
        like: A tensor on the device of the logits, in the dtype of these rows.
        count: The largest top-k of these rows.
        ranks: Number of ranks.
    """

    def __init__(self, of: RowsOfVerb, like: Tensor, count: int, ranks: int) -> None:
        self.of, self._count = of, count
        candidates = like.new_empty(()).expand(len(of.rows), ranks * count)
        self._placement = Placement.of(of.parameters, candidates, keep_ties=False)

    def fields(self, own: OwnPart) -> list[Field]:
        """Returns the message of a rank: its candidates, a logit and 4 bytes each, and its largest logit."""
        values, ids, largest = self.of.first(self.of.select(own.logits), self._count)
        return [
            self.of.field("values", values),
            self.of.field("ids", ids + own.ids.start, torch.int32),
            self.of.field("largest", largest),
        ]

    def draw(self, fields: Mapping[str, Tensor], batch: SamplingBatch, purpose: Purpose) -> Tensor:
        """Draws as from rows that have these candidates alone, in the order of whole rows: int64 [rows].

        Equal values stay in the order of the ranks, whose ids ascend.
        """
        values, ids = (self.of.gathered(fields, name).transpose(0, 1).flatten(1) for name in ("values", "ids"))
        keys = self.of.keys(batch)
        position = torch.from_numpy(keys.position) if values.is_cpu else None
        indices = draw_tokens(values, self._placement, position, purpose, keys)
        return ids.gather(1, indices.unsqueeze(1)).squeeze(1).to(torch.int64)
