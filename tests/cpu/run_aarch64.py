"""Runs the kernel's aarch64 code, cross-compiled, under qemu, and compares it with this machine's bit for bit.

    python tests/cpu/run_aarch64.py

20,000 rows through NEON and plain code; then the fuzzer, for NEON against plain and the oracle.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import build_programs
from batch_file import write_batches
from rows import make_calls

FUZZED_ROWS = 10_000
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")


def emulator() -> list[str]:
    """The command before an aarch64 program.

    Raises:
        SystemExit: the compiler or qemu is missing; the message says how to install them.
    """
    compiler = shutil.which(build_programs.AARCH64.compiler)
    found = [path for path in map(shutil.which, EMULATORS) if path is not None]
    is_native = platform.machine() == "aarch64"
    missing = [] if compiler else ["g++-aarch64-linux-gnu"]
    missing += [] if found or is_native else ["qemu-user"]
    if missing:
        raise SystemExit(
            f"test-aarch64: a cross compiler and qemu must be installed, missing {' and '.join(missing)}. "
            f"On Debian: apt-get install {' '.join(missing)}"
        )
    return [] if is_native else found[:1]


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    prefix = emulator()
    print("building", flush=True)
    native = build_programs.build(build_programs.NATIVE)
    cross = build_programs.build(build_programs.AARCH64, ("driver", "fuzz"))
    folder = build_programs.ROOT / "build" / "cpu" / "aarch64"
    batches, results = folder / "batches", folder / "results"
    calls = make_calls()
    rows = sum(call.logits.shape[0] for call in calls)
    write_batches(batches, calls)

    def run(command: list[str], capability: str, memory: str) -> bytes:
        arguments = [capability, "1", memory, str(batches), str(results)]
        subprocess.run([*command, *arguments], check=True)
        return results.read_bytes()

    expected = run([str(native / "driver")], "plain", "together")
    differing = 0
    for capability in ("neon", "plain"):
        started = time.perf_counter()
        differs = run([*prefix, str(cross / "driver")], capability, "guarded") != expected
        differing += differs
        verdict = "DIFFERS from" if differs else "is bit for bit"
        seconds = time.perf_counter() - started
        print(
            f"aarch64 {capability}: {rows} rows in {seconds:.0f} s, {verdict} plain on {platform.machine()}", flush=True
        )
    fuzzed = subprocess.run([*prefix, str(cross / "fuzz"), "--rows", str(FUZZED_ROWS), "--seed", "1"], check=False)
    for path in (batches, results):
        Path(path).unlink()
    return 1 if differing or fuzzed.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
