"""What a call costs on the host and in device memory, beside torch_npu's built-in sampler (``make bench-npu``).

Both call aclnnTopKTopPSample on the same inputs, interleaved in one process. Host time is measured while kernels are
accepted and dropped (hostcann's null-kernel mode): it is the time of Python, torch, torch_npu's task queue and the
binding. Memory is torch_npu's own statistics, less the workspace, which CANN asks for and which is the same for all.
On hostcann none of this says anything about a device: only the rows beside one another mean something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
import torch_npu
from tqdm import tqdm

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu import aclnn_cffi
from ascend_sample.npu._abi import ffi

MEBIBYTE = 2**20
EPS, IS_NEED_LOGITS, TOP_K_GUESS = 1e-8, False, 32

Call = Callable[[], object]


def inputs(batch_size: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """One batch on the device: bf16 logits, k = 50, p = 0.9, float32 noise."""
    generator = torch.Generator().manual_seed(0)
    return {
        "logits": torch.randn(batch_size, vocab_size, generator=generator).to(torch.bfloat16).npu(),
        "k": torch.full((batch_size,), 50, dtype=torch.int32).npu(),
        "p": torch.full((batch_size,), 0.9, dtype=torch.bfloat16).npu(),
        "q": torch.rand(batch_size, vocab_size, generator=generator).npu(),
    }


def callers(batch: dict[str, torch.Tensor]) -> dict[str, Call]:
    """The compared calls, on tensors that need no conversion."""
    arguments = (*batch.values(), EPS, IS_NEED_LOGITS, TOP_K_GUESS)
    operator = torch.ops.ascend_sample.top_k_top_p_sample.default
    return {
        "torch_npu built-in": lambda: torch_npu.npu_top_k_top_p_sample(*arguments),
        "torch.ops.ascend_sample": lambda: operator(*arguments),
        "ascend_sample function": lambda: ascend_sample.top_k_top_p_sample(*arguments),
    }


def workspace_size(batch: dict[str, torch.Tensor]) -> int:
    """The bytes of workspace that phase 1 asks for."""
    logits = batch["logits"]
    outputs = {
        "selected": torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device),
        "kept": torch.empty(logits.shape, dtype=torch.float32, device=logits.device),
    }
    cann = aclnn_cffi._cann()
    size, executor = ffi.new("uint64_t *"), ffi.new("aclOpExecutor **")
    with ExitStack() as owners:
        handles = [owners.enter_context(aclnn_cffi._acl_tensor(cann, *item)) for item in (batch | outputs).items()]
        options = (EPS, IS_NEED_LOGITS, TOP_K_GUESS)
        status = cann.get_workspace_size(*handles[:4], *options, *handles[4:], size, executor)
        cann.check(status, aclnn_cffi.PHASE_1, "workspace", logits)
        cann.check(cann.destroy_executor(executor[0]), "aclDestroyAclOpExecutor", "workspace", logits)
    return int(size[0])


def peak_memory(call: Call) -> int:
    """Bytes that torch_npu's allocator hands out at most during one call."""
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    result = call()
    torch.npu.synchronize()
    peak = torch.npu.max_memory_allocated() - before
    del result
    return int(peak)


def host_times(calls: dict[str, Call], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of the calling thread for a call, one sample a round; the calls take turns inside every round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with hostcann.null_kernels():
        for _ in tqdm(range(rounds), desc="host time", leave=False):
            for name, call in calls.items():
                torch.npu.synchronize()
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                samples[name].append((time.perf_counter() - start) / repeats)
    torch.npu.synchronize()
    return samples


def main() -> int:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not hostcann.is_active():
        raise SystemExit("Run `make bench-npu`, or this file through `python -m ascend_sample.hostcann run python`.")

    batch = inputs(options.batch_size, options.vocab_size)
    calls = callers(batch)
    for call in calls.values():
        call()
    workspace = workspace_size(batch)
    memory = {name: peak_memory(call) - workspace for name, call in calls.items()}
    times = host_times(calls, options.rounds, options.repeats)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    base = next(iter(calls))
    print(f"[{options.batch_size}, {options.vocab_size}] bfloat16, {torch.npu.get_device_name(0)} EMULATED by hostcann")
    print(f"workspace of every call: {workspace / MEBIBYTE:.1f} MiB")
    print(f"{'':<25}{'memory MiB':>12}{'ratio':>7}{'host time us':>14}{'ratio':>7}{'p10..p90 us':>16}")
    for name in calls:
        deciles = statistics.quantiles(times[name], n=10)
        spread = f"{deciles[0] * 1e6:.1f}..{deciles[-1] * 1e6:.1f}"
        print(
            f"{name:<25}{memory[name] / MEBIBYTE:>12.1f}{memory[name] / memory[base]:>7.3f}"
            f"{medians[name] * 1e6:>14.1f}{medians[name] / medians[base]:>7.2f}{spread:>16}"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"workspace_bytes": workspace, "memory_bytes": memory, "host_seconds": times}, indent=2)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
