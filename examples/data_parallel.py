"""Data-parallel training of the demo's language model: two emulated NPUs by HCCL learn what two CPUs learn by gloo.

    hostcann run python -m torch.distributed.run --nproc_per_node=2 examples/data_parallel.py

Each process has a device of its own. The model is the demo's in small, and reads bytes, so that it takes seconds. What
stands for the NPUs and their links is hostcann: results and the counts of bytes mean something, times do not.
"""

import os
import sys
from pydoc_data.topics import topics

import hostcann  # isort: skip  the first to import torch, safely

import torch
import torch.distributed as dist
from language_model.model import LanguageModel, ModelConfig
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

if not hostcann.is_active() or "RANK" not in os.environ:
    sys.exit(__doc__)

CONFIG = ModelConfig(vocab_size=256, context_size=64, width=64, layers=2, heads=2, feed_forward_width=128)
STEPS, BATCH_SIZE = 15, 16  # BATCH_SIZE: of all processes together

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,npu:hccl")


def batches(text: Tensor, device: str) -> list[Tensor]:
    """Returns this process's part of each step's sequences, [BATCH_SIZE / ranks, context_size + 1]."""
    generator = torch.Generator().manual_seed(0)
    window = torch.arange(CONFIG.context_size + 1)
    starts = torch.randint(len(text) - len(window), (STEPS, BATCH_SIZE), generator=generator)
    return [text[mine[:, None] + window].to(device) for mine in starts[:, rank::ranks]]


def train(text: Tensor, device: str) -> tuple[list[Tensor], list[float]]:
    """Returns the trained parameters, on the CPU, and the losses of all processes' sequences."""
    torch.manual_seed(0)
    model = DistributedDataParallel(LanguageModel(CONFIG).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for sequences in batches(text, device):
        logits, _ = model(sequences[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    return [parameter.detach().cpu() for parameter in model.parameters()], losses


text = torch.tensor(list("".join(topics.values()).encode()))
with hostcann.profile() as counted:
    on_npu, losses = train(text, "npu")
on_cpu, losses_of_cpu = train(text, "cpu")
difference = max((a - b).abs().max().item() for a, b in zip(on_npu, on_cpu, strict=True))
if rank == 0:
    reduced = counted.collectives["HcclAllReduce"]
    sys.stdout.write(
        f"{ranks} npu, EMULATED by hostcann: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps\n"
        f"{ranks} cpu, gloo:                 loss {losses_of_cpu[0]:.3f} -> {losses_of_cpu[-1]:.3f}\n"
        f"largest difference of a parameter: {difference:.1e}\n"
        f"HcclAllReduce: {reduced.calls / STEPS:.1f} a step, {reduced.sent / STEPS / 1024:.1f} KiB of each process\n"
    )
dist.destroy_process_group()
