"""What the kernel's objects and its memory must look like, whatever they compute."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import build_programs

from tests.support.warm_python import run_warm

VOCAB_SIZE = 151_936  # of allocations.cpp
BYTES_PER_LOGIT = 64  # a few times the row, as float32
FIXED_BYTES = 1 << 20


def weak_symbols(object_file: Path) -> list[str]:
    """The defined functions and data that the linker may take from any of several objects, as mangled names."""
    command = ["nm", "--defined-only", "--format=posix", str(object_file)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return [name for name, kind, *_ in fields if kind in "WVuwv"]


def test_no_code_of_one_instruction_set_can_be_linked_into_another() -> None:
    """An inline function of a header, compiled for AVX-512, could be the copy that the linker keeps for everyone."""
    special = [source for source in build_programs.core_sources() if source.stem.startswith("kernel_")]
    assert {"kernel_plain", "kernel_avx2", "kernel_avx512", "kernel_neon"} <= {source.stem for source in special}
    for source in special:
        target = source.stem.removeprefix("kernel_")
        namespace = f"13ascend_sample3cpu{len(target)}{target}"
        shared = [name for name in weak_symbols(build_programs.package_object(source)) if namespace not in name]
        shared = [name for name in shared if not name.startswith("DW.ref.")]  # a pointer to the C++ runtime: no code
        assert shared == [], f"{source.name} emits functions that any object may end up with"


def test_workspace_is_bounded_and_reused(programs: Path) -> None:
    run = subprocess.run([programs / "allocations"], check=True, capture_output=True, text=True)
    records = [line.split(",") for line in run.stdout.splitlines()]
    assert {record[0] for record in records} >= {"plain"}
    for capability, kind, allocated, later in records:
        case = f"{capability}, {kind}"
        assert int(allocated) <= BYTES_PER_LOGIT * VOCAB_SIZE + FIXED_BYTES, f"{case}: {allocated} bytes for one row"
        assert int(later) == 0, f"{case}: {later} allocations after the first row"


def test_after_a_failed_allocation_a_block_is_empty_and_says_so(programs: Path) -> None:
    run = subprocess.run([programs / "allocations", "fail"], check=True, capture_output=True, text=True)
    assert run.stdout == "bad_alloc,empty,0,64\n"


PEAK_SCRIPT = """
import resource
import ascend_sample, torch
torch.set_num_threads(2)
batch_size, vocab_size, dtype = 256, 32000, torch.bfloat16
logits = torch.randn(batch_size, vocab_size).to(dtype)
q = torch.empty(batch_size, vocab_size).exponential_()
k = torch.tensor([50, 1024, 0, 0]).repeat(batch_size // 4).int()
p = torch.tensor([0.9, 0.9, 0.9, 1.0]).repeat(batch_size // 4).to(dtype)
operator = torch.ops.ascend_sample.top_k_top_p_sample
operator(logits[:8], k[:8], p[:8], q[:8])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
operator(logits, k, p, q)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_the_operator_allocates_nothing_for_the_whole_batch() -> None:
    """The batch is 16 MB in bfloat16; what two threads need for a row each is far less."""
    run = run_warm(["-c", PEAK_SCRIPT], os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, build_programs.ROOT, 60)
    run.check_returncode()
    assert int(run.stdout) < 4 << 20
