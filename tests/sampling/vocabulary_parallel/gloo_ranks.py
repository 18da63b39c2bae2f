"""One rank of a group of gloo: draws mixed batches with the others, beside the step that is not split.

    python -m torch.distributed.run --standalone --nproc_per_node=3 tests/sampling/vocabulary_parallel/gloo_ranks.py

With ``--forks 3`` it needs no torchrun: it forks so many ranks. With ``--drafts`` drafts are verified instead. With
``--dies`` a rank, the last one if none is named, ends in the middle of a step; the others say what they are told, and
draw in a new group.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import torch  # isort: skip  # noqa: E402
import torch.distributed as dist  # noqa: E402
from mixed_drafts import verify_on_rank  # noqa: E402
from mixed_rows import batch_of, draw_on_rank, random_case  # noqa: E402
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
    """Draws so many rows, and says so once."""
    exchange = ProcessGroupExchange(None)
    drawn = draw_on_rank(exchange, rows, first=31_000)
    if exchange.rank == 0:
        print(f"{drawn} rows are the same in {exchange.size} processes")


def lose_a_rank(lost: int) -> None:
    """Takes a step in which a rank ends, -1 being the last one; the others go on in a new group."""
    exchange = Dies(None) if dist.get_rank() == lost % dist.get_world_size() else ProcessGroupExchange(None)
    case = random_case(5, exchange.size)
    shard = shards_of(case.widths, case.vocab_size, exchange)
    try:
        Sampler(shard=shard)(part_of(case.logits, shard), batch_of(case))
    except RuntimeError as error:
        print(f"rank {exchange.rank} says: {error}".replace("\n", " "), flush=True)
    dist.destroy_process_group()
    survivors = [rank for rank in range(exchange.size) if rank != lost % exchange.size]
    store = dist.FileStore(str(Path(tempfile.gettempdir(), f"survivors_{os.environ['MASTER_PORT']}")), len(survivors))
    dist.init_process_group(
        "gloo", store=store, rank=survivors.index(exchange.rank), world_size=len(survivors), timeout=DEADLINE
    )
    draw(20)


def fork_ranks(size: int) -> None:
    """Goes on as each of so many ranks, in forks; this process ends when all of them have."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
    for rank in range(size):
        if os.fork() == 0:
            os.environ["RANK"] = str(rank)
            return
    statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(size)]  # at once: no rank stays as a zombie
    raise SystemExit(next((status for status in statuses if status != 0), 0))


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--drafts", type=int, default=0, metavar="PASSES")
    parser.add_argument("--dies", type=int, nargs="?", const=-1, metavar="RANK")
    parser.add_argument("--forks", type=int, default=0, metavar="RANKS")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.forks:
        fork_ranks(options.forks)
    dist.init_process_group("gloo", timeout=DEADLINE)
    if options.dies is not None:
        lose_a_rank(options.dies)
    elif options.drafts:
        print(verify_on_rank(ProcessGroupExchange(None), options.drafts))
    else:
        draw(options.rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
