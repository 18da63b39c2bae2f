"""The segmented draw where ranks have parts of rows: each tells its leads, and all find the winner of the same bytes.

A rank adds up its own part of a segment that crosses its border. Sums of parts are not rounded as the whole one is, and
before the first collective a rank weighs by the maximum of its own part. So a winner counts where nothing comes near:
within what rounding can do, a row stays open, and is drawn from its gathered logits as if it were not split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.draws.segmented import SEGMENT
from ascend_sample.sampling.vocabulary_parallel.kinds import Booleans
from ascend_sample.sampling.vocabulary_parallel.messages import Part
from ascend_sample.sampling.vocabulary_parallel.shard import Borders

NEAR: Final = 1e-9
"""Weights in float64 differ by less, whatever they are relative to, and sums of a segment's in any order."""
NEAR_DIVIDED: Final = 6e-5
"""So much where logits are divided by a temperature in float32 after another maximum has been subtracted.

The two roundings move a quotient q by q / 2^23 at most. What has a chance of being drawn has q < 110, as noise lies
between 2^-64 and 45; two candidates, weighed twice: 4 * 110 / 2^23.
"""
LEADS: Final = 3
"""Of a part: the first segment, the best of those between, and the last one."""
NUMBERS: Final = 6
SCORE, MOST, OTHER, PLACE, MOST_PLACE, OTHER_PLACE = range(6)

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


class Decision(NamedTuple):
    """Who wins, as far as that is certain.

    Attributes:
        token_ids: int64 [rows].
        is_open: of each row, whether the winner may be another one.
    """

    token_ids: npt.NDArray[np.int64]
    is_open: Booleans


def no_leads(rows: int) -> tuple[Tensor, Tensor]:
    """Returns leads and ids of zero, in the shapes that `shard_leads` gives them: what rows of no ids have."""
    leads = torch.zeros(rows, LEADS, NUMBERS, dtype=torch.float64, device="cpu")
    return leads, torch.zeros(rows, LEADS, dtype=torch.int64, device="cpu")


def told(leads: Tensor, token_ids: Tensor, first_id: int, near: Tensor) -> list[Part]:
    """Returns what a rank tells of its leads: 88 bytes a row.

    Args:
        leads: float64 [rows, 3, 6] from `shard_leads`.
        token_ids: int64 [rows, 3], in the part.
        first_id: of the part.
        near: float64 [rows], the share of a score within which another one is near.
    """
    enough = 1 - near.view(-1, 1)
    is_open = (leads[..., PLACE] <= 0) | (leads[..., OTHER_PLACE] >= leads[..., PLACE] * enough)
    between = leads[:, 1]
    is_open[:, 1] |= between[:, OTHER] >= between[:, SCORE] * enough[:, 0]
    return [
        Part("race_scores", torch.float64, leads[..., [SCORE, MOST]]),
        Part("race_places", torch.float64, leads[..., MOST_PLACE]),
        Part("race_ids", torch.int32, token_ids + first_id),
        Part("race_flags", torch.int8, is_open),
    ]


def decide(numbers: Mapping[str, Tensor], log_scales: Floats, near: Floats, borders: Borders) -> Decision:
    """Finds the winners among the leads of all ranks.

    Args:
        numbers: what each rank has told, by name.
        log_scales: [ranks, rows], the logarithm of what a rank's weights are to be multiplied with: -inf for those of
            rows without any.
        near: [rows], as for `told`.
        borders: of the ranks.
    """
    ranks, rows = log_scales.shape
    scale = np.exp(np.minimum(log_scales, 0.0))
    scores = numbers["race_scores"].view(ranks, rows, LEADS, 2).numpy() * scale[:, :, None, None]
    places = numbers["race_places"].view(ranks, rows, LEADS).numpy() * scale[:, :, None]
    ids = numbers["race_ids"].view(ranks, rows, LEADS).numpy()
    flags = numbers["race_flags"].view(ranks, rows, LEADS).numpy() != 0

    # Each candidate is a segment, whole or of the parts that ranks have of it: [members of the candidate].
    candidates = [[(rank, 1)] for rank in range(ranks)]
    shared: dict[int, list[tuple[int, int]]] = {}
    for rank, (first, end) in enumerate(zip(borders.firsts, borders.ends, strict=True)):
        if first < end:
            shared.setdefault(first // SEGMENT, []).append((rank, 0))
            if (end - 1) // SEGMENT > first // SEGMENT:
                shared.setdefault((end - 1) // SEGMENT, []).append((rank, 2))
    candidates += shared.values()

    least, most, best_ids, is_open = (np.zeros((len(candidates), rows), kind) for kind in (float, float, int, bool))
    every = np.arange(rows)
    for index, members in enumerate(candidates):
        of_ranks, of_leads = (list(each) for each in zip(*members, strict=True))
        least[index] = scores[of_ranks, :, of_leads, 0].sum(0)
        most[index] = scores[of_ranks, :, of_leads, 1].sum(0)
        of_members = places[of_ranks, :, of_leads]
        winner = of_members.argmax(0)
        best_ids[index] = ids[of_ranks, :, of_leads][winner, every]
        is_open[index] = flags[of_ranks, :, of_leads][winner, every]
        if len(members) > 1:
            best = of_members[winner, every]
            of_members = of_members.copy()
            of_members[winner, every] = -1
            is_open[index] |= of_members.max(0) >= best * (1 - near)
    winner = least.argmax(0)
    score = least[winner, every]
    most[winner, every] = -1
    undecided = is_open[winner, every] | (score <= 0) | (most.max(0) >= score * (1 - near))
    return Decision(best_ids[winner, every], undecided)
