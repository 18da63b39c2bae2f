"""Runs every code path of the kernel under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer.

    python tests/cpu/run_sanitized.py

The fuzzer, in the first build also with a search for leaks: it puts rows into heap blocks of exactly their size, and
against guard pages. In the second, two threads sample the same rows at the same time. Any finding ends a program with a
report; results must be the same as without sanitizers.
"""

from __future__ import annotations

import argparse
import sys

from build_programs import ADDRESS, NATIVE, THREAD
from run_fuzz import hashes

RUNS = (
    (ADDRESS, ("--rows", "20000", "--seed", "2")),
    (THREAD, ("--rows", "3000", "--seed", "3", "--threads", "2")),
)


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    problems = 0
    for variant, arguments in RUNS:
        expected, found = (hashes(each, *arguments) for each in (NATIVE, variant))
        problems += found is None or found != expected
    print(f"sanitizers, CPU kernel: {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
