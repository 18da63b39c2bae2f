"""The golden rows: computed in float64 by implementations that this project shares nothing with.

Every row is unambiguous (no near tie, no near boundary), so ids and kept sets must be equal, with no tolerance.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
OPTIONS = ("eps", "ks_max", "input_is_logits")
Case = dict[str, Any]


class Golden:
    """The rows of one operator.

    Attributes:
        arrays: what is stored, by name; that of a case begins with its number.
        cases: what each case is.
    """

    def __init__(self, operator: str, file: str) -> None:
        self._operator = operator
        with np.load(Path(__file__).parent / "data" / file) as arrays:
            self.arrays = dict(arrays)
        self.cases: list[Case] = json.loads(self.arrays["manifest"].tobytes())

    def tensor(self, case: Case, name: str) -> torch.Tensor:
        """Returns what is stored of a case."""
        return torch.from_numpy(self.arrays[f"{case['case']}.{name}"])

    def floats(self, case: Case, name: str) -> torch.Tensor:
        """Returns values of the case's dtype; of 16-bit floats the bits are stored."""
        stored = self.arrays.get(f"{case['case']}.{name}_bits", self.arrays.get(f"{case['case']}.{name}"))
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

    def inputs(self, case: Case) -> tuple[dict[str, torch.Tensor | None], dict[str, Any]]:
        """Returns the tensors of a call, and its options."""
        tensors = {name: self.floats(case, name) for name in ("logits", "p")} | {"k": self.tensor(case, "k")}
        q = {"q": self.tensor(case, "q") if case["has_q"] else None}
        min_p = {"min_p": self.floats(case, "min_p")} if case.get("has_min_p") else {}
        return tensors | q | min_p, {name: case[name] for name in OPTIONS if name in case}

    def check(self, device: str, backend: str | None, subtests: pytest.Subtests) -> None:
        """Runs all cases by one backend, and compares ids and kept values, bit for bit."""
        for case in self.cases:
            tensors, options = self.inputs(case)
            moved = {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
            filler = -math.inf if options.get("input_is_logits", True) else 0.0
            expected = self.floats(case, "logits").float().masked_fill(~self.kept(case), filler)
            with subtests.test(case["name"]), ascend_sample.use_backend(backend):
                sample = functools.partial(getattr(ascend_sample, self._operator), **moved, **options)
                is_dense = tensors["q"] is None and "ks_max" in options  # only V2 has a sample result, without q
                dense = {"is_need_sample_result": True} if is_dense else {}
                full, alone = sample(is_need_logits=True, **dense), sample(top_k_guess=1)
                assert full.logits_select_idx.tolist() == self.ids(case)
                assert torch.equal(full.logits_top_kp_select.cpu().view(torch.int32), expected.view(torch.int32))
                assert alone.logits_select_idx.tolist() == self.ids(case)
                assert not any(alone[1:]), "what was not asked for"
                if is_dense:
                    for kept, ids in zip(self.kept(case), full.logits_idx.cpu(), strict=True):
                        assert sorted(ids[: kept.sum()].tolist()) == kept.nonzero().flatten().tolist()


FILES = ("operator_v1.npz", "operator_v2.npz", "operator_apply.npz")
V1, V2, APPLY = (Golden(name, file) for name, file in zip(OPERATORS, FILES, strict=True))
ON_DEVICES = pytest.mark.parametrize("backend", [None, "composite"], ids=["default", "composite"])
"""The backends that run on every device."""
