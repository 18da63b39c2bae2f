"""What examples/flattening.py measures: against the package's references, and against the figures of the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ascend_sample.reference import top_k_top_p_sample_trace
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.support.user_process import EXAMPLES, TRAINING_LIMIT_SECONDS, run_as_user

pytest.importorskip("tokenizers", reason="the language model's subword vocabulary needs the tokenizers package")

import flattening

PUBLISHED = json.loads((EXAMPLES.parent / "docs" / "flattening.json").read_text())


@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_distributions_are_those_of_the_references(top_p: float) -> None:
    logits = torch.randn(5, 200, generator=torch.Generator().manual_seed(1)) * 2
    pair = flattening.distributions(flattening.ranked_probabilities(logits), top_p)
    for row, trace in enumerate(top_k_top_p_sample_trace(logits, k=None, p=top_p)):
        exact = target_distribution(logits[row].numpy(), SamplingParams(top_p=top_p))
        torch.testing.assert_close(pair.exact[row], torch.from_numpy(exact).sort(descending=True).values)
        weights = trace.weights.double() / trace.weights.double().sum()
        torch.testing.assert_close(pair.operator[row, : trace.n_kept], weights, rtol=1e-5, atol=0)
        assert int((pair.operator[row] > 0).sum()) == trace.n_kept


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
def test_as_a_user_runs_it(tmp_path: Path) -> None:
    """Of a model that is trained for a moment."""
    file = tmp_path / "flattening.json"
    output = run_as_user(
        str(EXAMPLES / "flattening.py"), "--draws", "2000", "--json", str(file), seconds=TRAINING_LIMIT_SECONDS
    )
    assert "tokens are kept" in output
    figures = json.loads(file.read_text())
    assert figures["contexts"] > 1000
    for measured, published in zip(figures["table"], PUBLISHED["table"], strict=True):
        assert (measured["temperature"], measured["top_p"]) == (published["temperature"], published["top_p"])
        assert 0 <= measured["best_operator"] <= measured["best_exact"] <= 1  # the operator's draws are flatter
        assert 0 <= measured["best_exact"] - measured["best_operator"] <= measured["distance"] <= 1
    assert all(sum(counts) == figures["contexts"] for counts in figures["histograms"])
    shown = figures["shown"]
    for counts, shares in (("drawn_by_layer", "exact"), ("drawn_by_operator", "operator")):
        for count, share in zip(shown[counts], shown[shares], strict=True):
            assert abs(count / 2000 - share) < 5 * (share * (1 - share) / 2000) ** 0.5 + 1e-3
