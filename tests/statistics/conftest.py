"""How many draws a test makes: few in `make test`, and many as well in `make test-all`."""

from __future__ import annotations

import pytest
from draws import Amount


@pytest.fixture(params=["quick", pytest.param("long", marks=pytest.mark.long)])
def amount(request: pytest.FixtureRequest) -> Amount:
    """Chooses between few draws and many."""
    is_long = request.param == "long"
    return lambda quick, long: long if is_long else quick
