"""Guesses of how many tokens a nucleus has, right ones and wrong ones, and the row that they are made of."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest

GUESSES = pytest.mark.parametrize("guess", [1, 2, 32, 1024, 5000])
ROW: Final = [math.sin(i) * 3 for i in range(3000)]
GUESSED: Final[dict[str, Any]] = {"p": 0.9, "q": [[1.0] * len(ROW)]}
