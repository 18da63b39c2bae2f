"""Writes the tables of docs/requests.md from those of the code: ``python -m tests.requests.tables``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Final

from ascend_sample.requests import DIALECTS
from ascend_sample.requests.dialect import Dialect, Field

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "requests.md"
BEGIN: Final = "<!-- dialects: begin -->"
END: Final = "<!-- dialects: end -->"


def tables() -> str:
    """Returns all of them, as Markdown."""
    return "\n\n".join(_section(dialect) for dialect in DIALECTS.values())


def replace_tables(document: str) -> str:
    """Returns the document with the tables of now between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _section(dialect: Dialect) -> str:
    taken = [(name, field) for name, field in dialect.fields.items() if field.is_taken]
    refused = [(name, field) for name, field in dialect.fields.items() if field.verdict == "refused"]
    engines = [(name, field) for name, field in dialect.fields.items() if field.verdict == "engine"]
    lines = [f"### `from_{dialect.name}`", "", f"{dialect.source}.", "", "| field | becomes | |", "|---|---|---|"]
    lines += [f"| `{name}` | {_codes(field.becomes)} | {field.note} |" for name, field in taken]
    if refused:
        lines += ["", "| refused | unless | why, or what instead |", "|---|---|---|"]
        lines += [f"| `{name}` | {_codes(map(repr, field.off))} | {field.note} |" for name, field in refused]
    lines.append("")
    engines.sort(key=lambda entry: entry[1].note)
    lines += [f"- {_codes(_names(entries))}: {note}" for note, entries in groupby(engines, lambda entry: entry[1].note)]
    if dialect.differences:
        lines += ["", "`strict=True` refuses what these concern:", ""]
        lines += [f"- {difference}" for difference in dialect.differences]
    return "\n".join(lines)


def _names(entries: Iterable[tuple[str, Field]]) -> list[str]:
    return sorted(name for name, _ in entries)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    DOCUMENT.write_text(replace_tables(DOCUMENT.read_text()))
