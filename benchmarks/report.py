"""The tables of a run, for the terminal and for docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import cases, gates
from benchmarks.cases import ADVERSARIAL, CALL, GRID, SECOND_OPERATOR, THREADS
from benchmarks.distributions import LANGUAGE_MODEL
from benchmarks.gates import Gate, Record, median, over_floor

Run = dict[str, Any]
"""What a run wrote: "environment", "records" and "gates"."""

VOCAB_SIZES = (gates.LARGE_VOCABULARY, gates.SMALL_VOCABULARY)
_NONE = "–"


@dataclass(frozen=True)
class Table:
    """A table for people."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """With its title as a line above it; the first column is text, the others are figures."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return f"{self.title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def print(self, console: Console) -> None:
        """To a terminal."""
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE, pad_edge=False)
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def format_seconds(seconds: float) -> str:
    """Three digits and a unit.

    Example:
        >>> format_seconds(0.000012345)
        '12.3 us'
    """
    larger = (("s", 1.0), ("ms", 1e-3))
    unit, scale = next((each for each in larger if seconds >= each[1] * 0.9995), ("us", 1e-6))
    return f"{format_ratio(seconds / scale)} {unit}"


def format_ratio(ratio: float) -> str:
    """Three digits, without an exponent.

    Example:
        >>> format_ratio(1234.5), format_ratio(1.0666)
        ('1234', '1.07')
    """
    return f"{ratio:.0f}" if ratio >= 99.95 else f"{ratio:.1f}" if ratio >= 9.995 else f"{ratio:.2f}"


def _select(records: Iterable[Record], section: str, **wanted: object) -> list[Record]:
    return [
        record
        for record in records
        if record["section"] == section and all(record[name] == value for name, value in wanted.items())
    ]


def _time(record: Record, name: str, with_spread: bool = False) -> str:
    result = record["results"].get(name)
    if result is None:
        return _NONE
    text = format_seconds(result["median"])
    if with_spread:
        text += f" ({format_seconds(result['lower_quartile'])} to {format_seconds(result['upper_quartile'])})"
    return text


def _time_and_ratio(record: Record, name: str) -> str:
    if name not in record["results"]:
        return _NONE
    return f"{_time(record, name)}, {format_ratio(median(record, name) / median(record, cases.OPERATOR))}x"


def _compared(cell: Record, others: Iterable[str]) -> tuple[str, ...]:
    """A row: the case, the operator's time with its quartiles, and the others' times and ratios."""
    return (
        cell["case"],
        _time(cell, cases.OPERATOR, with_spread=True),
        *(_time_and_ratio(cell, name) for name in others),
    )


def peers(records: list[Record]) -> list[Table]:
    """All contestants at a batch of 64 in bfloat16, warm and cold."""
    tables = []
    for vocab_size in VOCAB_SIZES:
        for cache in ("warm", "cold"):
            cells = _select(records, GRID, vocab_size=vocab_size, cache=cache, batch_size=64, dtype="bfloat16")
            cells = [cell for cell in cells if cases.VLLM in cell["results"]]
            measured = [name for name in cases.EVERYTHING if any(name in cell["results"] for cell in cells)]
            others = [name for name in measured if name != cases.OPERATOR]
            if cells:
                tables.append(
                    Table(
                        f"[64, {vocab_size}] bfloat16, {cache}, two threads",
                        ("case", f"{cases.OPERATOR} (quartiles)", *others),
                        [_compared(cell, others) for cell in cells],
                    )
                )
    return tables


def floor(records: list[Record]) -> list[Table]:
    """The operator's time in readings of its inputs, cold, for every shape."""
    shapes = [(dtype, batch_size) for dtype in cases.DTYPES for batch_size in cases.BATCH_SIZES]
    tables = []
    for vocab_size in VOCAB_SIZES:
        cells = _select(records, GRID, vocab_size=vocab_size, cache="cold")
        ratios = {(cell["case"], cell["dtype"], cell["batch_size"]): format_ratio(over_floor(cell)) for cell in cells}
        if ratios:
            tables.append(
                Table(
                    f"operator / one read, V = {vocab_size}, cold, two threads",
                    ("case", *(f"{dtype}, B={batch_size}" for dtype, batch_size in shapes)),
                    [
                        (case, *(ratios.get((case, *shape), _NONE) for shape in shapes))
                        for case in dict.fromkeys(cell["case"] for cell in cells)
                    ],
                )
            )
    return tables


def one_thread(records: list[Record]) -> list[Table]:
    """One thread beside two."""
    rows = []
    for cell in _select(records, THREADS):
        same = {name: cell[name] for name in ("case", "vocab_size", "batch_size", "dtype", "cache")}
        two = _select(records, GRID, **same)
        speedup = median(cell, cases.OPERATOR) / median(two[0], cases.OPERATOR) if two else None
        rows.append(
            (
                f"{cell['case']}, {cell['cache']}",
                _time(cell, cases.OPERATOR, with_spread=True),
                _NONE if speedup is None else f"{format_ratio(speedup)}x",
                f"{format_ratio(over_floor(cell))}x",
                *(_time_and_ratio(cell, name) for name in cases.FAST_PEERS),
            )
        )
    header = ("case", f"{cases.OPERATOR} (quartiles)", "gain of a second thread", "over one read", *cases.FAST_PEERS)
    return [Table("[64, 151936] bfloat16, one thread", header, rows)] if rows else []


