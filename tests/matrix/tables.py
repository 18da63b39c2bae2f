"""What the matrix has found, as it is kept in ``docs/matrix.json``, and the tables of the READMEs that show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.matrix.environment import ERROR, Pair
from tests.matrix.steps import NAMES
from tests.support.environments import PINS, ROOT

DATA: Final = ROOT / "docs" / "matrix.json"
HEADINGS: Final = {ROOT / "README.md": "torch, torch_npu", ROOT / "README.zh-CN.md": "torch、torch_npu"}
"""The documents with the table, and what stands above its first column."""
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"
NOT_RUN: Final = "not run"
DEVELOPED_WITH: Final = f"{PINS['torch_npu']} python 3.11"
"""The pair of requirements.txt: `make test` runs all of the tests with it."""


def read(data: Path = DATA) -> dict[str, Any]:
    """Returns what is kept, by pair; nothing before the first run."""
    return dict(json.loads(data.read_text(encoding="utf-8"))) if data.is_file() else {}


def keep(found: dict[str, Any], data: Path = DATA) -> None:
    """Writes what was found, a pair a line."""
    pairs = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in found.items())
    data.write_text(f"{{\n{pairs}\n}}\n", encoding="utf-8")


def failures(record: dict[str, Any]) -> list[str]:
    """The names of the steps that have failed."""
    return [name for name, step in record["steps"].items() if step["error"] is not None]


def failed(record: dict[str, Any]) -> bool:
    """Whether a step has failed; a pair that cannot be tried here has not."""
    return bool(failures(record))


def verdict(record: dict[str, Any] | None) -> str:
    """What a cell of the table says."""
    if record is None:
        return NOT_RUN
    if not record["steps"]:
        return str(record["reason"])
    names = failures(record)
    if names:
        return f"fails: {', '.join(names)}"
    missing = [name for name in NAMES if name not in record["steps"]]
    return f"green, without {', '.join(missing)}" if missing else "green"


def reason(error: str) -> str:
    """The last line of an error that says what went wrong, or else its last line."""
    lines = error.splitlines()
    return next((line.strip() for line in reversed(lines) if ERROR.search(line)), lines[-1])


def cell(found: dict[str, Any], pair: Pair) -> str:
    """What the table says of a pair."""
    if pair.name == DEVELOPED_WITH and pair.name not in found:
        return "`make test`"
    return verdict(found.get(pair.name))


def table(found: dict[str, Any], pairs: Sequence[Sequence[Pair]], heading: str) -> list[str]:
    """A row for each torch_npu, a column for each Python, and below it the last line of each failure."""
    lines = [
        f"| {heading} | {' | '.join(f'Python {pair.python}' for pair in pairs[0])} |",
        f"|---|{'---|' * len(pairs[0])}",
    ]
    for row in pairs:
        cells = " | ".join(cell(found, pair) for pair in row)
        lines.append(f"| {row[0].torch}, {row[0].torch_npu} | {cells} |")
    reasons = []
    for pair in (pair for row in pairs for pair in row):
        steps = found.get(pair.name, {"steps": {}})["steps"]
        reasons += [
            f"- {pair.name}, {name}: `{reason(step['error']).replace('`', '')}`"
            for name, step in steps.items()
            if step["error"] is not None
        ]
    return [*lines, *(["", *reasons] if reasons else [])]


def publish(found: dict[str, Any], pairs: Sequence[Sequence[Pair]], headings: dict[Path, str] = HEADINGS) -> None:
    """Writes the table between its marks in each document."""
    for document, heading in headings.items():
        before, rest = document.read_text(encoding="utf-8").split(BEGIN)
        _, after = rest.split(END)
        lines = "\n".join(table(found, pairs, heading))
        document.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
