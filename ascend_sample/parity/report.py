"""What a parity run found: counts by scenario and dtype, failures that can be run again, the answers to the probes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .cases import SCENARIO_NAMES
from .compare import Kind
from .probe import Finding

EXPLAINABLE_LIMIT = 0.01
"""The greatest share of rows outside the tie-heavy families that may need an explanation."""

SHOWN_FAILURES = 10

STAND_INS = ("composite", "reference")
"""Backends that are this project's own code wherever they run."""


@dataclass(frozen=True)
class Failure:
    """One row that failed."""

    where: str
    batch: int
    reason: str


@dataclass
class Tally:
    """Counts of kinds by (scenario, dtype); `names` are those of the scenarios, in the order of the report."""

    names: dict[str, str] = field(default_factory=lambda: SCENARIO_NAMES)
    counts: dict[tuple[str, str], Counter[Kind]] = field(default_factory=dict)

    def add(self, scenario: str, dtype: str, kind: Kind) -> None:
        """Counts one row."""
        self.counts.setdefault((scenario, dtype), Counter())[kind] += 1

    def total(self, *kinds: Kind) -> int:
        """Returns the number of rows of some kinds, or of all rows when none is named."""
        return sum(counter[kind] for counter in self.counts.values() for kind in (kinds or Kind))

    def missing(self, dtypes: tuple[str, ...]) -> list[str]:
        """Returns the scenarios without a row in one of the dtypes, with that dtype."""
        cells = itertools.product(self.names, dtypes)
        return [
            f"{self.names[scenario]} ({dtype})" for scenario, dtype in cells if (scenario, dtype) not in self.counts
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Returns one record per scenario and dtype, in the order of the operator's table of scenarios."""
        order = list(self.names)
        ordered = sorted(self.counts, key=lambda key: (order.index(key[0]), key[1]))
        return [
            {"scenario": self.names[scenario], "branch": scenario, "dtype": dtype}
            | {kind.label: self.counts[scenario, dtype][kind] for kind in Kind}
            for scenario, dtype in ordered
        ]


@dataclass
class Report:
    """Everything a run found.

    Attributes:
        environment: labels and values that say what was tested, by what and on what.
        command: how to repeat the run.
        is_real_device: whether the run was on hardware; inputs that it leaves undefined are then counted apart.
        is_one_batch: whether it repeats one batch of a run, a handful of rows of one kind, whose shares say nothing.
        routes: the backend that answered, by dtype.
        must_cover: the dtypes in which every scenario must have had a row; none for a run of few rows.
        tally: rows that the contract decides.
        undefined: rows that a real device gives no promise for; empty elsewhere.
        ordinary_rows: rows outside the tie-heavy families.
        ordinary_explained: those of them that needed an explanation.
        readings: how many rows follow another reading of the sources, by what it says.
        failures: the rows that failed, in order.
        findings: the answers to the probes, by dtype.
        seconds: how long the comparison took.
    """

    environment: dict[str, str]
    command: str
    is_real_device: bool
    is_one_batch: bool = False
    routes: dict[str, str] = field(default_factory=dict)
    must_cover: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    undefined: Tally = field(default_factory=Tally)
    ordinary_rows: int = 0
    ordinary_explained: int = 0
    readings: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def explained_share(self) -> float:
        """Returns the share of rows outside the tie-heavy families that needed an explanation."""
        return self.ordinary_explained / max(self.ordinary_rows, 1)

    def contradictions(self) -> list[Finding]:
        """Returns the answers that contradict the contract; a real device is not held to what is undefined there."""
        return [
            finding for findings in self.findings.values() for finding in findings if self._agreement(finding) == "NO"
        ]

    def stand_ins(self) -> list[str]:
        """Returns the backends that answered in the place of the device's operator, each with its dtypes."""
        return [
            f"the {backend} ({', '.join(dtype for dtype, route in self.routes.items() if route == backend)})"
            for backend in STAND_INS
            if backend in self.routes.values()
        ]

    def verdict(self) -> str:
        """Tells whether the run passed or failed, and who answered where it was not the device's operator."""
        notes = [f"{count} rows in another reading: {reading}" for reading, count in self.readings.items()]
        if stand_ins := self.stand_ins():
            notes.append(f"{' and '.join(stand_ins)} answered, not the device's operator")
        return ": ".join(["FAILED" if self.problems() else "PASSED", *(["; ".join(notes)] if notes else [])])

    def problems(self) -> list[str]:
        """Returns the reasons why the run does not pass; empty when it does."""
        problems = []
        if self.failures:
            problems.append(f"{len(self.failures)} rows failed")
        if self.explained_share >= EXPLAINABLE_LIMIT and not self.is_one_batch:
            problems.append(
                f"{self.explained_share:.2%} of the rows outside the tie-heavy families needed an explanation; "
                f"under {EXPLAINABLE_LIMIT:.0%} may"
            )
        if contradictions := self.contradictions():
            problems.append(f"{len(contradictions)} answers to the probes contradict the contract")
        if missing := self.tally.missing(self.must_cover):
            problems.append(f"no row of {len(missing)} of the scenarios: {', '.join(missing)}")
        if self.tally.total() == 0:
            problems.append("no row was compared")
        return problems

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return {
            "passed": not self.problems(),
            "problems": self.problems(),
            "verdict": self.verdict(),
            "routes": self.routes,
            "environment": self.environment,
            "command": self.command,
            "seconds": round(self.seconds, 3),
            "rows": self.tally.total() + self.undefined.total(),
            "by_scenario_and_dtype": self.tally.rows(),
            "undefined_on_the_device": self.undefined.rows(),
            "explained_share_outside_tie_heavy": self.explained_share,
            "other_readings": dict(self.readings),
            "failures": [vars(failure) for failure in self.failures],
            "probes": [
                {
                    "dtype": dtype,
                    "question": finding.probe.question,
                    "answer": finding.reading,
                    "contract": finding.probe.outcomes[0].reading,
                    "as_contract": finding.as_contract,
                }
                for dtype, findings in self.findings.items()
                for finding in findings
            ],
        }

    def to_text(self) -> str:
        """Returns the report as text for a terminal."""
        parts = ["", _tally_table("Rows by scenario and dtype", self.tally)]
        if self.undefined.counts:
            parts.append(_tally_table("Undefined on the device (reported, never failed)", self.undefined))
        parts.append(self._probe_table())
        shown = self.failures[:SHOWN_FAILURES]
        for failure in shown:
            parts.append(f"FAILED  {failure.where}\n        {failure.reason}\n        {self._again(failure)}")
        if len(self.failures) > len(shown):
            parts.append(f"... and {len(self.failures) - len(shown)} more failures (--json lists them all)")
        parts.append(self._summary())
        return "\n\n".join(parts).lstrip("\n")

    def _again(self, failure: Failure) -> str:
        return f"again:  {self.command} --batch {failure.batch}"

    def _agreement(self, finding: Finding) -> str:
        if finding.is_admitted:
            return "yes" if finding.as_contract else "known"
        return "NO" if finding.probe.defined_on_device or not self.is_real_device else "undefined"

    def _probe_table(self) -> str:
        answers: dict[tuple[str, str, str, str], list[str]] = {}
        for dtype, findings in self.findings.items():
            for finding in findings:
                contract = finding.probe.outcomes[0].reading
                key = (finding.probe.question, finding.reading, contract, self._agreement(finding))
                answers.setdefault(key, []).append(dtype)
        header = ("question", "answer" if self.stand_ins() else "the device's answer", "contract", "agrees", "dtypes")
        return _table("Semantics", header, [(*key, ", ".join(dtypes)) for key, dtypes in answers.items()])

    def _summary(self) -> str:
        explained = self.tally.total(Kind.TIE, Kind.NEAR_DRAW, Kind.NEAR_BOUNDARY)
        lines = [
            f"{self.tally.total()} rows in {self.seconds:.0f} s: {self.tally.total(Kind.EXACT)} exact, "
            f"{explained} explainable, {self.tally.total(Kind.FAILED)} failed; "
            f"{self.explained_share:.3%} explainable outside the tie-heavy families",
            *(f"PROBLEM: {problem}" for problem in self.problems()),
            self.verdict(),
        ]
        return "\n".join(lines)


def _tally_table(title: str, tally: Tally) -> str:
    header = ("scenario", "dtype", *(kind.label for kind in Kind))
    rows = [
        (record["scenario"], record["dtype"], *(str(record[kind.label]) for kind in Kind)) for record in tally.rows()
    ]
    return _table(title, header, [*rows, ("all", "", *(str(tally.total(kind)) for kind in Kind))])


def _table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table as text in aligned columns: numbers to the right, words to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        padded = (
            cell.rjust(width) if cell.isdigit() else cell.ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([title, line(header), "  ".join("-" * width for width in widths), *map(line, rows)])
