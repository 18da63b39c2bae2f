"""Scores of given texts on the CPU, beside log_softmax, topk and gather.

    python -m benchmarks.score  # prints the table and the promises, writes build/performance/score.json

512 places, a vocabulary of 151,936, bfloat16, the 5 best of each. The peer makes float32 numbers of all places, so that
more of them do not fit into every machine's memory; both take time in proportion to the places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.table import Table
from torch import Tensor

from ascend_sample.sampling import score
from benchmarks import distributions, environment
from benchmarks.command import measure_and_show, others_share, show_table, timed
from benchmarks.gates import AT_LEAST, Measured, gate_of_worst, ratio
from benchmarks.step_rows import make_read

PLACES, VOCAB_SIZE, BEST = 512, 151936, 5
SECONDS = 20.0
SCORE, ENTROPY, PEER, READ = "score", "score with entropy", "log_softmax, topk, gather", "one read of the logits"
AHEAD = 20.0


def peer(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is written where no operator is at hand: no ranks."""
    log_probs = logits.float().log_softmax(1)
    best = log_probs.topk(BEST, 1)
    return log_probs.gather(1, token_ids.unsqueeze(1)), best.values, best.indices


def run(seconds: float, places: int = PLACES, vocab_size: int = VOCAB_SIZE) -> dict[str, Any]:
    """Times the contestants in turns."""
    logits = distributions.make(distributions.LANGUAGE_MODEL, places, vocab_size).to(torch.bfloat16)
    token_ids = torch.arange(places) % vocab_size
    calls: dict[str, Callable[[], object]] = {
        SCORE: lambda: score(logits, token_ids, BEST),
        ENTROPY: lambda: score(logits, token_ids, BEST, entropy=True),
        PEER: lambda: peer(logits, token_ids),
        READ: make_read(logits),
    }
    record = {"places": places, **timed(calls, seconds)}
    label = f"[{places}, {vocab_size}] bfloat16, the {BEST} best"
    gates = [
        gate_of_worst(
            "score", f"{PEER} / {name}", AT_LEAST, AHEAD, [Measured(ratio(record, PEER, name), record, label)]
        )
        for name in (SCORE, ENTROPY)
    ]
    return {"environment": environment.describe(), **record, "gates": [gate.to_json() for gate in gates]}


def show(found: dict[str, Any]) -> None:
    """Prints times and the promises."""
    table = Table("contestant", "median of a place", "quartiles", "others' share")
    for name, result in found["results"].items():
        median, lower, upper = (
            result[key] * 1e6 / found["places"] for key in ("median", "lower_quartile", "upper_quartile")
        )
        table.add_row(name, f"{median:.0f} us", f"{lower:.0f} to {upper:.0f} us", others_share(found))
    show_table(table, found["gates"])


if __name__ == "__main__":
    raise SystemExit(measure_and_show("score", __doc__, (SECONDS, "for all contestants together"), run, show))
