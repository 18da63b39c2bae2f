"""What becomes of a draft: the distribution of each place, which must be the target's, and greedy rows by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling, draw_from
from ascend_sample.decoding.speculation.acceptance import Draft, judge_draft
from ascend_sample.sampling import Purpose, SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value
from tests.decoding.speculation.test_speculative_exact import VOCAB_SIZE, with_seed

ROWS = 20_000
FROM_THE_MODEL = SamplingParams()
TARGET = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.0, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
DRAFT = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.4, 0.1, 0.4]])


def rows_with(seeds: Tensor) -> RowSampling:
    """Rows without filters."""
    return RowSampling([with_seed(FROM_THE_MODEL, seed) for seed in seeds.tolist()], VOCAB_SIZE, torch.device("cpu"))


def judged_places(target: Tensor, q: Tensor, *, draws: bool = True, seed: Tensor | None = None) -> list[np.ndarray]:
    """Counts of the tokens that rows got at each place, of the rows that got one there."""
    number = torch.arange(ROWS)
    seeds = number if seed is None else seed
    position = number * 5 if seed is not None else torch.full((ROWS,), 7)
    tokens = torch.stack(
        [
            draw_from(row.expand(ROWS, -1), seeds, position + place, Purpose.DRAFT) if draws else torch.full((ROWS,), 2)
            for place, row in enumerate(q)
        ],
        dim=1,
    )
    draft = Draft(tokens, torch.full((ROWS,), 2), q.expand(ROWS, -1, -1) if draws else None)
    accepted, token = judge_draft(target.log().expand(ROWS, -1, -1), draft, rows_with(seeds), position)
    places = torch.arange(3)
    got = torch.nn.functional.pad(tokens, (0, 1)).scatter(1, accepted[:, None], token[:, None])
    return [torch.bincount(got[places[place] <= accepted, place], minlength=4).numpy() for place in range(3)]


def assert_places_are_the_targets(places: list[np.ndarray], target: Tensor) -> None:
    for counts, expected in zip(places, target.double().numpy(), strict=False):
        assert counts.sum() > 0
        assert p_value(counts, expected) > SMALLEST_P_VALUE, counts


@pytest.mark.parametrize("draws", [True, False])
def test_each_place_has_the_targets_distribution(draws: bool) -> None:
    assert_places_are_the_targets(judged_places(TARGET, DRAFT, draws=draws), TARGET)


def test_greedy_rows_by_hand() -> None:
    """By their best tokens alone, the lowest among equals; NaN is no token, and q does not matter."""
    nan = float("nan")
    target = torch.tensor([[[0.0, 2.0, 2.0], [nan, 0.0, 1.0], [5.0, 0.0, 0.0]]]).expand(4, -1, -1)
    draft = Draft(torch.tensor([[1, 2], [2, 2], [1, 0], [1, 2]]), torch.tensor([2, 2, 2, 1]))
    rows = RowSampling([SamplingParams(temperature=0)] * 4, 3, target.device)
    for q in (None, torch.full((4, 2, 3), 1 / 3)):
        accepted, token = judge_draft(target, draft._replace(probabilities=q), rows, torch.zeros(4).long())
        assert accepted.tolist() == [2, 0, 1, 1]
        assert token.tolist() == [0, 1, 2, 2]


def test_one_seed_at_many_positions_is_as_random_as_many_seeds() -> None:
    """Seed 0 is a seed as any."""
    for seed in (0, 5):
        assert_places_are_the_targets(judged_places(TARGET, DRAFT, seed=torch.full((ROWS,), seed)), TARGET)


def test_an_empty_residual_gives_a_draw_from_the_target() -> None:
    """Rounding can make p <= q everywhere though the draft was rejected; here it is q that says too much."""
    target, q = TARGET[:2].expand(ROWS, -1, -1), torch.ones(ROWS, 1, 4)
    draft = Draft(torch.zeros(ROWS, 1, dtype=torch.int64), torch.ones(ROWS, dtype=torch.int64), q)
    accepted, token = judge_draft(target.log(), draft, rows_with(torch.arange(ROWS)), torch.zeros(ROWS).long())
    counts = torch.bincount(token[accepted == 0], minlength=4).numpy()
    assert p_value(counts, TARGET[0].double().numpy()) > SMALLEST_P_VALUE


def test_rows_do_not_depend_on_their_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(64, 4, VOCAB_SIZE, generator=generator).softmax(2)
    q = torch.rand(64, 3, VOCAB_SIZE, generator=generator).softmax(2)
    tokens = torch.randint(VOCAB_SIZE, (64, 3), generator=generator)
    counts, seed, position = torch.arange(64) % 4, torch.arange(64) * 77, torch.arange(64) % 5
    whole = judge_draft(target.log(), Draft(tokens, counts, q), rows_with(seed), position)
    for row in range(64):
        one = slice(row, row + 1)
        draft = Draft(tokens[one], counts[one], q[one])
        alone = judge_draft(target[one].log(), draft, rows_with(seed[one]), position[one])
        assert (alone.accepted.item(), alone.token.item()) == (whole.accepted[row].item(), whole.token[row].item())


PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=1e-6),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(top_p=0.6),
    SamplingParams(top_k=5, top_p=0.5, min_p=0.1, temperature=1.5),
    SamplingParams(min_p=0.3),
    SamplingParams(top_k=100),
]


def test_probabilities_of_all_places_at_once_are_those_of_each(device: str) -> None:
    rows = RowSampling(PARAMS, 9, torch.device(device))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = (torch.randn(len(PARAMS), 3, 9, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
        given = logits.to(device, copy=True)
        found = rows.probabilities(given).cpu()
        for row, params in enumerate(PARAMS):
            for place in range(3):
                expected = target_distribution(logits[row, place].float().numpy(), params)
                np.testing.assert_allclose(found[row, place].numpy(), expected, atol=2e-6)
        assert given.cpu().equal(logits), "logits stay as they are"
