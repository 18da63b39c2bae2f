"""What sampling costs in a running vLLM on the CPU, with the plugin and without, kind of request by kind.

    nox -s "engines(vllm)"                      # makes the environment
    python -m benchmarks.running_vllm           # prints the table, writes build/performance/running_vllm.json; minutes
    python -m benchmarks.running_vllm publish   # takes the last run into docs/integrations.md

Each column is two engines of its own, with a Llama of random weights and a large vocabulary. All requests of a kind
come together and generate as many tokens. An engine answers each kind once before it is timed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN
from benchmarks import environment, vllm_engine
from benchmarks.command import fill_between, microseconds, parser_of
from benchmarks.gates import AT_LEAST, Gate, Measured, gate_of_worst
from benchmarks.native import ROOT

PYTHON: Final = ROOT / "build" / "nox" / "engines-vllm" / "bin" / "python"
VARIABLES: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OUTPUT: Final = ROOT / "build" / "performance" / "running_vllm.json"
DOCUMENT: Final = ROOT / "docs" / "integrations.md"
MARKS: Final = "running vllm"
OWN, PLUGIN = "vLLM's own", "the plugin's"
LEAST_RATIO: Final = 20
"""So many times as long does vLLM's own sampling take, of filtered rows."""
LEAST_SPEED: Final = 0.95
"""Of the tokens per second without the plugin: what runs of one engine differ by."""
ORDER: Final = (OWN, PLUGIN, PLUGIN, OWN)
"""Of the engines, whose figures are means of two: a machine that gets slower meanwhile slows both down."""


def time_engine(folder: str, switch: str) -> dict[str, dict[str, float]]:
    """Times an engine in a process of its own, with the plugin's switch set."""
    variables = os.environ | VARIABLES | {"ASCEND_SAMPLE_VLLM": switch}
    command = [PYTHON, vllm_engine.__file__, folder]
    finished = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(finished.stdout.strip().splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    """Times both engines; returns what is kept."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "config.json").write_text(json.dumps(vllm_engine.CONFIG), encoding="utf-8")
        timed = [(name, time_engine(made, "1" if name == PLUGIN else "0")) for name in tqdm(ORDER, unit="engine")]
    engines = {name: _mean([figures for other, figures in timed if other == name]) for name in (OWN, PLUGIN)}
    return {
        "environment": environment.describe(),
        "engines": engines,
        "gates": [gate.to_json() for gate in judge(engines)],
    }


def _mean(runs: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns the mean figures of some runs, kind by kind."""
    return {
        kind: {name: statistics.fmean(run[kind][name] for run in runs) for name in figures}
        for kind, figures in runs[0].items()
    }


def judge(engines: dict[str, dict[str, dict[str, float]]]) -> list[Gate]:
    """What is promised of them."""
    own, plugin = engines[OWN], engines[PLUGIN]
    record: dict[str, Any] = {"disturbed": None}

    def measured(kinds: Iterable[str], ratio_of: Callable[[str], float]) -> list[Measured]:
        return [Measured(ratio_of(kind), record, kind) for kind in kinds]

    parts = measured(vllm_engine.FILTERED, lambda kind: own[kind]["sampling"] / plugin[kind]["sampling"])
    speeds = measured(own, lambda kind: plugin[kind]["tokens a second"] / own[kind]["tokens a second"])
    return [
        gate_of_worst("engine", f"sampling, filtered rows: {OWN} / {PLUGIN}", AT_LEAST, LEAST_RATIO, parts),
        gate_of_worst("engine", "tokens a second: with the plugin / without", AT_LEAST, LEAST_SPEED, speeds),
    ]


def table(found: dict[str, Any]) -> str:
    """Returns the table and what is promised, in Markdown."""
    about, own, plugin = found["environment"], found["engines"][OWN], found["engines"][PLUGIN]
    lines = [
        f"`python -m benchmarks.running_vllm`: {vllm_engine.REQUESTS} requests, {vllm_engine.VOCAB_SIZE:,} ids,",
        f"float32, on {about['processor']}.",
        "",
        f"| requests | sampling, of a step: {OWN} | {PLUGIN} | | its share: {OWN} | {PLUGIN} "
        f"| tokens a second: {OWN} | {PLUGIN} | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, before in own.items():
        after = plugin[kind]
        lines.append(
            f"| {kind} | {microseconds(before['sampling'])} | {microseconds(after['sampling'])} "
            f"| {before['sampling'] / after['sampling']:.1f}x | {before['share']:.1%} | {after['share']:.1%} "
            f"| {before['tokens a second']:.0f} | {after['tokens a second']:.0f} "
            f"| {after['tokens a second'] / before['tokens a second']:.2f}x |"
        )
    lines += ["", "| promise | limit | measured | |", "|---|---|---|---|"]
    for gate in found["gates"]:
        measured = f"{gate['value']:.3g}x ({gate['worst']})"
        lines.append(f"| {gate['name']} | {gate['bound']} {gate['limit']:g}x | {measured} | {gate['verdict']} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or publish; returns the exit status."""
    parser = parser_of("running_vllm", __doc__)
    parser.add_argument("action", nargs="?", choices=("measure", "publish"), default="measure")
    if parser.parse_args().action == "publish":
        fill_between(DOCUMENT, MARKS, table(environment.kept(OUTPUT, "python -m benchmarks.running_vllm")))
        return 0
    if not PYTHON.exists():
        sys.exit(f"running_vllm: there is no {PYTHON}. Run nox -s 'engines(vllm)' once.")
    found = run()
    environment.keep(OUTPUT, found)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
