"""The figures that the CPU kernel promises, and what a run says about each.

A figure is a ratio of medians of one cell, so it does not depend on how fast the machine is; it is that of the worst
cell that the gate is about. Two threads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from benchmarks import cases
from benchmarks.cases import ADVERSARIAL, CALL, GRID, SECOND_OPERATOR
from benchmarks.distributions import FLAT, LANGUAGE_MODEL, NORMAL
from benchmarks.quiet import MOST_DISTURBED

Record = dict[str, Any]

AT_LEAST, AT_MOST = "at least", "at most"
_HOLDS: dict[str, Callable[[float, float], bool]] = {AT_LEAST: operator.ge, AT_MOST: operator.le}
VERDICTS = ("pass", "FAIL", "disturbed", "not measured")
BEST_PEER = "best peer"
LARGE_VOCABULARY, SMALL_VOCABULARY = 151936, 32000
PEER_FACTOR, FLOOR_FACTOR = 0.5, 1.4
"""At the smaller vocabulary: at least half the ratio to a peer, at most 1.4 times the ratio to the floor."""


@dataclass(frozen=True)
class Gate:
    """A promise and what was measured.

    Attributes:
        group: what it is about.
        name: what is divided by what, where.
        bound: "at least" or "at most".
        limit: of the value.
        value: of the worst cell; None where none was measured.
        unit: of limit and value, "x" for a ratio.
        worst: the cell that the value comes from.
        is_disturbed: whether other processes disturbed one of the cells, so that nothing can be said.
    """

    group: str
    name: str
    bound: str
    limit: float
    value: float | None
    unit: str = "x"
    worst: str = ""
    is_disturbed: bool = False

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.value is None:
            return "not measured"
        if self.is_disturbed:
            return "disturbed"
        return "pass" if _HOLDS[self.bound](self.value, self.limit) else "FAIL"

    def to_json(self) -> dict[str, Any]:
        """The fields by their names, and the verdict."""
        return asdict(self) | {"verdict": self.verdict}


def judge(records: Iterable[Record]) -> list[Gate]:
    """Works out every gate from the records of a run."""
    records = list(records)
    return [
        *_peers(records),
        *_floor(records),
        *_single_row(records),
        *_adversarial(records),
        *_second_operator(records),
    ]


def median(record: Record, name: str) -> float:
    """Seconds of a contestant in a cell."""
    return float(record["results"][name]["median"])


def speedup(record: Record, peer: str) -> float | None:
    """How many times as long as the operator a peer takes, or the fastest of all; None where it was not measured."""
    results = record["results"]
    measured = [name for name in cases.PEERS if name in results and peer in (name, BEST_PEER)]
    return min(median(record, name) for name in measured) / median(record, cases.OPERATOR) if measured else None


def over_floor(record: Record) -> float:
    """The operator's time in readings of its inputs."""
    return median(record, cases.OPERATOR) / median(record, cases.FLOOR)


def describe(record: Record) -> str:
    """A cell in a few words."""
    return f"{record['case']}, [{record['batch_size']}, {record['vocab_size']}] {record['dtype']}, {record['cache']}"


def is_disturbed(record: Record) -> bool:
    """Whether other processes had a noticeable share of the processors, also when the cell was measured again."""
    return (record["disturbed"] or 0.0) > MOST_DISTURBED


class Measured(NamedTuple):
    """A figure, the cell that it is from, and what to call that."""

    value: float | None
    record: Record
    label: str


def gate_of_worst(
    group: str, name: str, bound: str, limit: float, measured: Iterable[Measured], unit: str = "x"
) -> Gate:
    """The gate of the worst of some values."""
    values = [each for each in measured if each.value is not None]
    if not values:
        return Gate(group, name, bound, limit, None, unit)
    worst = (min if bound == AT_LEAST else max)(values, key=lambda each: each.value)
    return Gate(group, name, bound, limit, worst.value, unit, worst.label, any(is_disturbed(v.record) for v in values))


