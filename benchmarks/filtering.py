"""What filters leave of rows, on the CPU: the processor beside transformers' warpers, processed logprobs beside raw.

    python -m benchmarks.filtering  # prints the table and the promises, writes build/performance/filtering.json

16 rows of a language model's logits, a vocabulary of 151,936, float32, as transformers hands them to a processor; and
steps of 64 rows of bfloat16 whose requests ask for five logprobs. The contestants of a cell are timed in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.progress import track
from torch import Tensor
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ascend_sample.integrations.transformers import SamplingLogitsProcessor
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from benchmarks import distributions
from benchmarks.command import measure_and_show, run_of, timed
from benchmarks.gates import AT_LEAST, AT_MOST, Gate, gate_of_ratios
from benchmarks.step_rows import READ, make_read
from benchmarks.value_ranges import show

SECONDS = 4.0
ROWS_OF_PROCESSOR, ROWS_OF_STEP, VOCAB_SIZE = 16, 64, 151936
OURS, THEIRS, RAW, PROCESSED = "SamplingLogitsProcessor", "transformers' warpers", "raw logprobs", "processed logprobs"
WARPERS: Final = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}
"""In the order in which transformers has them."""
CELLS: Final[dict[str, dict[str, Any]]] = {
    "k=50": {"top_k": 50},
    "k=50 p=0.9 T=0.8": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "p=0.9": {"top_p": 0.9},
    "min_p=0.1": {"min_p": 0.1},
}
EDITED: Final[dict[str, dict[str, Any]]] = {
    "k=50 p=0.9, penalties": {"top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "k=50 p=0.9, typical_p": {"top_k": 50, "top_p": 0.9, "typical_p": 0.9},
}
"""Rows that a step edits."""
TEXT: Final = 200
"""Tokens of each row, for penalties."""
LEAST: Final = 1.0
"""So many times the processor's time the warpers must take."""
MOST: Final = 2.5
"""So many times the step with raw logprobs one with processed ones may take."""


def processors(params: dict[str, Any], logits: Tensor) -> dict[str, Callable[[], object]]:
    """The processor and the warpers for the same filters."""
    ours = SamplingLogitsProcessor(**params)
    theirs = LogitsProcessorList([kind(params[name]) for name, kind in WARPERS.items() if name in params])
    ids = torch.zeros(len(logits), 1, dtype=torch.int64)  # which none of them reads
    return {THEIRS: lambda: theirs(ids, logits), OURS: lambda: ours(ids, logits)}


def steps(params: dict[str, Any], logits: Tensor) -> dict[str, Callable[[], object]]:
    """Steps of the same requests that report other numbers."""
    batch = SamplingBatch(logits.shape[1])
    requests = [SamplingParams(**params, logprobs=5, seed=row) for row in range(len(logits))]
    batch.extend(requests, output_ids=[range(TEXT)] * len(requests))
    raw, processed = Sampler("raw_logprobs"), Sampler("processed_logprobs")
    return {RAW: lambda: raw(logits, batch, advance=False), PROCESSED: lambda: processed(logits, batch, advance=False)}


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    logits = distributions.make(distributions.LANGUAGE_MODEL, ROWS_OF_STEP, VOCAB_SIZE)
    few, narrow = logits[:ROWS_OF_PROCESSOR], logits.to(torch.bfloat16)
    cells = {f"what is kept, {cell}": (processors(params, few), few) for cell, params in CELLS.items()}
    cells |= {
        f"a step, {cell}": (steps(params, narrow), narrow)
        for cell, params in ({"no filter": {}} | CELLS | EDITED).items()
    }
    records = [
        {"cell": cell, **timed(calls | {READ: make_read(read)}, seconds)}
        for cell, (calls, read) in track(list(cells.items()), description="cells")
    ]
    return run_of(records, judge(records))


def judge(records: list[dict[str, Any]]) -> list[Gate]:
    """What is promised of the cells."""
    return [
        gate_of_ratios("filtering", f"{THEIRS} / {OURS}", AT_LEAST, LEAST, records, THEIRS, OURS),
        gate_of_ratios("filtering", f"{PROCESSED} / {RAW}", AT_MOST, MOST, records, PROCESSED, RAW),
    ]


if __name__ == "__main__":
    raise SystemExit(measure_and_show("filtering", __doc__, (SECONDS, "for each row of the table"), run, show))
