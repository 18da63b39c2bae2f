"""The programs that the tests of this folder share."""

from __future__ import annotations

import os
from pathlib import Path

import build_programs
import pytest


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs, with the package's own objects in them. Other processes of the tests wait for it."""
    return build_programs.build(build_programs.NATIVE, tuple(build_programs.PROGRAMS), jobs=os.cpu_count() or 1)
