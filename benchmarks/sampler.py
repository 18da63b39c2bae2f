"""A step of the sampling layer on the CPU, beside what it stands on and beside vLLM's sampler in plain torch.

    python -m benchmarks.sampler             # prints the table and the promises, writes build/performance/sampler.json
    python -m benchmarks.sampler publish     # takes the last run into docs/sampling_speed.md

Every cell times its contestants in turns, round after round. All steps have seeded rows and report no logprobs. The
peer makes its noise as vLLM does for unseeded rows, one whole-batch `exponential_`, which is the cheaper of its two
ways: with seeds it makes each row's noise on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.progress import track
from rich.table import Table

from ascend_sample.bench.timing import rotate
from ascend_sample.integrations.vllm import TopKTopPSampler
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from benchmarks import cases, contestants, distributions, environment, step_launches, step_rows
from benchmarks.command import (
    fill_between,
    microseconds,
    others_share,
    parser_of,
    quartiles_of,
    run_of,
    show_table,
    timed,
)
from benchmarks.gates import AT_LEAST, AT_MOST, Gate, gate_of_ratios, is_disturbed, ratio
from benchmarks.native import ROOT
from benchmarks.step_rows import KINDS, MIXED, MIXED_FACTOR, PEER, READ, SMALL_SHAPE_FACTOR, STEP, Kind

OUTPUT = ROOT / "build" / "performance" / "sampler.json"
PUBLISHED = ROOT / "docs" / "sampling_speed.json"
DOCUMENT = ROOT / "docs" / "sampling_speed.md"
MARKS = "speed"

VOCAB_SIZE, SMALL_VOCAB_SIZE = 151936, 32000
SECONDS = 4.0

FUSED = "fused kernel alone"
ADAPTER = "vLLM's sampler, this package's"
MIN_P = 0.05
AHEAD, EDITED_AHEAD = 500.0, 100.0
"""How many times as long as a step the peer takes at least: where nothing edits logits, and where something does."""
EQUAL, DISTINCT = "equal parameters", "all-distinct parameters"


@dataclass(frozen=True)
class Cell:
    """What is timed together.

    Attributes:
        name: what the rows ask for.
        batch_size: rows.
        is_cold: each step finds its logits in memory, not in a cache.
        make: the contestants, from the cell.
        dtype: of the logits, in short.
        vocab_size: columns.
        kind: of rows of which a step has a budget.
    """

    name: str
    batch_size: int
    is_cold: bool
    make: Callable[[Cell], dict[str, Callable[[], object]]]
    dtype: str = "bf16"
    vocab_size: int = VOCAB_SIZE
    kind: Kind | None = None

    def describe(self) -> str:
        """One line."""
        return f"{self.name}, [{self.batch_size}, {self.vocab_size}] {self.dtype}, {'cold' if self.is_cold else 'warm'}"


def logits_of(cell: Cell) -> list[torch.Tensor]:
    """A batch, or as many as caches cannot hold."""
    count = step_rows.count_cold(cell.batch_size * cell.vocab_size * 2) if cell.is_cold else 1
    rows = distributions.make(distributions.LANGUAGE_MODEL, cell.batch_size * count, cell.vocab_size)
    return list(rows.to(torch.bfloat16).split(cell.batch_size))


def step_of(params: Sequence[SamplingParams], batches: list[torch.Tensor]) -> Callable[[], object]:
    """A step of the sampler, which advances as it does when it serves."""
    batch = SamplingBatch(batches[0].shape[1])
    batch.extend(list(params))
    sampler = Sampler()
    return rotate(lambda logits: sampler(logits, batch), [(logits,) for logits in batches])


def filtered(temperature: float) -> Callable[[Cell], dict[str, Callable[[], object]]]:
    """K = 50 and p = 0.9 in every row."""

    def make(cell: Cell) -> dict[str, Callable[[], object]]:
        batches = logits_of(cell)
        case = cases.TOP_K_AND_P
        noise = torch.empty(cell.batch_size, cell.vocab_size).exponential_()
        given = [tuple(contestants.make_batch(logits, case, noise)) for logits in batches]
        fused = contestants.CONTESTANTS[cases.OPERATOR].prepare(case)
        peer = contestants.CONTESTANTS[cases.VLLM].prepare(case)

        def peer_step(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> object:
            scaled = logits.float().div_(temperature)
            return peer(scaled, k, p, torch.empty_like(scaled).exponential_())

        params = [
            SamplingParams(temperature=temperature, top_k=50, top_p=0.9, seed=row) for row in range(cell.batch_size)
        ]
        return {
            STEP: step_of(params, batches),
            FUSED: rotate(fused, given),
            PEER: rotate(peer_step, given),
        }

    return make


def masked(case: cases.Case, mask: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Cell], dict[str, Any]]:
    """Time vLLM's interface on float32 logits into which vLLM has written -inf, served here and by its own sampler.

    What writes the mask is the same for both, so it is not timed.
    """

    def make(cell: Cell) -> dict[str, Callable[[], object]]:
        logits = logits_of(cell)[0].float()
        rows = mask(logits)
        k = None if case.k is None else torch.full((cell.batch_size,), case.k, dtype=torch.int32)
        p = None if case.p is None else torch.full((cell.batch_size,), case.p)
        adapter = TopKTopPSampler()
        peer = contestants.CONTESTANTS[cases.VLLM].prepare(case)
        return {
            ADAPTER: lambda: adapter(rows, {}, k, p)[0],
            PEER: lambda: peer(rows, k, p, torch.empty_like(rows).exponential_()),
        }

    return make


def all_but_five(logits: torch.Tensor) -> torch.Tensor:
    """What a grammar leaves: five tokens of each row, anywhere."""
    ids = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).topk(5).indices
    return torch.full_like(logits, -torch.inf).scatter_(1, ids, logits.gather(1, ids))


def below_min_p(logits: torch.Tensor) -> torch.Tensor:
    """What min-p leaves, which vLLM applies before its sampler."""
    weights = logits.softmax(dim=1)
    return logits.masked_fill(weights < MIN_P * weights.amax(dim=1, keepdim=True), -torch.inf)


def equal_and_distinct(cell: Cell) -> dict[str, Callable[[], object]]:
    """Rows that ask for the same, and rows of which no two do; the distinct ones lie around the equal ones."""
    batches = logits_of(cell)
    rows = range(cell.batch_size)
    equal = [SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, seed=row) for row in rows]
    distinct = [
        SamplingParams(
            temperature=0.6 + 0.4 * row / cell.batch_size,
            top_k=10 + row % 81,
            top_p=0.8 + 0.199 * row / cell.batch_size,
            min_p=0.02 * row / cell.batch_size,
            seed=row,
        )
        for row in rows
    ]
    return {EQUAL: step_of(equal, batches), DISTINCT: step_of(distinct, batches)}


def of_kind(cell: Cell) -> dict[str, Callable[[], object]]:
    """Rows of which a step has a budget, or rows of all such kinds in one batch, beside a read of their logits."""
    batches = logits_of(cell)
    kinds = KINDS if cell.kind is None else (cell.kind,)
    calls = {STEP: step_rows.make_step(kinds, batches), READ: step_rows.make_read(*batches)}
    if cell.kind is not None and not cell.is_cold:
        calls |= {PEER: step_rows.TorchStep(cell.kind, batches[0])}
    return calls


CELLS = (
    Cell("k=50 p=0.9", 64, False, filtered(1.0)),
    Cell("k=50 p=0.9", 64, True, filtered(1.0)),
    Cell("k=50 p=0.9 T=0.8", 64, False, filtered(0.8)),
    Cell("k=50 p=0.9 T=0.8", 64, True, filtered(0.8)),
    Cell("all of k, p, min-p, T", 256, False, equal_and_distinct),
    *(Cell(kind.name, 64, False, of_kind, kind=kind) for kind in KINDS),
    Cell(MIXED, 64, False, of_kind),
    *(Cell(kind.name, 64, True, of_kind, kind=kind) for kind in KINDS),
    *(Cell(kind.name, 1, False, of_kind, vocab_size=SMALL_VOCAB_SIZE, kind=kind) for kind in KINDS),
    Cell("masked to 5 tokens", 32, False, masked(cases.NO_FILTER, all_but_five), "fp32"),
    Cell("min-p applied before", 32, False, masked(cases.NO_FILTER, below_min_p), "fp32"),
    Cell("min-p applied before, p=0.9", 32, False, masked(cases.TOP_P, below_min_p), "fp32"),
)


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    records = []
    for cell in track(CELLS, description="cells"):
        kind = None if cell.kind is None else cell.kind.name
        described = {"cell": cell.describe(), "kind": kind, "batch_size": cell.batch_size, "is_cold": cell.is_cold}
        records.append(described | timed(cell.make(cell), seconds))
    return run_of(records, judge(records))


def judge(records: list[dict[str, Any]]) -> list[Gate]:
    """What the layer promises of its speed."""
    fused = [record for record in records if FUSED in record["results"]]

    def worst(
        name: str, bound: str, limit: float, above: str, below: str, cells: list[dict[str, Any]] = records
    ) -> Gate:
        return gate_of_ratios("sampler", name, bound, limit, cells, above, below)

    return [
        worst("a step / the fused kernel alone", AT_MOST, 1.5, STEP, FUSED),
        worst("vLLM's sampler with its noise / a step", AT_LEAST, 500.0, PEER, STEP, fused),
        worst("a step with all-distinct parameters / with equal ones", AT_MOST, 1.3, DISTINCT, EQUAL),
        worst("masked rows: vLLM's sampler with its noise / the adapter", AT_LEAST, 1.0, PEER, ADAPTER),
        *_budgets(records),
    ]


def _budgets(records: list[dict[str, Any]]) -> list[Gate]:
    """What a step of each kind may cost, and what it must be ahead of."""
    kinds, gates, reads = {kind.name: kind for kind in KINDS}, [], []
    for record in records:
        results, kind = record["results"], kinds.get(record.get("kind"))
        described = {"worst": record["cell"], "is_disturbed": is_disturbed(record)}
        if kind is not None:
            is_small, is_cold = record["batch_size"] == 1, record["is_cold"]
            limit = kind.reads * (SMALL_SHAPE_FACTOR if is_small else 1)
            name = f"{kind.name}: a step / {READ}"
            name += ", one row of a small vocabulary" if is_small else ", from memory" if is_cold else ""
            gates.append(Gate("sampler", name, AT_MOST, limit, ratio(record, STEP, READ), **described))
            if not is_small and not is_cold:
                reads.append(gates[-1].value or 0.0)
                ahead = EDITED_AHEAD if kind.is_edited else AHEAD
                name = f"{kind.name}: {PEER} / a step"
                gates.append(Gate("sampler", name, AT_LEAST, ahead, ratio(record, PEER, STEP), **described))
        elif READ in results and reads:
            limit = MIXED_FACTOR * sum(reads) / len(reads)
            gates.append(
                Gate("sampler", f"{MIXED}: a step / {READ}", AT_MOST, limit, ratio(record, STEP, READ), **described)
            )
    return gates


def tables(found: dict[str, Any]) -> str:
    """The run in Markdown."""

    def time_of(result: dict[str, float]) -> str:
        microseconds = result["median"] * 1e6
        return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"

    lines = [
        f"Measured by `python -m benchmarks.sampler` on {found['environment']['processor']}; medians, and all that is "
        "compared was timed in turns in one run.",
        "",
        "| step | contestant | time | beside the first |",
        "|---|---|---|---|",
    ]
    for record in found["records"]:
        first = next(iter(record["results"].values()))["median"]
        for place, (name, result) in enumerate(record["results"].items()):
            ratio = "" if place == 0 else _ratio(result["median"] / first)
            lines.append(f"| {record['cell'] if place == 0 else ''} | {name} | {time_of(result)} | {ratio} |")
    lines += ["", "| promise | limit | measured | |", "|---|---|---|---|"]
    for gate in found["gates"]:
        value = "" if gate["value"] is None else f"{_ratio(gate['value'])} ({gate['worst']})"
        lines.append(f"| {gate['name']} | {gate['bound']} {gate['limit']:g}x | {value} | {gate['verdict']} |")
    if "device" in found:
        missed = [gate for gate in found["device"] if gate["verdict"] != "pass"]
        within = len(found["device"]) - len(missed)
        kept = f"Of {len(found['device'])} counts on the emulated NPU, the worst of all sizes each, {within} keep"
        lines += ["", f"{kept} their limits{':' if missed else '.'}"]
        if missed:
            lines += ["", "| step | counted | limit | |", "|---|---|---|---|"]
        lines += [
            f"| {gate['name']} | {gate['value']:.3g} | {gate['limit']:.3g} | {gate['verdict']} |" for gate in missed
        ]
    return "\n".join(lines)


def _ratio(value: float) -> str:
    return f"{value:.0f}x" if value >= 100 else f"{value:.3g}x"


def publish(found: dict[str, Any], document: Path = DOCUMENT, data: Path = PUBLISHED) -> None:
    """Take a run into the documentation."""
    fill_between(document, MARKS, tables(found))
    environment.keep(data, found)


def show(found: dict[str, Any]) -> None:
    """Print times and promises."""
    table = Table("step", "contestant", "median", "quartiles", "others' share")
    for record in found["records"]:
        for name, result in record["results"].items():
            times = (microseconds(result["median"]), quartiles_of(result))
            table.add_row(record["cell"], name, *times, others_share(record))
    show_table(table, found["gates"]).print(step_launches.table(found["device"]))


def main() -> int:
    """Measure or publish; returns the exit status."""
    parser = parser_of("sampler", __doc__)
    parser.add_argument("action", nargs="?", choices=("measure", "publish"), default="measure")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each row of the table")
    options = parser.parse_args()
    if options.action == "publish":
        publish(environment.kept(OUTPUT, "python -m benchmarks.sampler"))
        return 0
    found = run(options.seconds)
    found["device"] = [gate.to_json() for gate in step_launches.judge(step_launches.run())]
    environment.keep(OUTPUT, found)
    show(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
