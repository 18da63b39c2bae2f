"""What all of these tests need."""

import pytest

from hostcann._home import PACKAGE_HOME


@pytest.fixture(autouse=True, scope="session")
def _built() -> None:
    if not (PACKAGE_HOME / "lib64" / "libascendcl.so").is_file():
        pytest.skip("hostcann was not built")
