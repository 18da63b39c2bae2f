"""Builds the fuzzer with AddressSanitizer and UndefinedBehaviorSanitizer and runs it: run_fuzz.py --seconds 600.

All arguments are the fuzzer's own (fuzz.cpp).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import build_programs

OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}


def hashes(variant: build_programs.Variant, *arguments: str, prefix: tuple[str, ...] = ()) -> set[str] | None:
    """Builds the fuzzer and runs it.

    Args:
        variant: how it is built.
        arguments: its own.
        prefix: the command before it.

    Returns:
        The hashes of its rows and their results, one for all threads; None where something was found.
    """
    print(f"fuzz, {variant.name}: {' '.join(arguments)}", flush=True)
    command = [*prefix, str(build_programs.build(variant) / "fuzz"), *arguments]
    run = subprocess.run(command, env=os.environ | OPTIONS, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout, flush=True)
    return {line for line in run.stdout.splitlines() if line.startswith("hash of rows")} if not run.returncode else None


def main() -> None:
    """Becomes the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, arguments = parser.parse_known_args()
    program = build_programs.build(build_programs.ADDRESS) / "fuzz"
    os.execv(program, [str(program), *arguments])


if __name__ == "__main__":
    sys.exit(main())
