"""Runs the torch operator on a batch file, as the driver runs the core: run_operator.py THREADS BATCHES RESULTS.

In a process of its own, because ASCEND_SAMPLE_CPU_CAPABILITY is read once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch_file import Call, read_batches, write_results

from ascend_sample.parity import Result

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN


def run_operator(calls: Iterable[Call]) -> Iterator[Result]:
    """The operator's results."""
    for logits, k, p, q, eps, is_need_logits in calls:
        ids, kept = torch.ops.ascend_sample.top_k_top_p_sample(logits, k, p, q, eps, is_need_logits)
        yield Result(ids, kept if is_need_logits else None)


def main() -> None:
    """Reads, runs, writes."""
    threads, batches, results = sys.argv[1:]
    torch.set_num_threads(int(threads))
    write_results(Path(results), run_operator(read_batches(Path(batches))))


if __name__ == "__main__":
    main()
