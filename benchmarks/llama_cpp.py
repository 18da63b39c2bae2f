"""A step of the sampling layer on the CPU beside llama.cpp's chain, for a row, each with one thread.

    nox -s llama_cpp -- -m benchmarks.llama_cpp  # compiles llama.cpp once, prints the table and the promises

64 rows of a language model's logits, a vocabulary of 151,936: float32, which is what llama.cpp takes, and bfloat16. All
have a text of 1000 tokens, for penalties and DRY. llama.cpp makes the candidates of each step anew; what its samplers
take without that is told beside it. What was found is kept in build/performance/llama_cpp.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
import numpy as np
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ascend_sample.bench.timing import Budget, Repeat, measure, repeat
from ascend_sample.requests import from_llama_cpp
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from benchmarks import distributions
from benchmarks.command import measure_and_show, microseconds, others_share, run_of, show_table
from benchmarks.gates import AT_LEAST, Gate, Measured, gate_of_worst, ratio
from benchmarks.quiet import Watch

ROWS, VOCAB_SIZE, TEXT = 64, 151936, 1000
SECONDS = 8.0
LEAST: Final = 50
"""So many times as long as a row of a step llama.cpp's chains are to take."""
LLAMA, SAMPLERS_ALONE = "llama.cpp", "its samplers alone"
STEPS: Final = {"Sampler, float32": torch.float32, "Sampler, bfloat16": torch.bfloat16}
DEFAULT, EVERYTHING = "the default chain", "everything on"
ALONE: Final = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALTIES: Final = {"repeat_penalty": 1.1, "presence_penalty": 0.5, "repeat_last_n": TEXT}
DRY: Final = {"dry_multiplier": 0.8, "dry_penalty_last_n": TEXT}
XTC: Final = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
CELLS: Final[dict[str, dict[str, Any]]] = {
    DEFAULT: {},
    EVERYTHING: {**PENALTIES, **DRY, "top_n_sigma": 2.0, "typical_p": 0.95, **XTC},
    "no filter": ALONE,
    "top-k 40": ALONE | {"top_k": 40},
    "top-p 0.95": ALONE | {"top_p": 0.95},
    "min-p 0.05": ALONE | {"min_p": 0.05},
    "typical 0.95": ALONE | {"typical_p": 0.95},
    "top-n-sigma 1.5": ALONE | {"top_n_sigma": 1.5},
    "xtc": ALONE | XTC,
    "penalties": ALONE | PENALTIES,
    "DRY": ALONE | DRY,
    "mirostat 2": {"mirostat": 2, "temperature": 1.0},
}
"""Requests of llama.cpp's server."""


def params_of(request: Mapping[str, Any], row: int) -> SamplingParams:
    """The request of a row, whose penalties and DRY look at the whole text, without breakers."""
    whole = {"repeat_last_n": -1, "dry_penalty_last_n": -1, "dry_sequence_breakers": [], "seed": row}
    return from_llama_cpp({**request, **whole})


def step_of(request: Mapping[str, Any], logits: Tensor, texts: Tensor) -> Callable[[], object]:
    """A step that does not advance, so all steps cost the same."""
    batch = SamplingBatch(logits.shape[1])
    batch.extend([params_of(request, row) for row in range(len(logits))], output_ids=list(texts))
    sampler = Sampler()
    return lambda: sampler(logits, batch, advance=False)


def chain_times(request: Mapping[str, Any], logits: Tensor, texts: Tensor) -> dict[str, Repeat]:
    """The chain of a request over the rows in turns, with candidates that are made anew and without that time."""
    from tests.llama_cpp.samplers import candidates_of, server_chain

    chain = server_chain(request, logits.shape[1])
    chain.accept(texts[0].tolist())
    rows = logits.numpy()
    template, candidates = candidates_of(rows[0]), candidates_of(rows[0])
    as_bytes, as_found = candidates.view(np.uint8), template.view(np.uint8)  # so numpy copies them at once
    number = 0

    def run(calls: int, is_all: bool) -> float:
        nonlocal number
        seconds = 0.0
        for _ in range(calls):
            number = (number + 1) % len(rows)
            began = time.perf_counter()
            np.copyto(as_bytes, as_found)
            candidates["logit"] = rows[number]
            made = time.perf_counter()
            chain.apply(candidates)
            seconds += time.perf_counter() - (began if is_all else made)
        return seconds

    return {LLAMA: lambda calls: run(calls, True), SAMPLERS_ALONE: lambda calls: run(calls, False)}


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    logits = distributions.make(distributions.LANGUAGE_MODEL, ROWS, VOCAB_SIZE)
    texts = torch.randint(VOCAB_SIZE, (ROWS, TEXT), generator=torch.Generator().manual_seed(0))
    records, threads = [], torch.get_num_threads()
    for name, request in track(CELLS.items(), description="cells"):
        subjects = chain_times(request, logits, texts)
        subjects |= {step: repeat(step_of(request, logits.to(dtype), texts)) for step, dtype in STEPS.items()}
        watch = Watch()
        torch.set_num_threads(1)
        results = measure(subjects, Budget(seconds=seconds))
        torch.set_num_threads(threads)
        found = {each: result.to_json() for each, result in results.items()}
        records.append({"cell": name, "disturbed": watch.share_of_others(), "results": found})
    return run_of(records, (judge(records, step) for step in STEPS))


def times_a_row(record: dict[str, Any], theirs: str, step: str) -> float:
    """How many times as long as a row of a step llama.cpp takes for one."""
    return ratio(record, theirs, step) * ROWS


def judge(records: list[dict[str, Any]], step: str) -> Gate:
    """What is promised of whole chains, candidates included."""
    measured = [
        Measured(times_a_row(record, LLAMA, step), record, record["cell"])
        for record in records
        if record["cell"] in (DEFAULT, EVERYTHING)
    ]
    return gate_of_worst("llama.cpp", f"{LLAMA}'s chain / a row of {step}", AT_LEAST, LEAST, measured)


def show(found: dict[str, Any]) -> None:
    """Prints medians of a row, ratios, and the promises."""
    table = Table("request", LLAMA, SAMPLERS_ALONE, *(head for step in STEPS for head in (step, "times", "alone")))
    table.add_column("others' share")
    for record in found["records"]:
        results = record["results"]
        cells = [microseconds(results[name]["median"]) for name in (LLAMA, SAMPLERS_ALONE)]
        for step in STEPS:
            cells.append(f"{results[step]['median'] / ROWS * 1e6:.1f} us")
            cells += [f"{times_a_row(record, theirs, step):.1f}" for theirs in (LLAMA, SAMPLERS_ALONE)]
        table.add_row(record["cell"], *cells, others_share(record))
    show_table(table, found["gates"])


if __name__ == "__main__":
    raise SystemExit(measure_and_show("llama_cpp", __doc__, (SECONDS, "for each row of the table"), run, show))
