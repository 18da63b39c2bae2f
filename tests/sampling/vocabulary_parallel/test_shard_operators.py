"""The CPU kernel's race of segments of a part of the vocabulary: the draw of whole rows, by parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ascend_sample.sampling import Purpose, exponential_noise
from ascend_sample.sampling.draws.segmented import SEGMENT

OPERATORS = torch.ops.ascend_sample
ROWS = 40
EVERY = torch.arange(ROWS)


def keys_of(first_id: int, maximum: torch.Tensor, **named: Any) -> tuple[Any, ...]:
    """Arguments that follow the logits; rows have min-p and temperatures in turn."""
    temperature, min_p = 0.5 + EVERY % 2, 0.02 * (EVERY % 3)
    options = {"temperature": temperature, "min_p": min_p} | named
    return (first_id, maximum, options["temperature"], options["min_p"], EVERY, 2 * EVERY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("end", [1, 2, 6])  # segments of the first part
def test_the_best_of_the_winners_is_the_draw_of_whole_rows(dtype: torch.dtype, end: int) -> None:
    vocab_size = 7 * SEGMENT - 9
    logits = 3 * torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(end))
    logits[1, ::3], logits[1, 1::7] = -torch.inf, torch.nan
    logits[2, [5, 300, 1700]] = torch.inf
    logits[3] = -torch.inf
    logits[4, : end * SEGMENT] = -torch.inf
    logits = logits.to(dtype)
    maximum = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(1)
    scores, ids = [], []
    for first, stop in ((0, end * SEGMENT), (end * SEGMENT, vocab_size)):
        found = OPERATORS.segment_winners(logits[:, first:stop], *keys_of(first, maximum), Purpose.DRAW)
        scores.append(found[0])
        ids.append(found[1] + first)
    best = torch.stack(scores).argmax(0, keepdim=True)
    drawn = torch.stack(ids).gather(0, best)[0]
    _, _, temperature, min_p, seed, position = keys_of(0, maximum)
    off = torch.full((ROWS,), -1, dtype=torch.int32), torch.ones(ROWS)
    request = (temperature, *off, min_p, seed, position, Purpose.DRAW, False)
    expected = OPERATORS.sample_rows(logits, None, *request)[0]
    assert torch.equal(drawn, expected)
    assert [float(each[3]) for each in scores] == [0, 0]  # nothing has weight there
    assert float(scores[0][4]) == 0


def test_scores_are_sums_of_weights_over_noise() -> None:
    first, segments = 3 * SEGMENT, 4
    logits = torch.randn(ROWS, segments * SEGMENT, generator=torch.Generator().manual_seed(1))
    maximum = logits.amax(1) + EVERY % 2  # of whole rows
    named = {"temperature": torch.ones(ROWS), "min_p": torch.zeros(ROWS)}
    scores, ids = OPERATORS.segment_winners(logits, *keys_of(first, maximum, **named))
    weights = (logits.double() - maximum.double().unsqueeze(1)).exp().view(ROWS, segments, SEGMENT)
    noise = exponential_noise(EVERY, 2 * EVERY, SEGMENT * (segments + 4)).double()
    expected, winner = (weights.sum(2) / noise[:, SEGMENT + 3 : SEGMENT + 3 + segments]).max(1)
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)
    place = (weights[EVERY, winner] / noise[:, :SEGMENT]).argmax(1)
    assert torch.equal(ids, winner * SEGMENT + place)


def test_nothing_wins_beside_a_maximum_that_is_none() -> None:
    logits = torch.randn(ROWS, 300, generator=torch.Generator().manual_seed(2))
    for maximum in (torch.nan, torch.inf):
        scores, ids = OPERATORS.segment_winners(logits, *keys_of(0, torch.full((ROWS,), maximum)))
        assert not scores.any()
        assert not ids.any()
