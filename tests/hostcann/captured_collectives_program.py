"""A program for torchrun: collectives captured in a graph, replayed with other values, and counted.

python -m torch.distributed.run --nproc_per_node=2 captured_collectives_program.py
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

from ascend_sample import hostcann

SIZE, REPLAYS = 5, 3

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")

x = torch.zeros(SIZE, device="npu")
gathered = torch.zeros(ranks * SIZE, device="npu")
dist.all_reduce(x)  # the communicator is made at the first call
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    total = x * 2
    dist.all_reduce(total)
    dist.all_gather_into_tensor(gathered, total + rank)
with hostcann.profile() as counted:
    for replay in range(REPLAYS):
        x.fill_(replay + rank)
        graph.replay()
        expected = 2.0 * sum(replay + other for other in range(ranks))
        assert total.tolist() == [expected] * SIZE
        assert gathered.reshape(ranks, SIZE).T.tolist() == [[expected + other for other in range(ranks)]] * SIZE
assert counted.collectives["HcclAllReduce"] == (REPLAYS, REPLAYS * SIZE * 4, REPLAYS * SIZE * 4)
assert counted.collectives["HcclAllGather"] == (REPLAYS, REPLAYS * SIZE * 4, REPLAYS * SIZE * 4 * ranks)
assert f"{REPLAYS} HcclAllGather (60 B sent, 120 B received)" in counted.table()
assert counted.as_json()["collectives"]["HcclAllGather"]["sent"] == 60
dist.destroy_process_group()
# In one write: print writes the end of the line by itself where Python does not buffer, as torchrun starts it.
sys.stdout.write(f"rank {rank}: replayed\n")
