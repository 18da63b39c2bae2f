"""Rows that one can check by hand, and how both operators are run on them through an implementation."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS

SAMPLE, SAMPLE_V2, APPLY = OPERATORS
INF = math.inf
NAN = math.nan
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
PROBABILITIES = [0.125, 0.5, 0.25, 0.125]


def log(*probabilities: float) -> list[float]:
    return [math.log(probability) if probability > 0 else -INF for probability in probabilities]


TENTHS = log(0.1, 0.2, 0.3, 0.4)


class Row(NamedTuple):
    """One row and what must come of it.

    Attributes:
        values: its logits, or its probabilities.
        drawn: the drawn id.
        kept: the kept ids in order; None: they are not compared.
        options: what else the operator is given; q is the row's.
    """

    values: list[float]
    drawn: int
    kept: list[int] | None
    options: dict[str, Any]


def row(values: list[float], drawn: int, kept: list[int] | None = None, **options: Any) -> Row:
    return Row(values, drawn, kept, options)


def run(
    operator: str,
    device: str,
    route: str | None,
    rows: list[list[float]],
    dtype: torch.dtype = DTYPES[0],
    **options: Any,
) -> Any:
    """Runs an operator on a device by a route and returns its results, on the CPU."""
    q = options.pop("q", None)
    noise = None if q is None else torch.tensor(q, dtype=torch.float32, device=device)
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    with ascend_sample.use_backend(route):
        result = getattr(ascend_sample, operator)(torch.tensor(rows).to(dtype).to(device), q=noise, **moved)
    return type(result)(*(None if part is None else part.cpu() for part in result))


def sample(
    operator: str, device: str, route: str | None, rows: list[list[float]], **options: Any
) -> tuple[list[int], list[list[int]]]:
    """Returns the drawn ids and the kept ids of each row, whose kept values must be the original ones."""
    result = run(operator, device, route, rows, is_need_logits=True, **options)
    filler = -INF if options.get("input_is_logits", True) else 0.0
    kept = [torch.nonzero(select != filler).flatten().tolist() for select in result.logits_top_kp_select]
    for values, select, ids in zip(rows, result.logits_top_kp_select, kept, strict=True):
        given = torch.tensor(values)[ids].to(options.get("dtype", DTYPES[0])).float()
        assert torch.equal(select[ids], given), "kept values are the original ones"
    return result.logits_select_idx.tolist(), kept


def check_rows(operator: str, device: str, route: str | None, rows: Iterable[Row], subtests: pytest.Subtests) -> None:
    """Compares what the operator draws and keeps of each row."""
    for each in rows:
        with subtests.test(reprlib.repr(tuple(each))):
            options = each.options | ({"q": [each.options["q"]]} if "q" in each.options else {})
            drawn, kept = sample(operator, device, route, [each.values], **options)
            assert drawn == [each.drawn]
            assert each.kept is None or kept == [each.kept]
