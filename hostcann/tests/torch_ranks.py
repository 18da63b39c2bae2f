"""Programs for torchrun, on HCCL beside gloo. Each rank prints a line when all is well.

python -m torch.distributed.run --nproc_per_node=3 torch_ranks.py collectives 1 3 257
python -m torch.distributed.run --nproc_per_node=2 torch_ranks.py captured
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch import Tensor

import hostcann

DTYPES = (
    *(torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
REDUCED = (torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
"""What torch_npu reduces; float64 is refused by its own check."""
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN)

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
following, preceding = (rank + 1) % ranks, (rank - 1) % ranks

# ---- each collective gives what gloo gives ----

Make = Callable[[int], Tensor]
"""Makes a tensor of so many elements on a device: small integers, different on each rank, so that sums and products
of them are exact in every dtype."""


def call(name: str, make: Make, size: int, *arguments: Any) -> list[Tensor]:
    """Calls a collective; returns what this rank receives."""
    tensor, larger = make(size), make(size * ranks)
    received = torch.empty_like(tensor)
    if name == "all_reduce":
        dist.all_reduce(tensor, *arguments)
        return [tensor]
    if name == "reduce":
        dist.reduce(tensor, ranks - 1, *arguments)
        return [tensor] if rank == ranks - 1 else []
    if name == "broadcast":
        dist.broadcast(tensor, 1 % ranks)
        return [tensor]
    if name == "all_gather":
        results = [torch.empty_like(tensor) for _ in range(ranks)]
        dist.all_gather(results, tensor)
        return results
    if name == "all_to_all":  # rank r sends r + 1 + its own number of elements to rank r
        parts = [size + other + rank for other in range(ranks)]
        received = torch.empty_like(make(sum(parts)))
        dist.all_to_all_single(received, make(sum(parts)), parts, parts)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(received, larger)
    elif name == "scatter":
        dist.scatter(received, list(larger.chunk(ranks)) if rank == 0 else None, 0)
    elif name == "ring":  # even ranks send first
        steps = [lambda: dist.send(tensor, following), lambda: dist.recv(received, preceding)]
        for step in steps if rank % 2 == 0 else reversed(steps):
            step()
    elif name == "batch":
        works = [dist.P2POp(dist.isend, tensor, following), dist.P2POp(dist.irecv, received, preceding)]
        for work in dist.batch_isend_irecv(works):
            work.wait()
    return [received]


def agree(name: str, size: int, dtype: torch.dtype, *arguments: Any) -> None:
    """Calls on both devices and compares bits."""

    def make(count: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * rank + count)
        largest = 2 if dtype in (torch.bool, torch.int8, torch.uint8) else 4
        return torch.randint(0, largest, (count,), generator=generator).to(dtype)

    expected = call(name, make, size, *arguments)
    found = [tensor.cpu() for tensor in call(name, lambda count: make(count).npu(), size, *arguments)]
    for left, right in zip(expected, found, strict=True):
        if left.dtype != right.dtype or not torch.equal(left, right):
            what = f"{name} of {size} {dtype}, {arguments}"
            raise AssertionError(f"rank {rank}: {what}: hccl {right.tolist()}, gloo {left.tolist()}")


def check_collectives(*sizes: str) -> str:
    for size in map(int, sizes):
        for dtype in REDUCED:
            for operation in OPERATIONS:
                agree("all_reduce", size, dtype, operation)
                agree("reduce", size, dtype, operation)
            agree("reduce_scatter", size, dtype)
        for dtype in DTYPES:
            for name in ("all_gather", "broadcast", "scatter", "all_to_all", "ring", "batch"):
                agree(name, size, dtype)
    dist.barrier()
    return "all agree"


# ---- captured in a graph, replayed with other values, and counted ----


def check_captured(size: int = 5, replays: int = 3) -> str:
    x = torch.zeros(size, device="npu")
    gathered = torch.zeros(ranks * size, device="npu")
    dist.all_reduce(x)  # the communicator is made at the first call
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        total = x * 2
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, total + rank)
    with hostcann.profile() as counted:
        for replay in range(replays):
            x.fill_(replay + rank)
            graph.replay()
            expected = 2.0 * sum(replay + other for other in range(ranks))
            assert total.tolist() == [expected] * size
            assert gathered.reshape(ranks, size).T.tolist() == [[expected + other for other in range(ranks)]] * size
    assert counted.collectives["HcclAllReduce"] == (replays, replays * size * 4, replays * size * 4)
    assert counted.collectives["HcclAllGather"] == (replays, replays * size * 4, replays * size * 4 * ranks)
    assert f"{replays} HcclAllGather (60 B sent, 120 B received)" in counted.table()
    assert counted.as_json()["collectives"]["HcclAllGather"]["sent"] == 60
    return "replayed"


torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,npu:hccl")
checks = {"collectives": check_collectives, "captured": check_captured}
done = checks[sys.argv[1]](*sys.argv[2:])
dist.destroy_process_group()
# In one write: print writes the end of the line by itself where Python does not buffer, as torchrun starts it.
sys.stdout.write(f"rank {rank}: {done}\n")
