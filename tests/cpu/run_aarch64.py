"""Runs the kernel's aarch64 code, cross-compiled, under qemu, and compares it with this machine's bit for bit.

    python tests/cpu/run_aarch64.py

The fuzzer compares NEON with plain code and the oracle, and its rows and results with those of this machine.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys

from build_programs import AARCH64, NATIVE
from run_fuzz import hashes

ARGUMENTS = ("--rows", "10000", "--seed", "1")
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")


def emulator() -> tuple[str, ...]:
    """The command before an aarch64 program.

    Raises:
        SystemExit: the compiler or qemu is missing; the message says how to install them.
    """
    compiler = shutil.which(AARCH64.compiler)
    found = [path for path in map(shutil.which, EMULATORS) if path is not None]
    is_native = platform.machine() == "aarch64"
    missing = [] if compiler else ["g++-aarch64-linux-gnu"]
    missing += [] if found or is_native else ["qemu-user"]
    if missing:
        raise SystemExit(
            f"test-aarch64: a cross compiler and qemu must be installed, missing {' and '.join(missing)}. "
            f"On Debian: apt-get install {' '.join(missing)}"
        )
    return () if is_native else tuple(found[:1])


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    prefix = emulator()
    found, expected = hashes(AARCH64, *ARGUMENTS, prefix=prefix), hashes(NATIVE, *ARGUMENTS)
    is_same = found is not None and found == expected
    print(f"aarch64: {'bit for bit' if is_same else 'NOT'} what it is on {platform.machine()}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
