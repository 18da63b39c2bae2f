"""Splits this folder in two: the suite proper, for a process without torch, and the tests for an ordinary run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .sampler import Device

FOLDER = Path(__file__).parent
ORDINARY = ("test_own_process.py", "test_libraries.py")


def in_own_process(config: pytest.Config) -> bool:
    """Whether pytest was started as the package's docstring says."""
    cut = config.getoption("confcutdir")
    return cut is not None and Path(cut).resolve() == FOLDER


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hostcann_only: checks hostcann's own behaviour, not CANN's interface")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The suite must not be imported where torch is, nor the other tests where it is not."""
    if collection_path.parent != FOLDER or not collection_path.name.startswith("test_"):
        return None
    return (collection_path.name in ORDINARY) == in_own_process(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("hostcann_only") for item in items):
        return
    from tests.support.cann import is_hostcann

    if not is_hostcann():
        skip = pytest.mark.skip(reason="the libraries are not hostcann's")
        for item in items:
            if item.get_closest_marker("hostcann_only"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def session_device() -> Iterator["Device"]:
    """One aclInit for the tests that leave the device as it was; at the end nothing is left alive."""
    assert "torch" not in sys.modules, "run the suite in a process of its own, as its package says"
    from tests.support import cann

    from .sampler import Device

    with Device() as device:
        before = cann.live() if cann.is_hostcann() else {}
        yield device
        if cann.is_hostcann():
            assert cann.live() == before
            cann.check_violations()


@pytest.fixture
def device(session_device: "Device") -> Iterator["Device"]:
    """A device whose tensors and buffers are released after the test, also when it fails."""
    yield session_device
    session_device.release()
