"""A program for torchrun: data-parallel training and a sharded checkpoint, on HCCL beside gloo.

python -m torch.distributed.run --nproc_per_node=2 training_program.py FOLDER
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch_npu  # noqa: F401
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 5

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,npu:hccl")


def trained(device: str) -> list[Tensor]:
    """The parameters after a few steps, each rank with data of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(STEPS):
        inputs, targets = torch.randn(6, 8, generator=data), torch.randn(6, 4, generator=data)
        optimizer.zero_grad()
        (parallel(inputs.to(device)) - targets.to(device)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


for found, expected in zip(trained("npu"), trained("cpu"), strict=True):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

mesh = init_device_mesh("npu", (ranks,))
whole = torch.arange(40.0).reshape(10, 4)
checkpoint.save({"weight": distribute_tensor(whole.npu(), mesh, [Shard(0)])}, checkpoint_id=sys.argv[1])
state = {"weight": distribute_tensor(torch.zeros(10, 4, device="npu"), mesh, [Shard(1)])}
checkpoint.load(state, checkpoint_id=sys.argv[1])
loaded = state["weight"]
assert isinstance(loaded, DTensor)
assert torch.equal(loaded.full_tensor().cpu(), whole)
dist.destroy_process_group()
# In one write: print writes the end of the line by itself where Python does not buffer, as torchrun starts it.
sys.stdout.write(f"rank {rank}: trained and loaded\n")
