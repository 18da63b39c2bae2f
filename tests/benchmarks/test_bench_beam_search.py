"""The benchmark of the beam search times a decoder that computes what it should, and counts all of a step."""

from __future__ import annotations

import pytest
import torch

from benchmarks import beam_search
from benchmarks.beam_search import SIZES, Decoder, Timed


@pytest.mark.parametrize("size", SIZES)
def test_its_decoder_with_a_cache_computes_what_it_does_without(size: str) -> None:
    torch.manual_seed(0)
    hidden = SIZES[size].hidden
    decoder = Decoder(SIZES[size], vocab_size=20, places=6).eval()
    memory = torch.randn(2, 2 * beam_search.LAYERS, hidden // 64, 5, 64)
    tokens = torch.randint(0, 20, (3, 4, 1))
    beams = torch.tensor([[1, 0, 3, 3], [0, 0, 2, 3], [1, 1, 2, 2]])
    cache = decoder.expand(decoder.prefill(torch.tensor([[3], [4]]), memory=memory).cache, 2)
    history = torch.tensor([3, 3, 4, 4])[:, None]
    for step in range(3):
        output = decoder.decode(tokens[step], decoder.reorder(cache, beams[step]))
        cache, history = output.cache, torch.cat((history[beams[step]], tokens[step]), dim=1)
    fresh = decoder.prefill(history[:, :1], memory=memory.repeat_interleave(2, dim=0))
    for place in range(1, 4):
        fresh = decoder.decode(history[:, place : place + 1], fresh.cache)
    torch.testing.assert_close(output.logits, fresh.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("finished", ["pool", "in_beam"])
def test_the_parts_of_a_step_are_the_step(finished: str) -> None:
    record = beam_search.measure("base", batch=2, beams=2, vocab_size=40, tokens=6, finished=finished)
    assert record["steps"] == 4
    assert all(seconds > 0 for seconds in record["medians"].values())
    assert 0 < record["search_share"] <= record["share"] < 1


def test_a_step_goes_from_the_end_of_a_pass_to_the_end_of_the_next() -> None:
    timed = Timed(Decoder(SIZES["base"], 10, 2), passes=[(0, 1), (3, 7)], moves=[(0, 0), (1.5, 2)])
    assert timed.steps() == [{"step": 6, "model": 4, "cache": 0.5, "search": 1.5}]


def test_verdicts() -> None:
    record = {"share": 0.09, "disturbed": 0.0}
    assert beam_search.verdict(record) == "pass"
    assert beam_search.verdict({**record, "share": 0.11}) == "FAIL"
    assert beam_search.verdict({**record, "disturbed": 0.9}).startswith("disturbed")


def test_a_search_without_a_step_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["beam_search", "--tokens", "2", "--batch", "1", "--vocab-size", "50"])
    with pytest.raises(SystemExit):
        beam_search.main()
    assert "--tokens: must be at least 3, got 2" in capsys.readouterr().err
