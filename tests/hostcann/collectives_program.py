"""A program for torchrun: each collective on HCCL beside the same on gloo. Prints a line a rank when all agree.

python -m torch.distributed.run --nproc_per_node=3 hccl_program.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch import Tensor

INTEGERS = (torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REDUCED = (torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
"""What torch_npu reduces; float64 is refused by its own check."""
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN)

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,npu:hccl")


def values(size: int, dtype: torch.dtype, owner: int = rank) -> Tensor:
    """Small integers, different on each rank: sums and products of them are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * owner + size)
    return torch.randint(
        0, 2 if dtype in (torch.bool, torch.int8, torch.uint8) else 4, (size,), generator=generator
    ).to(dtype)


def agree(name: str, call: Callable[[str], list[Tensor]]) -> None:
    """Calls on both devices and compares bits."""
    expected, found = call("cpu"), [tensor.cpu() for tensor in call("npu")]
    for left, right in zip(expected, found, strict=True):
        if left.dtype != right.dtype or not torch.equal(left, right):
            raise AssertionError(f"rank {rank}: {name}: hccl {right.tolist()}, gloo {left.tolist()}")


def all_reduce(size: int, dtype: torch.dtype, operation: dist.ReduceOp) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        tensor = values(size, dtype).to(device)
        dist.all_reduce(tensor, operation)
        return [tensor]

    return call


def reduce(size: int, dtype: torch.dtype, operation: dist.ReduceOp) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        tensor = values(size, dtype).to(device)
        dist.reduce(tensor, ranks - 1, operation)
        return [tensor] if rank == ranks - 1 else []

    return call


def reduce_scatter(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        result = torch.empty(size, dtype=dtype, device=device)
        dist.reduce_scatter_tensor(result, values(size * ranks, dtype).to(device))
        return [result]

    return call


def all_gather(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        results = [torch.empty(size, dtype=dtype, device=device) for _ in range(ranks)]
        dist.all_gather(results, values(size, dtype).to(device))
        return results

    return call


def broadcast(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        tensor = values(size, dtype).to(device)
        dist.broadcast(tensor, 1 % ranks)
        return [tensor]

    return call


def scatter(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        result = torch.empty(size, dtype=dtype, device=device)
        parts = list(values(size * ranks, dtype).to(device).chunk(ranks)) if rank == 0 else None
        dist.scatter(result, parts, 0)
        return [result]

    return call


def all_to_all(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    """Uneven parts: rank r sends r + 1 + its own number of elements to rank r."""

    def call(device: str) -> list[Tensor]:
        send = [size + other + rank for other in range(ranks)]
        received = torch.empty(sum(send), dtype=dtype, device=device)
        dist.all_to_all_single(received, values(sum(send), dtype).to(device), send, send)
        return [received]

    return call


def point_to_point(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    """A ring: even ranks send first."""

    def call(device: str) -> list[Tensor]:
        received = torch.empty(size, dtype=dtype, device=device)
        sent = values(size, dtype).to(device)
        steps = [lambda: dist.send(sent, (rank + 1) % ranks), lambda: dist.recv(received, (rank - 1) % ranks)]
        for step in steps if rank % 2 == 0 else reversed(steps):
            step()
        return [received]

    return call


def batched(size: int, dtype: torch.dtype) -> Callable[[str], list[Tensor]]:
    def call(device: str) -> list[Tensor]:
        received = torch.empty(size, dtype=dtype, device=device)
        sent = values(size, dtype).to(device)
        operations = [
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return [received]

    return call


count = 0
for size in map(int, sys.argv[1:]):
    for dtype in REDUCED:
        for operation in OPERATIONS:
            agree(f"all_reduce {operation} of {size} {dtype}", all_reduce(size, dtype, operation))
            agree(f"reduce {operation} of {size} {dtype}", reduce(size, dtype, operation))
            count += 2
        agree(f"reduce_scatter of {size} {dtype}", reduce_scatter(size, dtype))
        count += 1
    for dtype in (*INTEGERS, *FLOATS):
        for one in (all_gather, broadcast, scatter, all_to_all, point_to_point, batched):
            agree(f"{one.__name__} of {size} {dtype}", one(size, dtype))
            count += 1
dist.barrier()
dist.destroy_process_group()
# In one write: print writes the end of the line by itself where Python does not buffer, as torchrun starts it.
sys.stdout.write(f"rank {rank}: {count} agree\n")
