"""The benchmark of scores: its peer finds the same, and its promises are the ratios that it says."""

from __future__ import annotations

import pytest
import torch

from ascend_sample.sampling import score
from benchmarks import score as bench


def test_the_peer_finds_the_same() -> None:
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(0))
    token_ids = torch.arange(20)
    found, (given, best, ids) = score(logits, token_ids, bench.BEST), bench.peer(logits, token_ids)
    torch.testing.assert_close(found.logprobs, given.squeeze(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.best_logprobs, best, atol=1e-5, rtol=0)
    assert torch.equal(found.best_ids, ids)


def test_a_run_is_printed_with_its_limit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.distributions, "make", lambda name, rows, vocab_size: torch.randn(rows, vocab_size))
    found = bench.run(0.01, places=8, vocab_size=500)
    results = found["results"]
    assert set(results) == {bench.SCORE, bench.ENTROPY, bench.PEER, bench.READ}
    for gate, name in zip(found["gates"], (bench.SCORE, bench.ENTROPY), strict=True):
        assert gate["value"] == pytest.approx(results[bench.PEER]["median"] / results[name]["median"])
    bench.show(found)
    assert f"(at least {bench.AHEAD:g})" in capsys.readouterr().out
