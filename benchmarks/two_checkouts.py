"""Two checkouts of this project, timed in turns: is a change slower than what it changes?

    git worktree add ../before <commit>            # and build it there: make build, or setup.py build_ext --inplace
    python -m benchmarks.two_checkouts ../before . --threads 1

A process of each checkout has the same tensors; they are asked for one cell after the other, in alternating order, so
that what else the machine does meets both. Processes of one checkout differ from each other too: so several pairs are
timed, one after the other. The table has each side's best time, the median of the ratios of a round, and the medians of
single pairs that lie farthest apart. Nothing but what is public is called, which all checkouts have: the operator, and
steps of the sampling layer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

BATCH_SIZE, VOCAB_SIZE, SMALL_VOCAB_SIZE = 64, 151936, 1000
FILTERS = ((50, 0.9), (1024, 0.9), (50, 1.0), (0, 0.9), (0, 1.0))  # k and p; 0 is no top-k
REQUESTS: tuple[dict[str, Any], ...] = (
    {"top_k": 50, "top_p": 0.9},
    {"top_p": 0.9},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_p": 0.9, "temperature": 0.2},
    {"top_p": 0.99},
    {"top_p": 0.9, "return_sampling_mask": True},
    {"top_p": 0.9, "temperature": 0.7, "logit_bias": {7: 1.0}},
    {},
)
"""Of a step of the sampling layer."""
REPEATS = 20  # the first few after a pause are slower, and by how much differs from process to process
Times = list[tuple[float, float]]
CALLS = 2000  # of which one time is taken where a call is what is timed


def make_cells() -> Iterator[tuple[str, Callable[[], object], int]]:
    """Makes each cell's description, its call, and how many calls one time is taken of."""
    import torch

    from ascend_sample import top_k_top_p_sample
    from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams

    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(BATCH_SIZE, VOCAB_SIZE, generator=generator)
    likely = torch.randint(VOCAB_SIZE, (BATCH_SIZE, 40), generator=generator)
    heights = torch.rand(likely.shape, generator=generator) * 14
    rows = {"few likely ids": (1.2 * normal).scatter_add(1, likely, heights), "N(0, 3)": 3 * normal}
    q = torch.empty(BATCH_SIZE, VOCAB_SIZE).exponential_(generator=generator)
    for dtype, (name, logits) in product((torch.bfloat16, torch.float16, torch.float32), rows.items()):
        typed = logits.to(dtype)
        for k, p in FILTERS:
            ks = torch.full((BATCH_SIZE,), k, dtype=torch.int32)
            ps = torch.full((BATCH_SIZE,), p, dtype=dtype)
            yield f"{dtype}, {name}, k={k} p={p}", partial(top_k_top_p_sample, typed, ks, ps, q), 1
        for request in REQUESTS:
            batch = SamplingBatch(VOCAB_SIZE)
            batch.extend([SamplingParams(**request, seed=row) for row in range(BATCH_SIZE)])
            yield f"{dtype}, {name}, a step, {request}", partial(Sampler(), typed, batch, advance=False), 1
    small, small_q = normal[:1, :SMALL_VOCAB_SIZE].bfloat16(), q[:1, :SMALL_VOCAB_SIZE]
    ks, ps = torch.tensor([50], dtype=torch.int32), torch.tensor([0.9], dtype=torch.bfloat16)
    yield f"a call, tensors, [1, {SMALL_VOCAB_SIZE}]", partial(top_k_top_p_sample, small, ks, ps, small_q), CALLS
    yield f"a call, numbers, [1, {SMALL_VOCAB_SIZE}]", partial(top_k_top_p_sample, small, 50, 0.9, small_q), CALLS


def serve(threads: int) -> None:
    """Answers on the standard output: the cells' descriptions, then the best time of each cell that is asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.path[0] = os.getcwd()  # the checkout's package, not the one beside this file
    import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

    import torch  # isort: skip

    torch.set_num_threads(threads)
    cells = list(make_cells())
    print(json.dumps([name for name, _, _ in cells]), file=answers, flush=True)
    for line in sys.stdin:
        _, call, calls = cells[int(line)]
        call()
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls)
        print(json.dumps(min(times)), file=answers, flush=True)


class Side:
    """A checkout's process."""

    def __init__(self, checkout: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", "--threads", str(threads)],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = self._answer()

    def seconds(self, cell: int) -> float:
        """Times one cell."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{cell}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        """Ends the process."""
        self.process.communicate()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"benchmarks.two_checkouts: {self.process.args} ended with {self.process.wait()}")
        return json.loads(line)


def times_of_pair(checkouts: Sequence[Path], threads: int, rounds: int, only: str) -> Iterator[tuple[str, Times]]:
    """Times a pair of new processes; yields a cell's description, and (before, after) of each round, in seconds."""
    before, after = sides = [Side(checkout, threads) for checkout in checkouts]
    for cell, name in enumerate(before.names):
        if only not in name:
            continue
        times = []
        for number in range(rounds):
            if number % 2:
                times.append((before.seconds(cell), after.seconds(cell)))
            else:
                second = after.seconds(cell)
                times.append((before.seconds(cell), second))
        yield name, times
    for side in sides:
        side.end()


def median_ratio(times: Times) -> float:
    """Returns the median of after / before."""
    return statistics.median(after / before for before, after in times)


def main() -> None:
    """Times both sides and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_checkouts", description="Time two checkouts in turns."
    )
    parser.add_argument("checkouts", nargs="*", type=Path, help="before and after, both built")
    parser.add_argument("--rounds", type=int, default=9, help="how often each cell is timed on each side; default 9")
    parser.add_argument("--pairs", type=int, default=3, help="of processes, with as many rounds each; default 3")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cells whose descriptions have it")
    parser.add_argument("--threads", type=int, default=2, help="of torch; default 2")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.threads)
        return
    if len(options.checkouts) != 2:
        parser.error(f"checkouts must be two folders, got {len(options.checkouts)}. Give before and after.")
    for name in ("rounds", "pairs", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}.")
    for checkout in options.checkouts:
        if not list(checkout.glob("ascend_sample/_C*.so")):
            parser.error(f"checkouts must be built, got {checkout} without ascend_sample/_C*.so. Build it first.")
    found: dict[str, list[Times]] = {}
    for _ in track(range(options.pairs), description="pairs of processes", console=Console(stderr=True)):
        for name, times in times_of_pair(options.checkouts, options.threads, options.rounds, options.only):
            found.setdefault(name, []).append(times)
    if not found:
        parser.error(f"--only must be part of a cell's description, got {options.only!r}. Leave it out.")
    table = Table("cell", "before", "after", "median of ratios", "of pairs", title=f"{options.threads} thread(s)")
    for name, of_pairs in found.items():
        every = [each for times in of_pairs for each in times]
        best = [f"{1e6 * min(times):.1f} us" for times in zip(*every, strict=True)]
        ratios = [median_ratio(times) for times in of_pairs]
        table.add_row(name, *best, f"{median_ratio(every):.3f}", f"{min(ratios):.2f} to {max(ratios):.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
