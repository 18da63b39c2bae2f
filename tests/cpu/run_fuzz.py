"""Builds the fuzzer with AddressSanitizer and UndefinedBehaviorSanitizer and runs it: run_fuzz.py --seconds 600.

All arguments are the fuzzer's own (fuzz.cpp).
"""

from __future__ import annotations

import os
import sys

import build_programs


def main() -> None:
    """Becomes the fuzzer."""
    program = build_programs.build(build_programs.ADDRESS, ("fuzz",)) / "fuzz"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
