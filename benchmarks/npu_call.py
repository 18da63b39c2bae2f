"""What a call costs on the host and in device memory, beside torch_npu's built-in sampler (``make bench-npu``).

All get the same inputs, interleaved in one process. The built-in and the second operator call aclnnTopKTopPSampleV2,
the first operator aclnnTopKTopPSample. Host time is measured while kernels are accepted and dropped (hostcann's
null-kernel mode): it is the time of Python, torch, torch_npu's task queue and the binding. Memory is what torch_npu's
allocator hands out during a call that is not the first, less the ids and the workspace, which CANN asks for and nobody
can spare. On hostcann none of this says anything about a device: only the rows beside one another mean something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import ascend_sample
import hostcann

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN
from tqdm import tqdm

from ascend_sample._options import file_to_write, whole_number
from ascend_sample.npu import aclnn_call

MEBIBYTE = 2**20
EPS = 1e-8

Call = Callable[[], object]


class Caller(NamedTuple):
    """A call, and the function that calls the same operator of CANN through the binding that tells its workspace."""

    call: Call
    same_operator: Call


def inputs(batch_size: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One batch on the device: bf16 logits, k = 50, p = 0.9, float32 noise."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(batch_size, vocab_size, generator=generator).to(torch.bfloat16).npu(),
        torch.full((batch_size,), 50, dtype=torch.int32).npu(),
        torch.full((batch_size,), 0.9, dtype=torch.bfloat16).npu(),
        torch.rand(batch_size, vocab_size, generator=generator).npu(),
    )


def callers(batch: tuple[torch.Tensor, ...]) -> dict[str, Caller]:
    """The compared calls, on tensors that need no conversion."""
    import torch_npu

    first, second = torch.ops.ascend_sample.top_k_top_p_sample, torch.ops.ascend_sample.top_k_top_p_sample_v2

    def call_first() -> object:
        return ascend_sample.top_k_top_p_sample(*batch)

    def call_second() -> object:
        return ascend_sample.top_k_top_p_sample_v2(*batch)

    return {
        "torch_npu built-in": Caller(lambda: torch_npu.npu_top_k_top_p_sample(*batch), call_second),
        "operator": Caller(lambda: first.default(*batch, EPS), call_first),
        "function": Caller(call_first, call_first),
        "second operator": Caller(lambda: second.default(*batch, None, EPS), call_second),
        "function of the second": Caller(call_second, call_second),
    }


def workspace_size(call: Call) -> int:
    """The bytes of workspace that CANN asks for."""
    allocate = mock.patch.object(aclnn_call, "_allocate_workspace", wraps=aclnn_call._allocate_workspace)
    with ascend_sample.use_backend("cffi"), allocate as spy:
        call()
    torch.npu.synchronize()
    return int(spy.call_args.args[1])


def allocated_by(call: Call) -> int:
    """Bytes that torch_npu's allocator hands out during a call, whether they are given back or not."""

    def handed_out() -> int:
        torch.npu.synchronize()
        return int(torch.npu.memory_stats()["allocated_bytes.all.allocated"])

    before = handed_out()
    call()
    return handed_out() - before


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


def spread(samples: list[float]) -> str:
    """Returns the first and the last decile as the table has them."""
    deciles = statistics.quantiles(samples, n=10, method="inclusive")  # of few samples, too, none lies beyond them
    return f"{deciles[0] * 1e6:.1f}..{deciles[-1] * 1e6:.1f}"


def main() -> int:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/npu_call.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=whole_number(1), default=64)
    parser.add_argument("--vocab-size", type=whole_number(1), default=151936)
    parser.add_argument("--rounds", type=whole_number(2), default=200)  # deciles are of several times
    parser.add_argument("--repeats", type=whole_number(1), default=20)
    parser.add_argument("--json", type=file_to_write, help="write the figures to this file")
    options = parser.parse_args()
    if not hostcann.is_active():
        raise SystemExit("Run `make bench-npu`, or this file through `python -m hostcann run python`.")
    batch = inputs(options.batch_size, options.vocab_size)
    compared = callers(batch)
    calls = {name: caller.call for name, caller in compared.items()}
    for call in calls.values():
        call()
    memory = {
        name: allocated_by(caller.call) - workspace_size(caller.same_operator) - 8 * options.batch_size
        for name, caller in compared.items()
    }
    times = host_times(calls, options.rounds, options.repeats)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    base = next(iter(calls))
    print(f"[{options.batch_size}, {options.vocab_size}] bfloat16, {torch.npu.get_device_name(0)} EMULATED by hostcann")
    print("memory: beyond ids and workspace, of a call that is not the first; rounded up by the allocator")
    print(f"{'':<25}{'memory MiB':>12}{'B a logit':>11}{'host time us':>14}{'ratio':>7}{'p10..p90 us':>16}")
    for name in calls:
        print(
            f"{name:<25}{memory[name] / MEBIBYTE:>12.2f}{memory[name] / batch[0].numel():>11.2f}"
            f"{medians[name] * 1e6:>14.1f}{medians[name] / medians[base]:>7.2f}{spread(times[name]):>16}"
        )
    if options.json:
        options.json.write_text(json.dumps({"memory_bytes": memory, "host_seconds": times}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