def ratio(record: Record, above: str, below: str) -> float:
    """Returns the ratio of two medians of a cell."""
    return float(record["results"][above]["median"] / record["results"][below]["median"])


def gate_of_ratios(
    group: str, name: str, bound: str, limit: float, records: Iterable[Record], above: str, below: str
) -> Gate:
    """The gate of the worst ratio of two medians, of the cells that have both."""
    measured = [
        Measured(ratio(record, above, below), record, record["cell"])
        for record in records
        if record["results"].keys() >= {above, below}
    ]
    return gate_of_worst(group, name, bound, limit, measured)


_Selection = Callable[[Record], bool]
_TOP_K_AND_P = cases.TOP_K_AND_P.name
_LARGE_K = cases.LARGE_K_AND_P.name
_PEER_GATES: list[tuple[str, _Selection, str, float, float]] = []
"""What, which cells, the peer, the limits for warm and for cold data."""


def _is_usual(record: Record) -> bool:
    return record["batch_size"] == 64 and record["dtype"] == "bfloat16"


def _declare(what: str, selects: _Selection, limits: dict[str, tuple[float, float]]) -> None:
    _PEER_GATES.extend((what, selects, peer, *both) for peer, both in limits.items())


_declare(
    "k=50 p=0.9, B=64, bfloat16",
    lambda record: record["case"] == _TOP_K_AND_P and _is_usual(record),
    {cases.VLLM: (1000, 700), cases.TORCH_TOPK: (15, 9), cases.CANDIDATES: (15, 9)},
)
_declare(
    "k=50 p=0.9, B=256, float32",
    lambda record: record["case"] == _TOP_K_AND_P and (record["batch_size"], record["dtype"]) == (256, "float32"),
    {BEST_PEER: (4, 4)},
)
_declare(
    "k=1024 p=0.9, B=64, bfloat16",
    lambda record: record["case"] == _LARGE_K and _is_usual(record),
    {cases.VLLM: (500, 500), BEST_PEER: (10, 10)},
)
for _logits, _vllm_limit, _best_limit in ((LANGUAGE_MODEL, 400, 30), (NORMAL, 150, 100), (FLAT, 80, 60)):
    _declare(
        f"p=0.9, {_logits}, B=64, bfloat16",
        lambda record, _logits=_logits: record["branch"] == "B" and record["logits"] == _logits and _is_usual(record),
        {cases.VLLM: (_vllm_limit, _vllm_limit), BEST_PEER: (_best_limit, _best_limit)},
    )
_declare("no filter, everywhere", lambda record: record["branch"] == "C", {BEST_PEER: (4, 4)})
_declare(
    "no filter, B >= 64, bfloat16",
    lambda record: record["branch"] == "C" and record["batch_size"] >= 64 and record["dtype"] == "bfloat16",
    {BEST_PEER: (12, 12)},
)

_FLOOR_GATES: tuple[tuple[str, _Selection, float], ...] = (
    ("k <= 50", lambda record: record["branch"] == "A" and record["k"] <= 50, 1.5),
    ("k = 1024", lambda record: record["branch"] == "A" and record["k"] == 1024, 2.0),
    (f"p=0.9, {LANGUAGE_MODEL}", lambda record: record["branch"] == "B" and record["logits"] == LANGUAGE_MODEL, 1.6),
    (f"p=0.9, {NORMAL}", lambda record: record["branch"] == "B" and record["logits"] == NORMAL, 3.5),
    (f"p=0.9, {FLAT}", lambda record: record["branch"] == "B" and record["logits"] == FLAT, 3.0),
    ("no filter", lambda record: record["branch"] == "C", 1.25),
)


