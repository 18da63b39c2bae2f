"""Calls of the cffi binding with rows that were worked by hand."""

import functools
from collections.abc import Callable

import pytest
import torch

from ascend_sample.npu import aclnn_cffi
from ascend_sample.npu.operators import OPERATORS

from .hand_worked import SCENARIOS, Row

SAMPLE, SAMPLE_V2 = OPERATORS
each_operator = pytest.mark.parametrize("operator", OPERATORS)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def tensors_of(rows: list[Row], dtype: torch.dtype = torch.float16) -> Tensors:
    """Logits, k, p, q on the NPU."""
    q = None if rows[0].q is None else torch.tensor([row.q for row in rows]).npu()
    return (
        torch.tensor([row.logits for row in rows], dtype=dtype).npu(),
        torch.tensor([row.k for row in rows], dtype=torch.int32).npu(),
        torch.tensor([row.p for row in rows], dtype=dtype).npu(),
        q,
    )


def function(operator: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The binding's function for one of our operators."""
    return functools.partial(aclnn_cffi.launch, operator)


def check_rows(rows: list[Row], result: tuple[torch.Tensor, ...]) -> None:
    """Ids and kept logits."""
    assert result[0].tolist() == [row.token for row in rows]
    for row, kept in zip(rows, result[1].tolist(), strict=True):
        assert kept == [x if token in row.kept else -torch.inf for token, x in enumerate(row.logits)], row.name


OF_THE_FIRST = ("top-k top-p", "top-p sample", "top-k top-p sample")
"""Scenarios in which the second operator gives something else."""
ROWS = {SAMPLE: SCENARIOS, SAMPLE_V2: [row for row in SCENARIOS if row.name not in OF_THE_FIRST]}
WITH_Q = {operator: [row for row in rows if row.q is not None] for operator, rows in ROWS.items()}
WITHOUT_Q = {operator: [row for row in rows if row.q is None] for operator, rows in ROWS.items()}
