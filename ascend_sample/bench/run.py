"""`python -m ascend_sample bench`: the operator on this machine's device, beside what else samples there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from ascend_sample._contract import MAX_TOP_K, MAX_VOCAB_SIZE, OPERATOR_NAME
from ascend_sample._options import file_to_write, whole_number
from ascend_sample._validate import convert_k, convert_p
from ascend_sample.backend import which_backend
from ascend_sample.ops import top_k_top_p_sample
from ascend_sample.parity.environment import EMULATED, is_emulated_npu, obstacle_of, obstacle_of_routes
from ascend_sample.parity.families import LANGUAGE_MODEL
from ascend_sample.reference import top_k_top_p_sample_reference

from .samplers import sample_compact
from .timing import Budget, Repeat, Statistics, measure, repeat, rotate

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
OPERATOR = "this operator"
READ = "one read of the logits"
COLD_BYTES = 100e6
MOST_THREADS = 1024
"""A system that cannot start as many ends the process."""
MOST_LOGITS = {"composite": 20_000_000, "reference": 1_000_000}
"""Those that take seconds beyond are left out there."""

_BUDGET = Budget(seconds=1.0)


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    vocab_sizes = whole_number(1, MAX_VOCAB_SIZE)
    parser.add_argument("--vocab-size", type=vocab_sizes, default=151936, metavar="V", help="default: 151936")
    parser.add_argument("--batch", type=whole_number(1), nargs="+", default=[1, 64], metavar="B", help="default: 1 64")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the logits; default: bfloat16")
    parser.add_argument("--k", type=int, default=50, help="default: 50; 0 skips top-k")
    parser.add_argument("--p", type=float, default=0.9, help="default: 0.9; 1 skips top-p")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="default: cpu")
    text = "of torch on the CPU; default: torch's own choice"
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help=text)
    parser.add_argument("--cold", action="store_true", help="other logits in every call, over 100 MB and more")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="also write the figures there")


def run_bench(arguments: argparse.Namespace, budget: Budget = _BUDGET) -> int:
    """Runs the command.

    Args:
        arguments: parsed by a parser that `add_bench_arguments` prepared.
        budget: for each batch size.

    Returns:
        The exit status: 0, or 2 if the device cannot be used.
    """
    device: str = arguments.device
    obstacle = obstacle_of(device, "bench") or obstacle_of_routes(
        device, OPERATOR_NAME, (DTYPES[arguments.dtype],), "bench"
    )
    if obstacle:
        print(obstacle)
        return 2
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    is_emulated = is_emulated_npu(device)
    print(describe(arguments))
    if is_emulated:
        print(EMULATED)
    figures = {}
    for batch_size in tqdm(arguments.batch, desc="bench", unit="shape", leave=False):
        subjects = make_subjects(arguments, batch_size)
        figures[batch_size] = measure(subjects, budget)
    for batch_size, results in figures.items():
        print(
            f"\n[{batch_size}, {arguments.vocab_size}] {arguments.dtype}\n"
            f"{table(results, _bytes(arguments, batch_size))}"
        )
    if is_emulated:
        print(f"\n{EMULATED}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_to_json(arguments, figures, is_emulated), indent=2) + "\n")
    return 0


def describe(arguments: argparse.Namespace) -> str:
    """Describes what is measured, in two lines."""
    probe = torch.empty(0, dtype=DTYPES[arguments.dtype], device=arguments.device)
    route = which_backend(probe)
    k, p = _filters(arguments)
    filters = ("no top-k" if k is None else f"k={k}", "no top-p" if p is None else f"p={p:g}")
    data = "other logits in every call" if arguments.cold else "the same logits in every call"
    where = f"{arguments.device}, {torch.get_num_threads()} threads" if probe.is_cpu else arguments.device
    return (
        f"{where}, torch {torch.__version__}, backend {route.backend} ({route.reason})\n"
        f"{', '.join(filters)}, noise given, {data}; medians of interleaved rounds"
    )


def make_subjects(arguments: argparse.Namespace, batch_size: int) -> dict[str, Repeat]:
    """Makes the subjects that are compared, for one batch size."""
    device, shape = torch.device(arguments.device), (batch_size, arguments.vocab_size)
    k, p = _filters(arguments)
    composite = torch.ops.ascend_sample.top_k_top_p_sample_composite.default
    samplers: dict[str, Callable[..., object]] = {
        OPERATOR: top_k_top_p_sample,
        "torch.topk": lambda logits, _k, _p, q: sample_compact(logits, k, p, q),
        "composite": lambda logits, k, p, q: composite(logits, k, p, q, 1e-8, False, 32),
        "reference": top_k_top_p_sample_reference,
        READ: lambda logits, *_: _read(logits),
    }
    batches = [_make_batch(arguments, shape, seed) for seed in range(_count_batches(arguments, batch_size))]
    synchronize = None if device.type == "cpu" else torch.get_device_module(device).synchronize
    return {
        name: repeat(rotate(sampler, batches), synchronize)
        for name, sampler in samplers.items()
        if batch_size * arguments.vocab_size <= MOST_LOGITS.get(name, float("inf"))
    }


def table(results: dict[str, Statistics], bytes_read: int) -> str:
    """Returns lines of text: times, ratios to the operator, and how fast logits would have been read in that time."""
    base = results[OPERATOR].median
    lines = [f"{'':<22}{'median us':>12}{'quartiles us':>24}{'x operator':>12}{'GB/s':>9}"]
    for name, result in results.items():
        quartiles = f"{result.lower_quartile * 1e6:.1f} to {result.upper_quartile * 1e6:.1f}"
        lines.append(
            f"{name:<22}{result.median * 1e6:>12.1f}{quartiles:>24}{result.median / base:>12.2f}"
            f"{bytes_read / result.median / 1e9:>9.1f}"
        )
    lines += [f"{name:<22}left out: it takes too long" for name in MOST_LOGITS if name not in results]
    return "\n".join(lines)


def _make_batch(arguments: argparse.Namespace, shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    logits = LANGUAGE_MODEL.make(generator, *shape).to(DTYPES[arguments.dtype]).to(arguments.device)
    q = torch.empty(shape).exponential_(generator=generator).to(arguments.device)
    k, p = _filters(arguments)
    return logits, convert_k(k, logits), convert_p(p, logits), q


def _read(logits: torch.Tensor) -> torch.Tensor:
    """Reads everything and does next to nothing: as integers, whose maximum is faster than that of 16-bit floats."""
    words = torch.int32 if logits.shape[-1] % 2 == 0 else logits.dtype
    return logits.view(words).amax(dim=-1)


def _count_batches(arguments: argparse.Namespace, batch_size: int) -> int:
    if not arguments.cold:
        return 1
    return max(2, int(-(-COLD_BYTES // _bytes(arguments, batch_size))))


def _bytes(arguments: argparse.Namespace, batch_size: int) -> int:
    return int(batch_size * arguments.vocab_size * DTYPES[arguments.dtype].itemsize)


def _filters(arguments: argparse.Namespace) -> tuple[int | None, float | None]:
    """Returns k and p; None for one that is off."""
    is_k_on = 1 <= arguments.k <= min(arguments.vocab_size, MAX_TOP_K)
    return arguments.k if is_k_on else None, arguments.p if 0 < arguments.p < 1 else None


def _to_json(
    arguments: argparse.Namespace, figures: dict[int, dict[str, Statistics]], is_emulated: bool
) -> dict[str, Any]:
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in ("vocab_size", "dtype", "k", "p", "device", "threads", "cold")
    }
    return {
        "options": options | {"emulated": is_emulated},
        "seconds": {
            str(batch_size): {name: result.to_json() for name, result in results.items()}
            for batch_size, results in figures.items()
        },
    }