def calls(records: list[Record]) -> list[Table]:
    """What a call from Python adds, for one row."""
    return [
        Table(
            f"[1, {cell['vocab_size']}] bfloat16, {cell['case']}, warm",
            ("call", "time (quartiles)", "over the C++ core", "over one read"),
            [
                (
                    name,
                    _time(cell, name, with_spread=True),
                    format_ratio(median(cell, name) / median(cell, cases.CORE_ALONE)),
                    format_ratio(median(cell, name) / median(cell, cases.FLOOR)),
                )
                for name in sorted(cell["results"], key=lambda name, cell=cell: median(cell, name))
            ],
        )
        for cell in _select(records, CALL)
    ]


def second_operator(records: list[Record]) -> list[Table]:
    """The second operator beside the first one."""
    others = (cases.SECOND, cases.SECOND_MIN_P)
    return [
        Table(
            f"[64, {vocab_size}] {dtype}, warm, two threads",
            ("case", "first operator (quartiles)", *others),
            [_compared(cell, others) for cell in cells],
        )
        for vocab_size in VOCAB_SIZES
        for dtype in cases.DTYPES
        if (cells := _select(records, SECOND_OPERATOR, vocab_size=vocab_size, dtype=dtype))
    ]


def adversarial(records: list[Record]) -> list[Table]:
    """The operator's time on rows of each kind, relative to an ordinary row."""
    tables = []
    for dtype in cases.DTYPES:
        cells = _select(records, ADVERSARIAL, dtype=dtype)
        if not cells:
            continue
        rows = [(f"ordinary ({LANGUAGE_MODEL})", *(_time(cell, cases.OPERATOR) for cell in cells))]
        for name in cells[0]["results"]:
            if name != cases.OPERATOR:
                ratios = (median(cell, name) / median(cell, cases.OPERATOR) for cell in cells)
                rows.append((name, *(f"{format_ratio(ratio)}x" for ratio in ratios)))
        shape = f"[{cells[0]['batch_size']}, {cells[0]['vocab_size']}]"
        tables.append(Table(f"{shape} {dtype}, warm", ("rows", *(cell["case"] for cell in cells)), rows))
    return tables


def judged(found: Iterable[Gate]) -> Table:
    """Every gate with its limit, what was measured and the verdict."""
    return Table(
        "promises and figures",
        ("figure", "promise", "measured", "verdict", "worst cell"),
        [
            (
                f"{gate.group}: {gate.name}",
                f"{gate.bound} {gate.limit:g} {gate.unit}",
                _NONE if gate.value is None else f"{format_ratio(gate.value)} {gate.unit}",
                gate.verdict,
                gate.worst or _NONE,
            )
            for gate in found
        ],
    )


def count_disturbed(run: Run) -> int:
    """In how many cells other processes had a noticeable share of the processors, also when measured again."""
    return sum(map(gates.is_disturbed, run["records"]))


def environment(run: Run) -> Table:
    """The machine and the software, and how quiet it was."""
    quiet = f"{len(run['records'])} measured, {count_disturbed(run)} of them disturbed by other processes"
    return Table("machine and software", ("what", "value"), [*run["environment"].items(), ("cells", quiet)])


SECTIONS: dict[str, Callable[[list[Record]], list[Table]]] = {
    "peers": peers,
    "floor": floor,
    "one thread": one_thread,
    "calls": calls,
    "second operator": second_operator,
    "adversarial": adversarial,
}
"""The groups of tables, by the names that the markers in docs/performance.md use."""


def gates_of(run: Run) -> list[Gate]:
    """The gates that a run stored."""
    return [Gate(**{name: value for name, value in gate.items() if name != "verdict"}) for gate in run["gates"]]


def show(run: Run, console: Console) -> None:
    """Prints all tables of a run."""
    environment(run).print(console)
    for make in SECTIONS.values():
        for table in make(run["records"]):
            table.print(console)
    judged(gates_of(run)).print(console)


_MARKED = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(document: str, run: Run, pictures: Sequence[str]) -> str:
    """Replaces what stands between the markers of a document by the tables and pictures of a run.

    Args:
        document: Markdown with pairs of `<!-- generated: NAME -->` and `<!-- end -->`.
        run: what they show; without records the sections become empty.
        pictures: lines that show the pictures, for the section "pictures".

    Raises:
        KeyError: a marker names no section.
    """
    has_run = bool(run["records"])
    sections: dict[str, list[str]] = {
        name: [table.to_markdown() for table in make(run["records"])] for name, make in SECTIONS.items()
    }
    sections["environment"] = [environment(run).to_markdown()] if has_run else []
    sections["gates"] = [judged(gates_of(run)).to_markdown()] if has_run else []
    sections["pictures"] = list(pictures) if has_run else []

    def replace(match: re.Match[str]) -> str:
        text = "".join(f"\n{part}\n" for part in sections[match[2]])
        return f"{match[1]}{text}\n{match[3]}" if text else f"{match[1]}{match[3]}"

    return _MARKED.sub(replace, document)
