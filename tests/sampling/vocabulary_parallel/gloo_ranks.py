"""One rank of a group of gloo: draws mixed batches with the others, beside the step that is not split.

    python -m torch.distributed.run --standalone --nproc_per_node=3 tests/sampling/vocabulary_parallel/gloo_ranks.py

With ``--drafts`` drafts are verified instead. With ``--dies`` a rank, the last one if none is named, ends in
the middle of a step, and the others say what they are told.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import torch  # isort: skip  # noqa: E402
import torch.distributed as dist  # noqa: E402
from mixed_drafts import verify_on_rank  # noqa: E402
from mixed_rows import batch_of, differences, on_rank, random_case, same, whole  # noqa: E402
from shard_ranks import part_of, shards_of  # noqa: E402
from torch import Tensor  # noqa: E402

from ascend_sample.sampling import Sampler  # noqa: E402
from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange  # noqa: E402

DEADLINE = timedelta(seconds=60)


class Dies(ProcessGroupExchange):
    """Ends its process at the second collective: the first tells the borders."""

    def all_gather(self, message: Tensor) -> Tensor:
        if self.collectives == 1:
            os._exit(0)
        return super().all_gather(message)


def draw(rows: int) -> None:
    """Draws so many rows, and raises where one is another than that of the step that is not split."""
    exchange, drawn, number = ProcessGroupExchange(None), 0, 0
    while drawn < rows:
        case = random_case(31_000 + number, exchange.size)
        for output, wanted in zip(on_rank(case, exchange).outputs, whole(case), strict=True):
            if differences(case, output, wanted) or not same(output, wanted):
                raise SystemExit(f"case {number}, rank {exchange.rank}: {differences(case, output, wanted)}")
            drawn += len(case.params)
        number += 1
    if exchange.rank == 0:
        print(f"{drawn} rows are the same in {exchange.size} processes")


def lose_a_rank(lost: int) -> None:
    """Takes a step in which a rank ends; -1 is the last one."""
    is_lost = dist.get_rank() == lost % dist.get_world_size()
    exchange = Dies(None) if is_lost else ProcessGroupExchange(None)
    case = random_case(5, exchange.size)
    shard = shards_of(case.widths, case.vocab_size, exchange)
    try:
        Sampler(shard=shard)(part_of(case.logits, shard), batch_of(case))
    except RuntimeError as error:
        print(f"rank {exchange.rank} says: {error}".replace("\n", " "), flush=True)
    os._exit(0)  # the group is broken: nobody waits for it


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--drafts", type=int, default=0, metavar="PASSES")
    parser.add_argument("--dies", type=int, nargs="?", const=-1, metavar="RANK")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=DEADLINE)
    if options.dies is not None:
        lose_a_rank(options.dies)
    if options.drafts:
        print(verify_on_rank(ProcessGroupExchange(None), options.drafts))
    else:
        draw(options.rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
