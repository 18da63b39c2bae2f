"""Runs a plan: makes the data of each cell, sees that its contestants agree, and times them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ascend_sample.bench.timing import Budget, Repeat, Statistics, measure, repeat, rotate
from benchmarks import agreement, cases, contestants, distributions
from benchmarks.cases import ADVERSARIAL, Cell
from benchmarks.contestants import Batch, make_batch
from benchmarks.quiet import MOST_DISTURBED, Watch

SECONDS_PER_CONTESTANT = 0.12
MOST_ATTEMPTS = 3
ORDINARY = cases.OPERATOR  # in an adversarial cell: the operator on a language model's rows
_SIGNIFICANT_DIGITS = 5


class Pools:
    """Makes logits and noise, and keeps what the next cell may want again: one of each kind."""

    def __init__(self, plan: Iterable[Cell]) -> None:
        self._kept: dict[str, tuple[object, torch.Tensor]] = {}
        self._rows: dict[object, int] = {}
        for cell in plan:
            rows = cell.batches * cell.batch_size
            for key in (cell.vocab_size, (cell.vocab_size, cell.case.distribution)):
                self._rows[key] = max(rows, self._rows.get(key, 0))

    def batches(self, cell: Cell) -> list[Batch]:
        """The batches of a cell. The noise rotates with the logits."""
        logits = self.logits(cell.vocab_size, cell.case.distribution, cell.dtype)
        q = self.noise(cell.vocab_size)
        size = cell.batch_size
        slices = [slice(start, start + size) for start in range(0, size * cell.batches, size)]
        return [make_batch(logits[rows], cell.case, q[rows]) for rows in slices]

    def first(self, cell: Cell, rows: int) -> Batch:
        """So many rows of the data of a cell, or all where there are fewer."""
        logits = self.logits(cell.vocab_size, cell.case.distribution, cell.dtype)[:rows]
        return make_batch(logits, cell.case, self.noise(cell.vocab_size)[: logits.shape[0]])

    def logits(self, vocab_size: int, distribution: str, dtype: str) -> torch.Tensor:
        """All rows of a distribution in one dtype."""
        source = (vocab_size, distribution)
        return self._keep(
            "logits",
            (source, dtype),
            lambda: self._keep(
                "float32 logits", source, lambda: distributions.make(distribution, self._rows[source], vocab_size)
            ).to(cases.DTYPES[dtype]),
        )

    def noise(self, vocab_size: int) -> torch.Tensor:
        """Exponential(1), float32."""
        generator = torch.Generator().manual_seed(1)
        return self._keep(
            "q", vocab_size, lambda: torch.empty(self._rows[vocab_size], vocab_size).exponential_(generator=generator)
        )

    def _keep(self, kind: str, key: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept.pop(kind, None)  # frees it before the next is made
            self._kept[kind] = (key, make())
        return self._kept[kind][1]


class Runner:
    """Measures cells."""

    def __init__(self, plan: list[Cell], time_scale: float = 1.0) -> None:
        """Prepares for a plan.

        Args:
            plan: all cells that will be measured.
            time_scale: 1 for the usual effort.
        """
        self.plan = plan
        self.pools = Pools(plan)
        self.time_scale = time_scale
        self._agreement: dict[tuple[object, ...], float] = {}

    def run(self) -> list[dict[str, Any]]:
        """Measures the plan and shows progress; returns a record for each cell, in the order of the plan."""
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        records: dict[int, dict[str, Any]] = {}
        with Progress(*columns, TextColumn("{task.description}")) as progress:
            task = progress.add_task("", total=len(self.plan))
            for place, cell in sorted(enumerate(self.plan), key=lambda placed: _data_of(placed[1])):
                progress.update(task, description=cell.describe())
                records[place] = self.measure(cell)
                progress.advance(task)
        return [records[place] for place in range(len(self.plan))]

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Measures one cell."""
        torch.set_num_threads(cell.threads)
        budget = Budget(seconds=SECONDS_PER_CONTESTANT * self.time_scale * len(cell.contestants))
        batches = self.pools.batches(cell)
        if cell.section == ADVERSARIAL:
            subjects, shares = _adversarial_subjects(cell, batches[0]), {}
        else:
            shares = {name: self._check(name, cell) for name in cell.contestants}
            subjects = {name: contestants.subject(name, cell.case, batches) for name in cell.contestants}
        return _record(cell, *_measure_quietly(subjects, budget), shares)

    def _check(self, name: str, cell: Cell) -> float | None:
        """The share of ids that are right; None for what draws none, and for what decides which are right."""
        if name not in contestants.CONTESTANTS or name == cases.REFERENCE:
            return None
        key = (name, cell.case, cell.vocab_size, cell.dtype)
        if key not in self._agreement:
            batch = self.pools.first(cell, agreement.PEER_ROWS)
            if name == cases.OPERATOR:
                self._agreement[key] = agreement.check_operator(batch, cell.case)
            else:
                self._agreement[key] = agreement.check_peer(name, batch, cell.case)
        return self._agreement[key]


def _data_of(cell: Cell) -> tuple[object, ...]:
    """What neighbours share when cells are ordered by it."""
    return cell.vocab_size, cell.case.distribution, cell.dtype


def _measure_quietly(subjects: dict[str, Repeat], budget: Budget) -> tuple[dict[str, Statistics], float | None]:
    """Measures again while others disturb it, a few times; returns the least disturbed, and by how much it was."""
    best: tuple[dict[str, Statistics], float | None] | None = None
    for _ in range(MOST_ATTEMPTS):
        watch = Watch()
        results = measure(subjects, budget)
        disturbed = watch.share_of_others()
        if best is None or (disturbed or 0.0) < (best[1] or 0.0):
            best = results, disturbed
        if disturbed is None or disturbed <= MOST_DISTURBED:
            break
    assert best is not None
    return best


def _adversarial_subjects(cell: Cell, ordinary: Batch) -> dict[str, Repeat]:
    """The operator alone, on rows of each kind."""
    sample = contestants.CONTESTANTS[cases.OPERATOR].prepare(cell.case)
    rows = distributions.adversarial(cell.vocab_size, cell.batch_size)
    batches = {ORDINARY: ordinary} | {
        name: make_batch(logits.to(cases.DTYPES[cell.dtype]), cell.case, ordinary.q) for name, logits in rows.items()
    }
    return {name: repeat(rotate(sample, [batch])) for name, batch in batches.items()}


def _record(
    cell: Cell, results: dict[str, Statistics], disturbed: float | None, shares: dict[str, float | None]
) -> dict[str, Any]:
    """A cell and its figures, as JSON."""
    return {
        "section": cell.section,
        "case": cell.case.name,
        "branch": cell.case.branch,
        "k": cell.case.k,
        "p": cell.case.p,
        "logits": cell.case.distribution,
        "vocab_size": cell.vocab_size,
        "batch_size": cell.batch_size,
        "dtype": cell.dtype,
        "cache": "cold" if cell.is_cold else "warm",
        "threads": cell.threads,
        "bytes": cell.bytes_read,
        "disturbed": disturbed and round(disturbed, 3),
        "results": {
            name: _rounded(result) | ({} if shares.get(name) is None else {"agreement": shares[name]})
            for name, result in results.items()
        },
    }


def _rounded(result: Statistics) -> dict[str, float]:
    return {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in result.to_json().items()}
