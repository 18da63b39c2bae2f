"""The table of a running vLLM: what it says of figures, and where it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import running_vllm, vllm_engine
from benchmarks.command import fill_between
from benchmarks.running_vllm import OWN, PLUGIN


def figures(sampling: float, share: float, speed: float) -> dict[str, dict[str, float]]:
    return {
        kind: {"sampling": sampling, "share": share, "tokens a second": speed + place}
        for place, kind in enumerate(vllm_engine.KINDS)
    }


def test_promises_are_of_the_worst_kind() -> None:
    own, plugin = figures(0.1, 0.5, 100), figures(0.002, 0.01, 150)
    plugin["min-p 0.05"]["sampling"] = 0.02
    plugin["greedy"] |= {"sampling": 0.1, "tokens a second": 98.0}
    parts, speeds = running_vllm.judge({OWN: own, PLUGIN: plugin})
    assert (parts.value, parts.worst, parts.verdict) == (5, "min-p 0.05", "FAIL")  # greedy rows are not filtered
    assert (speeds.value, speeds.worst, speeds.verdict) == (0.98, "greedy", "pass")
    assert "greedy" not in vllm_engine.FILTERED
    assert "5 logprobs, top-k 50, top-p 0.9" in vllm_engine.FILTERED


def test_published_between_its_marks(tmp_path: Path) -> None:
    engines = {OWN: figures(0.1, 0.5, 100), PLUGIN: figures(0.002, 0.01, 150)}
    gates = [gate.to_json() for gate in running_vllm.judge(engines)]
    found: dict[str, Any] = {"environment": {"processor": "a processor, 2 cores"}, "engines": engines, "gates": gates}
    text = running_vllm.table(found)
    assert "| no filter | 100000 us | 2000 us | 50.0x | 50.0% | 1.0% | 101 | 151 | 1.50x |" in text
    assert f"| sampling, filtered rows: {OWN} / {PLUGIN} | at least 20x | 50x (top-k 50) | pass |" in text
    document = tmp_path / "page.md"
    begin, end = (f"<!-- {running_vllm.MARKS}: {which} -->" for which in ("begin", "end"))
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    fill_between(document, running_vllm.MARKS, text)
    assert document.read_text() == f"before\n{begin}\n{text}\n{end}\nafter\n"
    assert running_vllm.DOCUMENT.read_text().count(begin) == running_vllm.DOCUMENT.read_text().count(end) == 1
