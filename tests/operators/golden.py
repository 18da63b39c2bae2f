"""Reads the golden rows: computed in float64 by implementations that this project shares nothing with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
Case = dict[str, Any]


class Golden:
    """The rows of one operator.

    Attributes:
        arrays: what is stored, by name; that of a case begins with its number.
        cases: what each case is.
    """

    def __init__(self, name: str) -> None:
        with np.load(Path(__file__).parent / "data" / f"{name}.npz") as file:
            self.arrays = dict(file)
        self.cases: list[Case] = json.loads(self.arrays["manifest"].tobytes())

    def tensor(self, case: Case, name: str) -> torch.Tensor:
        """Returns what is stored of a case."""
        return torch.from_numpy(self.arrays[f"{case['case']}.{name}"])

    def floats(self, case: Case, name: str) -> torch.Tensor:
        """Returns values of the case's dtype; of 16-bit floats the bits are stored."""
        stored = self.arrays[f"{case['case']}.{name}"]
        numbers = stored.view(np.int16 if stored.itemsize == 2 else np.float32)
        return torch.from_numpy(numbers).view(DTYPES[case["dtype"]])

    def ids(self, case: Case) -> list[int]:
        """Returns the drawn ids."""
        ids: list[int] = self.arrays[f"{case['case']}.ids"].tolist()
        return ids

    def kept(self, case: Case) -> torch.Tensor:
        """Returns what is kept, bool [rows, vocab_size]."""
        bits = np.unpackbits(self.arrays[f"{case['case']}.kept_packed"], axis=1)
        return torch.from_numpy(bits[:, : case["vocab"]].astype(bool))


V1, V2 = Golden("operator_v1"), Golden("operator_v2")
ON_DEVICES = pytest.mark.parametrize("backend", [None, "composite"], ids=["default", "composite"])
"""The backends that run on every device."""
