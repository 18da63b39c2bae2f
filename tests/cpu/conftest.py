"""The programs and the rows that the tests of this folder share."""

from __future__ import annotations

import os
from pathlib import Path

import build_programs
import pytest
from batch_file import Call
from rows import make_calls
from run_driver import Driver

from ascend_sample.parity import Result

UNAVAILABLE_STATUS = 3


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs, with the package's own objects in them. Other processes of the tests wait for it."""
    wanted = ("driver", "fuzz", "faulty_fuzz", "allocations")
    return build_programs.build(build_programs.NATIVE, wanted, jobs=os.cpu_count() or 1)


@pytest.fixture(scope="session")
def calls() -> list[Call]:
    """20,000 rows and more."""
    return make_calls()


@pytest.fixture(scope="session")
def driver(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The driver."""
    return Driver(programs, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def capabilities(driver: Driver) -> list[str]:
    """The code paths that this machine can run, plain first."""
    available = [name for name in ("plain", "neon", "avx2", "avx512") if driver.status(name) != UNAVAILABLE_STATUS]
    assert available[0] == "plain"
    return available


@pytest.fixture(scope="session")
def expected(driver: Driver, calls: list[Call]) -> list[Result]:
    """What the plain code path makes of the rows."""
    return driver.run("plain", calls)
