"""The benchmark of the decoder's layers: both ways compute the same, and the figures go where they belong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_sample.decoding import DecoderConfig
from benchmarks import decoder_layer
from benchmarks.decoder_layer import MARKS, OURS, PLAIN, Case


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=2)
    for name, value in {"CONFIG": config, "STEPS": 5, "MEMORY": 3, "CASES": (Case(2, 1), Case(2, 3))}.items():
        monkeypatch.setattr(decoder_layer, name, value)


def test_both_are_timed_and_agree() -> None:
    found = decoder_layer.measure(repeats=1)
    assert json.loads(json.dumps(found)) == found
    assert [record["case"] for record in found["records"]] == [{"prompts": 2, "beams": 1}, {"prompts": 2, "beams": 3}]
    assert all(record["medians"][name] > 0 for record in found["records"] for name in (OURS, PLAIN))


def test_what_does_not_agree_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_layer.PlainDecoder, "reorder", lambda self, cache, index: cache)
    with pytest.raises(RuntimeError, match=r"decoder_layer: logits must agree within 0\.001, got"):
        decoder_layer.measure(repeats=1)


def test_figures_go_between_their_marks(tmp_path: Path) -> None:
    records = [
        {"case": {"prompts": 4, "beams": 1}, "medians": {OURS: 0.002, PLAIN: 0.003}, "disturbed": 0.01},
        {"case": {"prompts": 4, "beams": 2}, "medians": {OURS: 0.004, PLAIN: 0.01}, "disturbed": None},
    ]
    environment, options = {"processor": "a processor, 2 cores"}, {"repeats": 9, "threads": 2}
    document = tmp_path / "page.md"
    begin, end = (f"<!-- {MARKS}: {which} -->" for which in ("begin", "end"))
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    decoder_layer.publish({"environment": environment, "options": options, "records": records}, document)
    text = document.read_text()
    assert text.startswith(f"before\n{begin}\n`python -m benchmarks.decoder_layer` on a processor, 2 cores, 2 threads")
    assert "| 4 | 2.00 ms | 3.00 ms | 1.50x | 1% |\n" in text
    assert "| 4 x 2, rows reordered at each step | 4.00 ms | 10.0 ms | 2.50x | unknown |\n" in text
    assert text.endswith(f"|\n{end}\nafter\n")
    assert decoder_layer.DOCUMENT.read_text().count(begin) == decoder_layer.DOCUMENT.read_text().count(end) == 1
