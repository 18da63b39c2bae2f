"""Scores of given texts: beside float64, place by place, in chunks, and in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from test_row_logprobs import DTYPES, SPECIAL_ROWS, in_float64, logits_with_ties
from torch import Tensor

from ascend_sample.sampling import Scores, score, scoring
from tests.support.emulation import nobody_waits
from tests.support.warm_python import run_warm


def check(logits: Tensor, token_ids: Tensor, n: int, device: str = "cpu", chunks: list[int] | None = None) -> Scores:
    there = logits.to(device)
    given = there if chunks is None else iter(there.split(chunks))
    found = score(given, token_ids.to(device), n, entropy=True)
    assert found.entropy is not None
    expected = in_float64(logits, token_ids, n)
    numbers = torch.cat((found.logprobs.unsqueeze(1), found.best_logprobs), 1).cpu()
    close: dict[str, Any] = {"atol": 1e-6, "rtol": 2**-24}
    torch.testing.assert_close(numbers.double(), expected.values.float().double(), **close)
    torch.testing.assert_close(found.entropy.cpu().double(), expected.entropies, **close)
    assert torch.equal(found.best_ids.cpu(), expected.token_ids[:, 1:])
    assert torch.equal(found.ranks.cpu(), expected.ranks)
    return found


def places(logits: Tensor, seed: int = 0) -> Tensor:
    return torch.randint(logits.shape[1], (len(logits),), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_those_of_float64(dtype: torch.dtype, device: str) -> None:
    for rows, vocab_size, n in ((300, 3, 3), (100, 128, 0), (50, 1000, 7)):
        logits = logits_with_ties(rows, vocab_size, dtype)
        check(logits, places(logits), n, device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_rows(dtype: torch.dtype) -> None:
    for token in range(5):
        check(SPECIAL_ROWS.to(dtype), torch.full((len(SPECIAL_ROWS),), token), 4)


def test_chunks_of_any_length(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_with_ties(40, 300, torch.bfloat16)
    whole = check(logits, places(logits), 3, device)
    monkeypatch.setattr(scoring, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(scoring, "DEVICE_BYTES", 4 * 300 * 7)
    for chunks in ([40], [1, 20, 0, 19], [8] * 5):
        for one, other in zip(check(logits, places(logits), 3, device, chunks), whole, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6 if device != "cpu" else 0, rtol=0)


def test_nothing_is_read_from_a_device(accelerator: str) -> None:
    logits, token_ids = torch.randn(20, 500).to(accelerator), torch.full((20,), -100).to(accelerator)
    score(logits, token_ids, 4, entropy=True)
    with nobody_waits(accelerator):
        score(logits, token_ids, 4, entropy=True)


@pytest.mark.parametrize("chunks", [None, [1, 2, 1]])
def test_what_is_no_id_has_a_probability_of_0(chunks: list[int] | None, device: str) -> None:
    """Labels that do not count, beside others, whose scores stay as they are: also in a row of -inf, and at an end."""
    row = [0.1, 0.2, 0.3, 0.4]
    logits = torch.tensor([row, row, [0.0] * 4, row]).log().to(device)
    plain = score(logits, torch.zeros(4).long().to(device), 1, entropy=True)
    for no_id in (-100, -1, 4, 2**62):
        given = logits if chunks is None else iter(logits.split(chunks))
        found = score(given, torch.tensor([1, no_id, no_id, 3]).to(device), 1, entropy=True)
        torch.testing.assert_close(found.logprobs.exp().cpu(), torch.tensor([0.2, 0.0, 0.0, 0.4]))
        assert found.ranks.tolist() == [3, 4, 4, 1]
        assert found.best_ids.flatten().tolist() == [3, 3, 0, 3]
        assert all(map(torch.equal, found[2:], plain[2:]))


def test_no_places() -> None:
    found = score(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), 2, entropy=True)
    assert [tuple(each.shape) for each in found if each is not None] == [(0,), (0,), (0, 2), (0, 2), (0,)]
    assert score([], torch.empty(0, dtype=torch.int64)).logprobs.shape == (0,)


ROWS, IDS = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("logits", "token_ids", "options", "error", "says"),
    [
        (ROWS, IDS.int(), {}, TypeError, r"token_ids must be an int64 tensor, got torch.int32\. Convert"),
        (ROWS, [0, 1], {}, TypeError, r"token_ids must be an int64 tensor, got list\. .*torch\.as_tensor"),
        (IDS, ROWS, {}, TypeError, r"token_ids must be an int64 tensor, .* Call score\(logits, token_ids\)"),
        (ROWS, IDS.view(1, 2), {}, ValueError, r"token_ids must have shape \[places\], got \[1, 2\]"),
        (ROWS, IDS[:1], {}, ValueError, "logits must have a row for each of 1 ids, got 2 or more"),
        ([ROWS, ROWS], torch.zeros(5, dtype=torch.int64), {}, ValueError, "for each of 5 ids, got 4"),
        (ROWS.double(), IDS, {}, TypeError, "logits must be float32, float16 or bfloat16"),
        ([ROWS[0]], IDS, {}, ValueError, r"logits must have shape \[rows, vocab_size\]"),
        (ROWS, IDS, {"n": 6}, ValueError, r"n must be in \[0, 5\], got 6"),
        (ROWS, IDS, {"n": 2**40}, ValueError, r"n must be in \[0, 1048576\], got 1099511627776"),
        (None, IDS, {}, TypeError, "logits must be a tensor, or chunks of one, got NoneType None"),
        (ROWS, IDS, {"shard": 5}, TypeError, "shard must be a VocabularyShard, got int 5"),
        (ROWS, IDS, {"entropy": 1}, TypeError, "entropy must be True or False"),
    ],
)
def test_wrong_calls(logits: Any, token_ids: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^score: .*{says}"):
        score(logits, token_ids, **options)


PEAK = """
import resource, sys
import ascend_sample, torch
from ascend_sample.sampling import score
torch.set_num_threads(1)
places, vocab_size, n = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
few = torch.randn(64, vocab_size).to(torch.bfloat16)
score(few, torch.zeros(64, dtype=torch.int64), n, entropy=True)
logits, token_ids = few.repeat(places // 64, 1), torch.zeros(places, dtype=torch.int64)
for call in (lambda: score(logits, token_ids, n, entropy=True), lambda: logits.float()):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = call()
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
    del found
"""
CONSTANT = 48 * 2**20


def test_memory_beyond_the_logits() -> None:
    """16 (n + 4) bytes a place, and a constant; the float32 logits take 128 MB, which the measure sees."""
    places, vocab_size, n = 6_400, 5000, 8
    root = Path(__file__).resolve().parents[2]
    done = run_warm(["-c", PEAK, *map(str, (places, vocab_size, n))], os.environ, root, seconds=300)
    assert done.returncode == 0, done.stderr
    scored, converted = map(int, done.stdout.split())
    assert scored <= 16 * (n + 4) * places + CONSTANT < converted
