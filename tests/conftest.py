"""Activates hostcann before torch_npu is imported, where no real CANN is found, and offers the devices to the tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

import ascend_sample  # noqa: F401  imports torch, with torch_npu only if a CANN is there for it
from ascend_sample import _environment, hostcann

NO_NPU: str | None = None
if not _environment.torch_npu_is_installed():
    NO_NPU = "torch_npu is not installed"
else:
    if _environment.missing_cann_library() is not None:
        hostcann.activate()
    import torch_npu  # noqa: F401  registers the device

import torch  # noqa: E402

from ascend_sample.npu import scratch  # noqa: E402

LEFT_BEHIND = ("tensor", "scalar", "array", "tensor_list", "executor", "block")
"""What must be gone at the end. torch_npu keeps streams, pinned memory and the events of `record_stream` in pools."""


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; the NPU is emulated where there is no real one."""
    if request.param == "npu" and NO_NPU:
        pytest.skip(NO_NPU)
    return str(request.param)


@pytest.fixture
def npu() -> str:
    """The NPU alone."""
    if NO_NPU:
        pytest.skip(NO_NPU)
    return "npu"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With ASCEND_SAMPLE_FORBID_SKIPS=1 a test that was skipped has failed."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("ASCEND_SAMPLE_FORBID_SKIPS") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and skips are forbidden: {report.longrepr}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The whole run must leave nothing behind on the emulated device, and must not have misused it once."""
    if NO_NPU or not hostcann.is_active():
        return
    problems = hostcann_problems()
    print("\nhostcann:", "; ".join(problems) if problems else "0 violations, nothing left alive")
    if problems:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def hostcann_problems() -> list[str]:
    """Violations, and what is alive beyond torch_npu's own streams, events and cache."""
    gc.collect()
    torch.npu.synchronize()
    scratch.release()
    torch.npu.empty_cache()
    problems = [f"violation: {violation}" for violation in hostcann.violations()]
    live = hostcann.live()
    problems += [f"{live[kind]} of kind {kind} left alive" for kind in LEFT_BEHIND if live[kind]]
    return problems
