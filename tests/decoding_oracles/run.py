"""Compares strategies with transformers 4.49, which still had them, in an environment of its own under ``build/``.

``make test-decoding-oracles``: group beam search and contrastive search, which left transformers' core in version 5.
The models are tiny and random; nothing is downloaded but the packages.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.support.environments import environment_of, passes, variables

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "decoding_oracles"
TESTS = ("group_beam_parity.py", "contrastive_parity.py")
"""Not named test_*: every other run of pytest has transformers 5, and must not collect them."""


def main() -> int:
    """Run the tests in the environment."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    python = environment_of(HERE / "requirements.txt", BUILD / "environment")
    environment = variables(BUILD, (ROOT, HERE))
    failed = []
    for test in TESTS:
        print(test, flush=True)
        if not passes(python, HERE / test, environment):
            failed.append(test)
    print(f"FAILED: {', '.join(failed)}" if failed else "PASSED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
