"""One rank of a group of HCCL, whose logits are on an emulated NPU: draws with the others, beside the whole step there.

    python -m hostcann run python -m torch.distributed.run --standalone --nproc_per_node=2 \
        tests/sampling/vocabulary_parallel/hccl_ranks.py --rows 1000

Then it verifies drafts in some passes. With ``--costs`` it prints as JSON besides what a step asks of the device, by
kind of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import torch  # isort: skip  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: F401, E402
from mixed_drafts import verify_on_rank  # noqa: E402
from mixed_rows import draw_on_rank  # noqa: E402
from shard_ranks import part_of, shards_of  # noqa: E402

import hostcann  # noqa: E402
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams  # noqa: E402
from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange  # noqa: E402

ROWS, VOCAB_SIZE = 8, 20000
KINDS = {
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(top_k=50, seed=1),
    "top-k, top-p, temperature": SamplingParams(top_k=20, top_p=0.9, temperature=0.7, seed=1),
    "no filter": SamplingParams(seed=1),
    "min-p": SamplingParams(min_p=0.1, temperature=0.7, seed=1),
    "penalty": SamplingParams(presence_penalty=1.0, top_k=50, seed=1),
    "top-p": SamplingParams(top_p=0.9, seed=1),
    "logprobs": SamplingParams(top_k=50, seed=1, logprobs=5),
}


def costs() -> None:
    """Prints what a step of each kind asks of the device once the batch is known."""
    exchange, found = ProcessGroupExchange(None), {}
    logits = 3 * torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    for name, params in KINDS.items():
        shard = shards_of((VOCAB_SIZE // 2,) * 2, VOCAB_SIZE, exchange)
        batch, sampler = SamplingBatch(VOCAB_SIZE, "npu"), Sampler(shard=shard)
        batch.extend([params] * ROWS, [[1, 2, 3]] * ROWS)
        part = part_of(logits.bfloat16(), shard).npu()
        for _ in range(2):
            sampler(part, batch)
        torch.npu.synchronize()
        with hostcann.profile() as counted:
            output = sampler(part, batch)
        gathered = counted.collectives["HcclAllGather"]
        found[name] = {
            "launches": sum(counted.launches.values()),
            "waits": sum(counted.synchronizations.values()),
            "copies": counted.copies,
            "collectives": gathered.calls,
            "bytes": gathered.sent,
        }
        assert output.token_ids.cpu().numel() == ROWS
    if exchange.rank == 0:
        sys.stdout.write("costs " + json.dumps(found) + "\n")


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--drafts", type=int, default=4, metavar="PASSES")
    parser.add_argument("--costs", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    exchange = ProcessGroupExchange(None)
    drawn = draw_on_rank(exchange, options.rows, first=57_000, device="npu")
    sys.stdout.write(f"rank {exchange.rank}: {drawn} rows are the same\n")
    sys.stdout.write(verify_on_rank(exchange, options.drafts, "npu") + "\n")
    if options.costs:
        costs()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
