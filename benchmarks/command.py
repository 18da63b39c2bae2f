"""The command of a benchmark of one thing: `python -m benchmarks.NAME [--seconds S]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ascend_sample.bench.timing import Budget, measure, repeat
from benchmarks import environment
from benchmarks.gates import Gate
from benchmarks.native import ROOT
from benchmarks.quiet import Watch


def timed(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Any]:
    """Times the contestants of a cell in turns; returns their times, and which share of the processors others had."""
    watch = Watch()
    results = measure({name: repeat(call) for name, call in calls.items()}, Budget(seconds=seconds))
    found = {name: result.to_json() for name, result in results.items()}
    return {"disturbed": watch.share_of_others(), "results": found}


def run_of(records: list[dict[str, Any]], gates: Iterable[Gate]) -> dict[str, Any]:
    """Returns what a run keeps: where it was, its cells, and what was promised of them."""
    return {
        "environment": environment.describe(),
        "records": records,
        "gates": [gate.to_json() for gate in gates],
    }


def fill_between(document: Path, marks: str, text: str) -> None:
    """Puts a text between the marks of a document: ``<!-- MARKS: begin -->`` and ``<!-- MARKS: end -->``."""
    begin, end = (f"<!-- {marks}: {which} -->" for which in ("begin", "end"))
    before, rest = document.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def microseconds(seconds: float) -> str:
    """Returns a time as a table has it."""
    return f"{seconds * 1e6:.0f} us"


def quartiles_of(result: dict[str, Any]) -> str:
    """Returns the quartiles of a contestant's times as a table has them."""
    return f"{result['lower_quartile'] * 1e6:.0f} to {microseconds(result['upper_quartile'])}"


def others_share(record: dict[str, Any]) -> str:
    """Returns which share of the processors other processes had, as a table has it: nothing where it is not known."""
    return "" if record["disturbed"] is None else f"{record['disturbed']:.0%}"


def show_table(table: Table, gates: Iterable[dict[str, Any]]) -> Console:
    """Prints a table, and a line for each promise; returns the console."""
    console = Console(width=160)
    console.print(table)
    for gate in gates:
        value = "" if gate["value"] is None else f"{gate['value']:.3g} in '{gate['worst']}'"
        console.print(f"{gate['verdict']:<12} {gate['name']}: {value} ({gate['bound']} {gate['limit']:g})")
    return console


def parser_of(name: str, text: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a module's command line, described by the first line of its docstring."""
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(text or "").split("\n")[0])


def measure_and_show(
    name: str,
    text: str | None,
    seconds: tuple[float, str],
    run: Callable[[float], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Reads the command line, measures, keeps what was found, and prints it.

    Args:
        name: of the module in `benchmarks`.
        text: its docstring.
        seconds: the default of `--seconds`, and what they are for.
        run: measures for so many seconds.
        show: prints what it returns, which is kept in build/performance.

    Returns:
        The exit status, 0.
    """
    parser = parser_of(name, text)
    parser.add_argument("--seconds", type=float, default=seconds[0], help=seconds[1])
    found = run(parser.parse_args().seconds)
    environment.keep(ROOT / "build" / "performance" / f"{name}.json", found)
    show(found)
    return 0
