"""Builds the fuzzer with AddressSanitizer and UndefinedBehaviorSanitizer and runs it: run_fuzz.py --seconds 600.

All arguments are the fuzzer's own (fuzz.cpp).
"""

from __future__ import annotations

import argparse
import os

import build_programs


def main() -> None:
    """Becomes the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, arguments = parser.parse_known_args()
    program = build_programs.build(build_programs.ADDRESS, ("fuzz",)) / "fuzz"
    os.execv(program, [str(program), *arguments])


if __name__ == "__main__":
    main()
