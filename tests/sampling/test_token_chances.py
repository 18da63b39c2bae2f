"""What the CPU kernel tells of tokens, and draws near to a probability: rows beside float64, whatever their filters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kept_oracle import Race
from native_rows import Request, lists
from state_rows import acceptable_tokens
from torch import Tensor

from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.draws.segmented import SEGMENT
from ascend_sample.sampling.rows.parameters import LARGEST_FRACTION

NAN, INF = torch.nan, torch.inf
ROWS, VOCAB_SIZE = 24, 5000
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20, "top_p": 0.9},
    {"top_k": 300},
    {"top_k": 2000},
    {"min_p": 0.05},
    {"min_p": 1e-5},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"min_p": LARGEST_FRACTION},
    {"top_k": 1},
)
NEAR = torch.tensor((0.5, 0.0, 1.0, 0.02)).repeat(ROWS // 4)


def logits_of(dtype: torch.dtype) -> Tensor:
    """Rows of all shapes: many ids of little, a few of much, and equals."""
    scales = torch.logspace(-1, 1, ROWS).unsqueeze(1)
    rows = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * scales
    rows[::5] = rows[::5].round()
    rows[3, 100:4000] = -INF
    return rows.to(dtype)


def drawn(logits: Tensor, near: Tensor | None, temperature: float = 1.0, wanted: bool = False, **fields: Any) -> Any:
    """What the operator tells, by name, of rows whose seeds are their places; half of them are listed, or none."""
    count = len(logits)
    request = Request(temperature, fields.get("top_k", 0), fields.get("top_p", 1.0), fields.get("min_p", 0.0))
    key = {"seed": torch.arange(count), "position": torch.zeros(count, dtype=torch.int64)}
    is_wanted = torch.arange(count) % 2 == (0 if wanted else 2)
    found = torch.ops.ascend_sample.sample_kept_rows(
        logits, None, is_wanted, **lists([request] * count), **key, near=near
    )
    return dict(zip(("token_ids", "status", "offsets", "ids", "log_probs", "counts", "told"), found, strict=True))


def check(row: Tensor, seed: int, near: float, found: dict[str, Any], temperature: float = 1.0, **fields: Any) -> None:
    """Raises unless a row draws and tells what float64 does, but for rounding; below 0 and NaN any token will do."""
    token_id, told = int(found["token_ids"][seed]), float(found["told"][seed])
    wanted = near if near >= 0 else 0.0
    params = SamplingParams(temperature=temperature, adaptive_target=wanted, seed=seed, **fields)
    race = Race(row.double().numpy(), params, 0)
    ids = next(ids for ids in race.sets() if token_id in ids)
    log_prob = race.log_probs(ids)[ids.index(token_id)]
    assert told == (0 if near != near else pytest.approx(log_prob, abs=2e-6, rel=1e-6)), seed
    assert not near >= 0 or token_id in acceptable_tokens(params, race, (wanted, 1.0), 1e-4), seed


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_tokens_and_what_is_told_of_them_are_those_of_float64(fields: dict[str, Any]) -> None:
    """Near to probabilities and, where a row asks for -1, as it would be drawn otherwise; listed or not."""
    for temperature, dtype in ((1.0, torch.float32), (0.7, torch.bfloat16), (0.7, torch.float16)):
        logits = logits_of(dtype)
        near = NEAR.clone()
        near[::3], near[1] = -1, NAN
        found, listed = (drawn(logits, near, temperature, wanted, **fields) for wanted in (False, True))
        assert all(torch.equal(found[name], listed[name]) for name in ("token_ids", "status", "told"))
        plain = drawn(logits, None, temperature, True, **fields)
        assert plain["told"].shape == (0,)
        assert all(torch.equal(listed[name], plain[name]) for name in ("offsets", "ids", "log_probs", "counts"))
        is_plain = ~(near >= 0)
        assert torch.equal(found["token_ids"][is_plain], plain["token_ids"][is_plain])
        for row, wanted in enumerate(near.tolist()):
            check(logits[row], row, wanted, found, temperature, **fields)
        beyond, at_1 = (drawn(logits, torch.full((ROWS,), each), temperature, **fields) for each in (INF, 1.0))
        assert torch.equal(beyond["token_ids"], at_1["token_ids"])


@pytest.mark.parametrize("near", [0.1, 0.9])
def test_a_segment_may_win_by_all_of_its_ids_or_in_spite_of_its_best(near: float) -> None:
    """Half of the mass is one id's, which is far from 0.1 and leaves that to the equals beside it."""
    logits = torch.zeros(200, 8 * SEGMENT)
    logits[:, 2000] = 7.6
    found = drawn(logits, torch.full((200,), near))
    for row in range(200):
        check(logits[row], row, near, found)
    assert near > 0.5 or len(set((found["token_ids"] // SEGMENT).tolist())) > 1


@pytest.mark.parametrize("near", [-1.0, 0.0, 0.5])
def test_at_an_infinite_temperature_all_above_minus_infinity_are_alike(near: float) -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    logits[:, ::3] = -INF
    found = drawn(logits, torch.full((4,), near), temperature=INF)
    assert (found["token_ids"] % 3 > 0).all()
    torch.testing.assert_close(found["told"], torch.full((4,), 1 / 2000).log())


def test_rows_that_are_not_as_they_should_be() -> None:
    logits = torch.tensor([[0.0, NAN, -1.0], [-INF] * 3, [1.0, INF, INF], [-INF, 2.0, -INF], [1.0, 2.0, 3.0]])
    found = drawn(logits, torch.full((5,), 0.3))
    assert found["status"].tolist() == [RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.INF_SEEN, 0, 0]
    assert found["told"][:4].tolist() == [0] * 4
    assert torch.equal(found["token_ids"][:4], drawn(logits, None)["token_ids"][:4])
    greedy = drawn(logits, torch.full((5,), 0.3), temperature=0.0)
    assert greedy["token_ids"].tolist() == [0, 0, 1, 1, 2]
    assert greedy["told"].tolist() == [0] * 5


def test_a_state_that_was_set_counts_in_the_next_step() -> None:
    """Also where nothing else has changed since the last one."""
    params = SamplingParams(adaptive_target=0.5, adaptive_decay=0.0, seed=3)
    logits = torch.tensor([[0.02, 0.9, 0.08]]).log().repeat(200, 1)
    batch = SamplingBatch(vocab_size=3)
    batch.extend([params] * 200, positions=range(200))
    Sampler()(logits, batch, advance=False)
    for missing, likely in ((0.0, 0), (1.0, 1)):
        for row in range(200):
            batch.states[row] = (1 - missing, 1.0)
        tokens = Sampler()(logits, batch, advance=False).token_ids
        assert int((tokens == likely).sum()) > 80
    assert int((tokens == 1).sum()) > 150
