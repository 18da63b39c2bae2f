"""Activates hostcann before torch_npu is imported, where no real CANN is found, and offers the devices to the tests.

With pytest-xdist each worker is a process with a hostcann of its own. It looks at that when it has run its tests, and
the process that the user has started reports and fails for all of them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

import ascend_sample  # noqa: F401  imports torch, with torch_npu only if a CANN is there for it
import hostcann
from ascend_sample import _environment

os.environ.setdefault("LANGUAGE_MODEL_STEPS", "40")  # nobody reads the texts that the examples' model writes
NO_NPU: str | None = None
if not _environment.torch_npu_is_installed():
    NO_NPU = "torch_npu is not installed"
else:
    if _environment.missing_cann_library() is not None:
        hostcann.activate()
    import torch_npu  # noqa: F401  registers the device

import torch  # noqa: E402

from ascend_sample.npu import scratch  # noqa: E402

# Beside pytest-xdist's workers the process that reports collects no tests, so it reads no conftest.py but this one.
pytest_plugins = ("ledger",)

ACCELERATOR = os.environ.get("ASCEND_SAMPLE_TEST_DEVICE", "npu")
"""The device beside the CPU. On a GPU, "cuda", the tests of what is made of torch's operators can be run as well."""
LEFT_BEHIND = ("tensor", "scalar", "array", "tensor_list", "executor", "block")
"""What must be gone at the end. torch_npu keeps streams, pinned memory and the events of `record_stream` in pools."""
WORKERS = pytest.StashKey[dict[str, list[str]]]()
"""What each worker of pytest-xdist has found wrong at its end."""


@pytest.fixture(params=["cpu", ACCELERATOR])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; the NPU is emulated where there is no real one."""
    if request.param == "npu" and NO_NPU:
        pytest.skip(NO_NPU)
    return str(request.param)


@pytest.fixture(params=[ACCELERATOR])
def accelerator(request: pytest.FixtureRequest) -> str:
    """The device beside the CPU, whatever it is."""
    if request.param == "npu" and NO_NPU:
        pytest.skip(NO_NPU)
    return str(request.param)


@pytest.fixture
def npu() -> str:
    """The NPU alone."""
    if NO_NPU:
        pytest.skip(NO_NPU)
    return "npu"


@pytest.fixture
def counting(npu: str) -> None:
    """The NPU counts what is asked of it, as the emulated one does."""
    if not hostcann.is_active():
        pytest.skip("the emulated device counts, a real one does not")


@pytest.fixture
def emulated(npu: str) -> Iterator[None]:
    """The NPU can be made to fail, or to be late, as the emulated one can, which is left as it was found."""
    if not hostcann.is_active():
        pytest.skip("the NPU is a real one: nothing can be injected or counted")
    yield
    hostcann.clear_faults()
    hostcann.set_stream_mode("normal")
    torch.npu.synchronize()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allow-skips", action="store_true", help="a test that is skipped has not failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that was skipped has failed, but with --allow-skips."""
    report = yield
    return report if hasattr(report, "wasxfail") else without_skip(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """The same for a module that skips itself."""
    report = yield
    return without_skip(report, collector.config)


def without_skip(report: Any, config: pytest.Config) -> Any:
    """The report, which fails where it skips and that is not allowed."""
    if report.skipped and not config.getoption("allow_skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which counts as a failure without --allow-skips: {report.longrepr}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended; one that has crashed says nothing."""
    output = getattr(node, "workeroutput", {})
    node.config.stash.setdefault(WORKERS, {})[node.gateway.id] = output.get("hostcann", ["ended without a word"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The whole run must leave nothing behind on the emulated device, and must not have misused it once."""
    found = hostcann_problems()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["hostcann"] = found
        return
    workers = session.config.stash.get(WORKERS, {})
    problems = found + [f"{name}: {problem}" for name, each in workers.items() for problem in each]
    if hostcann.is_active() or problems:
        print("\nhostcann:", "; ".join(problems) or "0 violations, nothing left alive")
    if problems:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish() -> None:
    """Lets the garbage collector leave alone what the collection of all tests has made: it would look through it again
    and again.
    """
    gc.collect()
    gc.freeze()


def hostcann_problems() -> list[str]:
    """Violations of this process, and what is alive beyond torch_npu's own streams, events and cache."""
    if NO_NPU or not hostcann.is_active():
        return []
    gc.unfreeze()
    gc.collect()
    torch.npu.synchronize()
    scratch.release()
    torch.npu.empty_cache()
    problems = [f"violation: {violation}" for violation in hostcann.violations()]
    live = hostcann.live()
    problems += [f"{live[kind]} of kind {kind} left alive" for kind in LEFT_BEHIND if live[kind]]
    return problems
