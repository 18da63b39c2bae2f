"""A step whose rows keep a range of their values, or remember their draws, on the CPU, beside the same step without.

    python -m benchmarks.value_ranges  # prints the table and the promise, writes build/performance/value_ranges.json

64 rows of a language model's logits, a vocabulary of 151,936, bfloat16. The steps of a cell are timed in turns. In
cells from memory each step takes the next of some copies of the logits, which caches cannot hold: so they lie there
when a model has just written them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ascend_sample.bench.timing import rotate
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from benchmarks import distributions
from benchmarks.command import measure_and_show, microseconds, others_share, run_of, show_table, timed
from benchmarks.gates import AT_MOST, Gate, Measured, gate_of_worst, ratio
from benchmarks.step_rows import READ, cold_copies, make_read

ROWS, VOCAB_SIZE = 64, 151936
SECONDS = 6.0
WITHOUT: Final = "without"
MOST: Final = 1.5
"""So many times the step without any of them a step with one may take."""
CELLS: Final[dict[str, dict[str, Any]]] = {
    "no filter": {},
    "k=50 p=0.9": {"top_k": 50, "top_p": 0.9},
    "p=0.9": {"top_p": 0.9},
}
FILTERS: Final[dict[str, dict[str, Any]]] = {
    WITHOUT: {},
    "epsilon_cutoff": {"epsilon_cutoff": 3e-4},
    "eta_cutoff": {"eta_cutoff": 2e-3},
    "top_a": {"top_a": 0.2},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "xtc": {"xtc_probability": 1.0},
    "typical_p": {"typical_p": 0.9},
    "mirostat": {"mirostat_tau": 5.0},
    "adaptive_p": {"adaptive_target": 0.5},
}


def step_of(params: dict[str, Any], batches: Sequence[Tensor]) -> Callable[[], object]:
    """A step on the next of some logits that does not advance, so all steps cost the same."""
    rows, vocab_size = batches[0].shape
    batch = SamplingBatch(vocab_size)
    batch.extend([SamplingParams(**params, seed=row) for row in range(rows)])
    sampler = Sampler()
    return rotate(lambda logits: sampler(logits, batch, advance=False), [(logits,) for logits in batches])


def times_of(
    cells: dict[str, dict[str, Any]], options: dict[str, dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """Times a step of each cell's requests with each of some options, of logits in a cache and then in memory."""
    logits = distributions.make(distributions.LANGUAGE_MODEL, ROWS, VOCAB_SIZE).to(torch.bfloat16)
    places = {"": [logits], ", from memory": cold_copies(logits, ROWS)}
    records = []
    for (place, batches), (cell, params) in track(list(product(places.items(), cells.items())), description="cells"):
        calls = {option: step_of(params | more, batches) for option, more in options.items()}
        records.append({"cell": cell + place, **timed(calls | {READ: make_read(*batches)}, seconds)})
    return records


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    records = times_of(CELLS, FILTERS, seconds)
    return run_of(records, [judge(records)])


def judge(records: list[dict[str, Any]]) -> Gate:
    """What is promised of it."""
    measured = [
        Measured(ratio(record, name, WITHOUT), record, f"{record['cell']}, {name}")
        for record in records
        for name in record["results"]
        if name not in (WITHOUT, READ)
    ]
    return gate_of_worst("ranges", f"a range / {WITHOUT}", AT_MOST, MOST, measured)


def show(found: dict[str, Any]) -> None:
    """Prints times and the promises."""
    table = Table("rows", "step", "median", "times the first", "reads of the logits", "others' share")
    for record in found["records"]:
        results = record["results"]
        first = next(iter(results))
        for name, result in results.items():
            ratios = (f"{result['median'] / results[other]['median']:.2f}" for other in (first, READ))
            table.add_row(record["cell"], name, microseconds(result["median"]), *ratios, others_share(record))
    show_table(table, found["gates"])


if __name__ == "__main__":
    raise SystemExit(measure_and_show("value_ranges", __doc__, (SECONDS, "for each row of the table"), run, show))
