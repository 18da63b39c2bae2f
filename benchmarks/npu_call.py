"""What a call costs on the host and in device memory, beside torch_npu's built-in sampler (``make bench-npu``).

Both call aclnnTopKTopPSample on the same inputs, interleaved in one process. Host time is measured while kernels are accepted and
dropped (hostcann's null-kernel mode), so it is the time of Python, torch, torch_npu's task queue and the binding alone. Memory is
torch_npu's own statistics. On hostcann none of this says anything about a device: only the two columns beside one another mean
something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch_npu  # noqa: F401  registers the device
from tqdm import tqdm

import ascend_sample
from ascend_sample import hostcann

MEBIBYTE = 2**20


def inputs(batch_size: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """One batch on the device: bf16 logits, k = 50, p = 0.9, float32 noise."""
    generator = torch.Generator().manual_seed(0)
    return {
        "logits": torch.randn(batch_size, vocab_size, generator=generator).to(torch.bfloat16).npu(),
        "k": torch.full((batch_size,), 50, dtype=torch.int32).npu(),
        "p": torch.full((batch_size,), 0.9, dtype=torch.bfloat16).npu(),
        "q": torch.rand(batch_size, vocab_size, generator=generator).npu(),
    }


def callers(batch: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    """The compared calls, on tensors that need no conversion."""
    arguments = tuple(batch.values())
    operator = torch.ops.ascend_sample.top_k_top_p_sample.default
    return {
        "torch_npu built-in": lambda: torch_npu.npu_top_k_top_p_sample(*arguments),
        "torch.ops.ascend_sample": lambda: operator(*arguments),
        "ascend_sample function": lambda: ascend_sample.top_k_top_p_sample(*arguments),
    }


def output_memory(call: Callable[[], object], workspace: int) -> int:
    """Peak bytes of torch_npu's allocator during one call, less the operator's workspace where that comes from it."""
    torch.npu.synchronize()
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    result = call()
    torch.npu.synchronize()
    peak = torch.npu.max_memory_allocated() - before
    del result
    return peak - workspace


def host_times(calls: dict[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds a call, one sample a round; the calls take turns inside every round."""
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not hostcann.is_active():
        raise SystemExit("Run it as `python -m ascend_sample.hostcann run python benchmarks/npu_call.py` (or make bench-npu).")

    calls = callers(inputs(options.batch_size, options.vocab_size))
    for call in calls.values():
        call()
    memory = {name: output_memory(call, 0) for name, call in calls.items()}
    times = host_times(calls, options.rounds, options.repeats)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    base = next(iter(calls))
    print(f"[{options.batch_size}, {options.vocab_size}] bfloat16 on {torch.npu.get_device_name(0)}, EMULATED by hostcann")
    print(f"{'':<26}{'memory MiB':>12}{'ratio':>8}{'host time us':>15}{'ratio':>8}{'spread us':>16}")
    for name in calls:
        low, *_, high = statistics.quantiles(times[name], n=10)
        print(
            f"{name:<26}{memory[name] / MEBIBYTE:>12.1f}{memory[name] / memory[base]:>8.2f}"
            f"{medians[name] * 1e6:>15.1f}{medians[name] / medians[base]:>8.2f}{low * 1e6:>9.1f}..{high * 1e6:.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"memory_bytes": memory, "host_seconds": medians}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
