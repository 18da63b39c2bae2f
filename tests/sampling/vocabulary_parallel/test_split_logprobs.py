"""Logprobs of split rows: the bits of rows that are not split, from what the ranks tell of their parts."""

from __future__ import annotations

import random

import pytest
import torch
from mixed_rows import MODES, Case, same, split, whole
from shard_ranks import said_in_a_step

from ascend_sample.sampling import SamplingParams

VOCAB_SIZE = 5000
KINDS = {
    "greedy": SamplingParams(temperature=0, logprobs=3),
    "top-k": SamplingParams(top_k=50, seed=1, logprobs=3),
    "top-k of one": SamplingParams(top_k=1, temperature=0.7, logprobs=3),
    "filters": SamplingParams(top_k=40, top_p=0.9, min_p=0.02, temperature=0.7, seed=2, logprobs=3),
    "no filter": SamplingParams(temperature=1.3, seed=3, logprobs=3),
    "min-p": SamplingParams(min_p=0.05, temperature=0.8, seed=4, logprobs=3),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, seed=5, logprobs=3),
    "bans": SamplingParams(bad_ids=list(range(2000)), seed=6, logprobs=3),
    "top-p": SamplingParams(top_p=0.8, seed=7, logprobs=3),
    "large k": SamplingParams(top_k=2000, seed=8, logprobs=3),
    "the token alone": SamplingParams(top_k=50, seed=9, logprobs=0),
    "none": SamplingParams(top_k=50, seed=10),
}
WIDTHS = {
    (2500, 2500): torch.bfloat16,
    (1024, 2048, 1928): torch.float16,
    (100, 200, 300, 100, 4300): torch.float32,
    (1, 1, 4998): torch.bfloat16,
    (5003, 5, 5): torch.float32,  # the last two have padding alone
}


def case_of(mode: str, widths: tuple[int, ...], dtype: torch.dtype, rows: int = 4, **options: object) -> Case:
    """Rows of every kind; some with -inf, NaN, +inf and equals."""
    generator = torch.Generator().manual_seed(len(widths))
    params = [params for params in KINDS.values() for _ in range(rows)]
    logits = 3 * torch.randn(len(params), VOCAB_SIZE, generator=generator)
    logits[1::rows] = logits[1::rows].round()
    strange = torch.rand(len(params), VOCAB_SIZE, generator=generator)
    logits[2::rows] = logits[2::rows].masked_fill(strange[2::rows] < 0.5, -torch.inf)
    logits[2::rows] = logits[2::rows].masked_fill(strange[2::rows] > 0.99, torch.nan)
    logits[3 :: 2 * rows, 77::1000] = torch.inf
    logits[3 + rows :: 2 * rows] = -torch.inf
    prompts = [list(range(row % 30)) for row in range(len(params))]
    return Case(logits.to(dtype), params, prompts, None, widths, {"logprobs_mode": mode, **options})


@pytest.mark.parametrize("mode", MODES)
def test_the_bits_of_rows_that_are_not_split(mode: str) -> None:
    for widths, dtype in WIDTHS.items():
        case = case_of(mode, widths, dtype)
        expected = whole(case)
        for found in split(case):
            for output, wanted in zip(found.outputs, expected, strict=True):
                assert same(output, wanted), widths


def test_many_logprobs_and_ties() -> None:
    """As many as a part has ids and more; with keep_ties; equals of which only some are among the best."""
    rng = random.Random(5)
    for mode in MODES:
        generator = torch.Generator().manual_seed(rng.randrange(99))
        logits = torch.randn(6, 300, generator=generator).mul(2).round()
        params = [SamplingParams(top_k=rng.choice((None, 7, 1)), seed=row, logprobs=row * 60) for row in range(6)]
        case = Case(logits, params, [[]] * 6, None, (7, 100, 193), {"logprobs_mode": mode, "keep_ties": mode[0] == "r"})
        expected = whole(case)
        for found in split(case):
            assert same(found.outputs[0], expected[0]), mode
            assert same(found.outputs[1], expected[1]), mode


# ---- what travels ----

ROWS, COUNT = 16, 5
LARGE = 40000
SAID = {
    # beside what the row's kind sends: collectives, bytes a row
    ("raw_logprobs", "top-k"): (2, 8 * COUNT + 4 + 12 * 20 + 2 * 1023 + 1 + 4),
    ("raw_logits", "top-k"): (2, 8 * COUNT + 4 + 1 + 4),
    ("processed_logprobs", "top-k"): (0, 0),
    ("processed_logits", "top-k"): (0, 0),
    ("raw_logprobs", "greedy"): (2, 8 * COUNT + 4 + 12 * 20 + 2 * 1023 + 1 + 4),
    ("raw_logprobs", "no filter"): (2, 8 * COUNT + 4 + 12 * 20 + 2 * 1023 + 1 + 4),
    ("processed_logprobs", "no filter"): (2, 8 * COUNT + 4 + 12 * 20 + 4 * 1023 + 1 + 4),
    ("processed_logits", "min-p"): (2, 8 * COUNT + 4 + 1 + 4),
}
ASKED = {
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(top_k=50, seed=1),
    "no filter": SamplingParams(seed=1),
    "min-p": SamplingParams(min_p=0.1, seed=1),
}


def said(mode: str, params: SamplingParams, logprobs: int | None) -> list[int]:
    """The bytes of each collective of a step."""
    logits = (4 * torch.randn(ROWS, LARGE, generator=torch.Generator().manual_seed(3))).bfloat16()
    return said_in_a_step(logits, SamplingParams(**{**params.to_mapping(), "logprobs": logprobs}), mode)


@pytest.mark.parametrize(("mode", "kind"), SAID)
def test_collectives_and_bytes(mode: str, kind: str) -> None:
    collectives, bytes_of_row = SAID[mode, kind]
    without, with_them = said(mode, ASKED[kind], None), said(mode, ASKED[kind], COUNT)
    assert len(with_them) - len(without) <= collectives
    assert sum(with_them) - sum(without) <= ROWS * bytes_of_row + 8 * collectives
    assert sum(with_them) < ROWS * LARGE // 2 * 2 / 8  # an eighth of the logits of a rank


def test_a_rank_that_the_best_tell_is_not_counted() -> None:
    """Greedy rows without equals: what they draw is among the best, and the next one is less."""
    logits = torch.arange(300.0).flip(0).expand(3, 300)
    batch_params = [SamplingParams(temperature=0, logprobs=2)] * 3
    case = Case(logits, batch_params, [[]] * 3, None, (100, 200), {})
    # Borders, requests, the draw, the best.
    assert [len(found.sent) for found in split(case, steps=1)] == [1 + 1 + 1 + 1] * 2
