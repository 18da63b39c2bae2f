"""What is said at the end of the process: leaks, violations, activities, in a file and by the exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import run_in_process

from .sampler import Device
from .test_violations import arguments_of

pytestmark = pytest.mark.hostcann_only

VIOLATIONS_STATUS = 97


def leave_behind(what: str) -> None:
    """Uses the device correctly but for one object, which is neither destroyed nor freed."""
    with Device() as device:
        arguments = arguments_of(device)
        device.run(arguments)
        if what == "executor":
            device.plan(arguments)
        elif what == "tensor":
            device.forget(arguments.k)


def report_of(what: str, path: Path, strict: str = "0") -> tuple[int, dict[str, Any]]:
    """The exit status and the report of a process that leaves `what` behind."""
    result = run_in_process(leave_behind, [what], {"HOSTCANN_REPORT": str(path), "HOSTCANN_STRICT": strict})
    assert path.is_file(), result.stderr
    return result.returncode, json.loads(path.read_text())


def test_correct_process(tmp_path: Path) -> None:
    status, report = report_of("nothing", tmp_path / "report.json", strict="1")
    assert status == 0
    assert report["violations"] == []
    assert not any(report["live"].values()), report["live"]
    counts = {(entry["kind"], entry["name"]): entry["count"] for entry in report["activities"]}
    assert counts.pop(("launch", "aclnnTopKTopPSample")) == 1
    assert {name: count for (kind, name), count in counts.items() if kind == "wait"} == {"memcpy": 6, "stream": 1}


@pytest.mark.parametrize(("what", "kind"), [("executor", "executor_leaked"), ("tensor", "leak")])
def test_leak(tmp_path: Path, what: str, kind: str) -> None:
    """It is reported; only the strict mode makes it an error."""
    for strict, expected in (("0", 0), ("1", VIOLATIONS_STATUS)):
        status, report = report_of(what, tmp_path / "report.json", strict)
        assert status == expected
        assert {violation["kind"] for violation in report["violations"]} == {kind}
        assert report["live"][what] == 1
