"""What the tests of both operators share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["default", "composite", "reference"])
def route(request: pytest.FixtureRequest) -> str | None:
    """The backend that is forced, in turn; None: none is."""
    return None if request.param == "default" else str(request.param)
