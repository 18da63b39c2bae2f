"""What the CPU kernel tells of tokens, and draws near to a probability: rows beside float64, whatever their filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from native_rows import Request, lists
from torch import Tensor

from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams, exponential_noise, filter_logits
from ascend_sample.sampling.draws.segmented import SEGMENT, lanes_of, segments_of
from ascend_sample.sampling.reference.states import adapted
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


def expected(logits: Tensor, temperature: float, fields: dict[str, Any]) -> Tensor:
    """The logarithms of the probabilities that rows are drawn with, float64 [rows, vocab_size]."""
    names = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    columns = {name: torch.full((len(logits),), number, dtype=names[name]) for name, number in fields.items()}
    kept = filter_logits(logits, temperature=torch.full((len(logits),), temperature), **columns) > -INF
    return torch.where(kept, logits.double() / temperature, -INF).log_softmax(1)


def winner(log_probs: Tensor, near: float, row: int) -> tuple[int, bool]:
    """The id that wins the races of a row, and whether rounding decides."""
    ids = (log_probs > -INF).nonzero()[:, 0].numpy()
    segments = segments_of(len(log_probs))
    weights = np.zeros((segments, SEGMENT))
    weights.reshape(-1)[ids] = adapted(log_probs.exp().numpy()[ids], near)
    lanes = exponential_noise(torch.tensor([row]), torch.tensor([0]), lanes_of(len(log_probs)))[0].double().numpy()
    scores = weights.sum(1) / lanes[SEGMENT : SEGMENT + segments]
    segment = int(scores.argmax())
    inside = weights[segment] / lanes[:SEGMENT]
    is_close = any((races >= races.max() * (1 - 1e-4)).sum() > 1 for races in (scores, inside))
    return segment * SEGMENT + int(inside.argmax()), is_close


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_tokens_and_what_is_told_of_them_are_those_of_float64(fields: dict[str, Any]) -> None:
    """Near to probabilities and, where a row asks for -1, as it would be drawn otherwise; listed or not."""
    for temperature, dtype in ((1.0, torch.float32), (0.7, torch.bfloat16), (0.7, torch.float16)):
        logits = logits_of(dtype)
        plain = drawn(logits, None, temperature, **fields)
        near = NEAR.clone()
        near[::3], near[1] = -1, NAN
        found, listed = (drawn(logits, near, temperature, wanted, **fields) for wanted in (False, True))
        assert plain["told"].shape == (0,)
        alike = drawn(logits, None, temperature, True, **fields)
        assert all(torch.equal(listed[name], alike[name]) for name in ("offsets", "ids", "log_probs", "counts"))
        assert all(torch.equal(found[name], listed[name]) for name in ("token_ids", "status", "told"))
        log_probs = expected(logits, temperature, fields)
        wanted = log_probs.gather(1, found["token_ids"].unsqueeze(1)).squeeze(1)
        wanted[1] = 0
        assert found["told"].tolist() == pytest.approx(wanted.tolist(), abs=2e-6, rel=1e-6)
        close = 0
        for row, token_id in enumerate(found["token_ids"].tolist()):
            if row % 3 == 0 or row == 1:
                assert token_id == plain["token_ids"][row]
                continue
            best, is_close = winner(log_probs[row], float(near[row]), row)
            close += is_close
            assert token_id == best or is_close, row
        assert close < ROWS / 4
        beyond, at_1 = (drawn(logits, torch.full((ROWS,), each), temperature, **fields) for each in (INF, 1.0))
        assert torch.equal(beyond["token_ids"], at_1["token_ids"])


@pytest.mark.parametrize("near", [0.1, 0.9])
def test_a_segment_may_win_by_all_of_its_ids_or_in_spite_of_its_best(near: float) -> None:
    """Half of the mass is one id's, which is far from 0.1 and leaves that to the equals beside it."""
    logits = torch.zeros(400, 20 * SEGMENT)
    logits[:, 2000] = 8.5
    log_probs = logits[0].double().log_softmax(0)
    tokens = drawn(logits, torch.full((400,), near))["token_ids"].tolist()
    assert tokens == [winner(log_probs, near, row)[0] for row in range(400)]
    assert len({token // SEGMENT for token in tokens}) > 1


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
