"""Reads the golden rows of the first operator, for the tests of the operator and of the judge of parity."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).parent / "data" / "operator_v1.npz"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@functools.cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


def manifest() -> list[dict[str, Any]]:
    with np.load(FILE) as file:
        cases: list[dict[str, Any]] = json.loads(file["manifest"].tobytes())
    return cases


CASES = manifest()


def floats(name: str, dtype: str) -> torch.Tensor:
    """The 16-bit floats whose bits are stored under a name."""
    return torch.from_numpy(arrays()[name].view(np.int16)).view(DTYPES[dtype])
