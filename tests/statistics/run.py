"""The statistical tests in full: `make test-statistics`. Some minutes; tables of what the gates can see at the end.

All arguments but --help are pytest's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest
from tqdm import tqdm


class Progress:
    """A bar in place of pytest's dots."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.bar = tqdm(total=len(session.items), desc="statistics", unit="test")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.bar.set_postfix_str(nodeid.rpartition("::")[2][:50])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.bar.update()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("passed" if report.when == "call" else "", "", "") if report.passed else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.bar.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, arguments = parser.parse_known_args()
    os.environ["ASCEND_SAMPLE_STATISTICS"] = "long"
    return pytest.main([str(Path(__file__).parent), "-q", *arguments], plugins=[Progress()])


if __name__ == "__main__":
    sys.exit(main())
