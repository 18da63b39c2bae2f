"""Runs every code path of the kernel under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer.

    python tests/cpu/run_sanitized.py

The first build also searches for leaks; it sees each row in heap blocks of exactly its size, against guard pages, and
in its batch. The second divides each batch among two threads. The fuzzer then runs briefly in the first. Any finding
ends the program with a report; results must be the same as without sanitizers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import build_programs
from batch_file import write_batches
from rows import make_calls

CAPABILITIES = ("plain", "neon", "avx2", "avx512")
UNAVAILABLE_STATUS = 3
FUZZED_ROWS = 20_000
RUNS = (
    (build_programs.ADDRESS, 1, "heap"),
    (build_programs.ADDRESS, 1, "guarded"),
    (build_programs.ADDRESS, 2, "together"),
    (build_programs.THREAD, 2, "together"),
)
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    folder = build_programs.ROOT / "build" / "cpu"
    native = build_programs.build(build_programs.NATIVE)
    calls = make_calls(rows=3000)
    rows = sum(call.logits.shape[0] for call in calls)
    batches, results = folder / "sanitized_batches", folder / "sanitized_results"
    write_batches(batches, calls)

    def run(program: Path, capability: str, threads: int, memory: str) -> tuple[int, bytes]:
        command = [str(program), capability, str(threads), memory, str(batches), str(results)]
        done = subprocess.run(command, env=os.environ | OPTIONS, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != UNAVAILABLE_STATUS:
            print(done.stderr, end="")
        return done.returncode, results.read_bytes() if done.returncode == 0 else b""

    status, expected = run(native / "driver", "plain", 1, "together")
    problems = int(status != 0)
    for variant, threads, memory in RUNS:
        program = build_programs.build(variant) / "driver"
        for capability in CAPABILITIES:
            status, result = run(program, capability, threads, memory)
            if status == UNAVAILABLE_STATUS:
                continue
            verdict = f"status {status}" if status else "no finding" if result == expected else "other results"
            problems += verdict != "no finding"
            print(f"{variant.name:8} {capability:7} {threads} threads, {memory:9} {rows} rows: {verdict}", flush=True)
    for path in (batches, results):
        path.unlink()
    fuzz = build_programs.build(build_programs.ADDRESS, ("fuzz",)) / "fuzz"
    fuzzed = subprocess.run(
        [str(fuzz), "--rows", str(FUZZED_ROWS), "--seed", "2"], env=os.environ | OPTIONS, check=False
    )
    problems += fuzzed.returncode != 0
    print(f"sanitizers, CPU kernel: {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