def _peers(records: list[Record]) -> Iterator[Gate]:
    for vocab_size, factor in ((LARGE_VOCABULARY, 1.0), (SMALL_VOCABULARY, PEER_FACTOR)):
        for what, selects, peer, *limits in _PEER_GATES:
            for cache, limit in zip(("warm", "cold"), limits, strict=True):
                cells = [record for record in _cells(records, vocab_size, cache) if selects(record)]
                measured = [Measured(speedup(record, peer), record, describe(record)) for record in cells]
                name = f"{peer} / operator: {what}, {cache}"
                yield gate_of_worst(f"peers, V={vocab_size}", name, AT_LEAST, limit * factor, measured)


def _floor(records: list[Record]) -> Iterator[Gate]:
    for vocab_size, factor in ((LARGE_VOCABULARY, 1.0), (SMALL_VOCABULARY, FLOOR_FACTOR)):
        cold = [record for record in _cells(records, vocab_size, "cold") if record["batch_size"] >= 8]
        for what, selects, limit in _FLOOR_GATES:
            measured = [Measured(over_floor(record), record, describe(record)) for record in cold if selects(record)]
            name = f"operator / one read: {what}, B >= 8, cold"
            yield gate_of_worst(f"floor, V={vocab_size}", name, AT_MOST, limit * factor, measured)


def _cells(records: list[Record], vocab_size: int, cache: str) -> list[Record]:
    wanted = (GRID, vocab_size, cache)
    return [record for record in records if (record["section"], record["vocab_size"], record["cache"]) == wanted]


def _single_row(records: list[Record]) -> Iterator[Gate]:
    """One row, from Python: in microseconds, and beside the core in C++ alone."""
    cells = [record for record in records if (record["section"], record["vocab_size"]) == (CALL, LARGE_VOCABULARY)]
    calls = [(record, median(record, cases.PUBLIC_TENSORS), median(record, cases.CORE_ALONE)) for record in cells]
    times = [Measured(call * 1e6, record, describe(record)) for record, call, _ in calls]
    ratios = [Measured(call / core, record, describe(record)) for record, call, core in calls]
    yield gate_of_worst("one row", "the public function", AT_MOST, 12, times, "us")
    yield gate_of_worst("one row", "the public function / the C++ core alone", AT_MOST, 2.2, ratios)


def _second_operator(records: list[Record]) -> Iterator[Gate]:
    """The second operator beside the first one, and what min-p adds to it, in the cases of the grid."""
    names = {case.name for case in cases.CASES}
    cells = [record for record in records if record["section"] == SECOND_OPERATOR and record["case"] in names]
    for name, other in ((cases.SECOND, cases.OPERATOR), (cases.SECOND_MIN_P, cases.SECOND)):
        measured = [
            Measured(median(record, name) / median(record, other), record, describe(record))
            for record in cells
            if name in record["results"]
        ]
        yield gate_of_worst("second operator", f"{name} / {other}", AT_MOST, 1.1, measured)


def _adversarial(records: list[Record]) -> Iterator[Gate]:
    """The worst row beside an ordinary one of its dtype, branch and k."""
    cells = [
        record for record in records if (record["section"], record["vocab_size"]) == (ADVERSARIAL, LARGE_VOCABULARY)
    ]
    for dtype in cases.DTYPES:
        for k, branch in ((50, "A"), (1024, "A"), (None, "B"), (None, "C")):
            mine = [
                record for record in cells if (record["dtype"], record["k"], record["branch"]) == (dtype, k, branch)
            ]
            if not mine:
                continue
            usual = min(mine, key=lambda record: record["p"] or 0)
            measured = [
                Measured(median(record, name) / median(usual, cases.OPERATOR), record, f"{name}, {record['case']}")
                for record in mine
                for name in record["results"]
                if not (record is usual and name == cases.OPERATOR)
            ]
            what = f"branch {branch}, k={k}" if k else f"branch {branch}"
            yield gate_of_worst("worst row", f"worst row / ordinary row: {what}, {dtype}", AT_MOST, 6, measured)
