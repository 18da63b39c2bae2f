"""The runner of other projects' tests: each case has an outcome, whatever becomes of the process that it ran in."""

import subprocess
import sys
from pathlib import Path

FILE = """
import os, time, unittest

class TestCases(unittest.TestCase):
    def test_1_passes(self): pass
    def test_2_fails(self): self.fail("this is why")
    @unittest.skip("not here")
    def test_3_is_skipped(self): pass
    def test_4_ends_the_process(self): os._exit(7)
    def test_5_comes_after_it(self): pass
    def test_6_does_not_end(self): time.sleep(1000)
    def test_7_comes_last(self): pass
"""
REASONS = """
[[reason]]
why = "the first reason"
message = "this is why"
[[reason]]
why = "the second reason"
cases = "test_3|test_4"
"""


def test_every_case_is_counted_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(FILE)
    (tmp_path / "test_none.py").write_text("")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "reasons.toml").write_text(REASONS)
    command = [sys.executable, str(Path(__file__).with_name("run_foreign.py")), str(tmp_path), "--limit", "20"]
    command += ["--reasons", str(tmp_path / "reasons.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-5:] == [
        "3 passed, 1 skipped, 1 failed, 3 error",
        "    2 error: no reason is known",
        "    1 error: the second reason",
        "    1 failed: the first reason",
        "    1 skipped: the second reason",
    ], done.stdout + done.stderr
