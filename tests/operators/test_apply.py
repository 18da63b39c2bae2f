"""The operator that filters alone: rows by hand, golden rows, what reaches a device, and CANNs that lack something."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ascend_sample
import hostcann
from ascend_sample import apply_top_k_top_p
from ascend_sample.npu import aclnn_cffi
from ascend_sample.npu.operators import OPERATORS
from tests.operators.by_hand import APPLY, DTYPES, INF, NAN, SAMPLE_V2
from tests.operators.golden import APPLY as GOLDEN
from tests.operators.golden import ON_DEVICES
from tests.support.isolation import run_isolated

ROWS = 450
DESCENDING = [3.0, 2.0, 1.0, 0.0]
TIES = [0.0, 1.0, 2.0, 1.0, 1.0]
ALIKE = [0.0] * 4
BY_HAND: list[tuple[list[float], int | None, float | None, list[int]]] = [
    # Top-k: off where k is not between 1 and V - 1; ties of the k-th stay.
    (DESCENDING, 1, None, [0]),
    (DESCENDING, 3, None, [0, 1, 2]),
    *((DESCENDING, k, None, [0, 1, 2, 3]) for k in (-(2**31), -1, 0, 4, 5, 2**20 + 1, 2**31 - 1)),
    (TIES, 2, None, [1, 2, 3, 4]),
    (TIES, 4, None, [1, 2, 3, 4]),
    (ALIKE, 1, None, [0, 1, 2, 3]),
    ([0.0, -0.0, -1.0], 1, None, [0, 1]),
    # Top-p: what lies where the sum from the least exceeds 1 - p. Of equal logits the highest ids stay.
    (ALIKE, None, 0.5, [2, 3]),
    (ALIKE, None, 0.625, [1, 2, 3]),
    (ALIKE, None, 0.25, [3]),
    (ALIKE, None, 0.375, [2, 3]),
    ([0.0, -0.0, 0.0, -0.0], None, 0.5, [2, 3]),
    (DESCENDING, None, 0.5, [0]),  # of 0.64, 0.24, 0.09 and 0.03
    (DESCENDING, None, 0.75, [0, 1]),
    (DESCENDING, None, 0.95, [0, 1, 2]),
    ([2.0, 1.0, 2.0], None, 0.0, [2]),
    ([2.0, 1.0, 2.0], None, -1.0, [2]),
    ([0.0, -200.0, -3.0], None, 1.0, [0, 2]),
    ([0.0, -60.0, -200.0], None, 1.0, [0, 1]),
    ([0.0, -200.0, -3.0], None, 1.5, [0, 1, 2]),
    ([0.0, -200.0, -3.0], None, NAN, [0, 1, 2]),
    # Both: the weights are those of what top-k keeps, with all its ties.
    (TIES, 2, 0.5, [2, 4]),  # of 0.48 and three of 0.18
    (DESCENDING, 2, 0.75, [0, 1]),  # of 0.73 and 0.27
    (DESCENDING, 2, 0.7, [0]),
    # Special values.
    ([7.0], 1, 0.0, [0]),
    ([1.0, NAN, 0.0], 1, None, [0]),
    ([1.0, NAN, 0.0], 0, None, [0, 2]),
    ([1.0, NAN, NAN], 3, 1.5, [0]),
    ([1.0, NAN, 0.0], 0, 0.95, [0, 2]),
    ([-INF, 1.0, -INF, 0.0], 3, 0.5, [1]),
    ([-INF, -INF], 1, 0.5, []),
    ([INF, 0.0, INF, INF], None, 0.5, [2, 3]),
    ([INF, 0.0, INF], 2, 1.0, [0, 2]),
]


def kept_of(filtered: torch.Tensor) -> list[int]:
    return torch.nonzero(filtered[0] != -INF).flatten().tolist()


def check_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    for values, k, p, kept in BY_HAND:
        for dtype in DTYPES:
            logits = torch.tensor([values], dtype=dtype, device=device)
            numbers: list[Any] = [k, p]
            if k is not None and p is not None:
                numbers = [logits.new_tensor([k], dtype=torch.int32), logits.new_tensor([p])]
            with subtests.test(f"{values} {k} {p} {dtype}"), ascend_sample.use_backend(backend):
                filtered = apply_top_k_top_p(logits, *numbers)
                assert filtered.dtype == dtype
                assert kept_of(filtered) == kept
                expected = torch.full_like(logits, -INF)
                expected[0, kept] = logits[0, kept]
                assert torch.equal(bits(filtered), bits(expected))


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.cpu().view(torch.int32 if values.itemsize == 4 else torch.int16)


def check_golden(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        logits = GOLDEN.floats(case, "logits").to(device)
        k = GOLDEN.tensor(case, "k").to(device) if "k" in case["given"] else None
        p = GOLDEN.floats(case, "p").to(device) if "p" in case["given"] else None
        expected = GOLDEN.floats(case, "logits").masked_fill(~GOLDEN.kept(case), -math.inf)
        with subtests.test(case["name"]), ascend_sample.use_backend(backend):
            assert torch.equal(bits(apply_top_k_top_p(logits, k, p)), bits(expected))


def test_rows_by_hand(device: str, route: str | None, subtests: pytest.Subtests) -> None:
    check_rows(device, route, subtests)


def test_rows_by_hand_through_cffi(npu: str, subtests: pytest.Subtests) -> None:
    check_rows(npu, "cffi", subtests)


def test_golden_file_is_complete() -> None:
    """The formula of CANN's system test in NumPy's float64; no sum is within 1e-4 of 1 - p."""
    assert sum(case["rows"] for case in GOLDEN.cases) == ROWS
    assert {(case["dtype"], case["given"]) for case in GOLDEN.cases} == {
        (dtype, given) for dtype in ("bfloat16", "float16", "float32") for given in ("k", "p", "kp")
    }


@ON_DEVICES
def test_golden_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    check_golden(device, backend, subtests)


def test_golden_rows_of_the_reference_and_cffi(npu: str, subtests: pytest.Subtests) -> None:
    check_golden("cpu", "reference", subtests)
    check_golden(npu, "cffi", subtests)


@pytest.mark.parametrize(
    ("k", "p", "launches"),
    [(None, 0.9, {}), (5, None, {"aclnnThreshold": 1}), (5, 0.9, {"aclnnThreshold": 1})],
)
def test_launches_on_a_device(
    counting: None, npu: str, k: int | None, p: float | None, launches: dict[str, int]
) -> None:
    logits = torch.randn(4, 3000, device=npu)
    row_k = None if k is None else torch.full((4,), k, dtype=torch.int32, device=npu)
    row_p = None if p is None else torch.full((4,), p, device=npu)
    apply_top_k_top_p(logits, row_k, row_p)
    with hostcann.profile() as counted:
        apply_top_k_top_p(logits, row_k, row_p)
    own = {OPERATORS[APPLY].name: 1} | launches
    assert {name: counted.launches[name] for name in own} == own
    assert sum(counted.launches.values()) == (1 if k is None else 3)
    assert not counted.synchronizations


def filter_by_each_way() -> list[list[int]]:
    logits = torch.tensor([DESCENDING], device="npu")
    kept = [kept_of(apply_top_k_top_p(logits, p=0.75)), kept_of(apply_top_k_top_p(logits, k=2))]
    served = aclnn_cffi.serve(APPLY, logits, k=torch.tensor([2], dtype=torch.int32, device="npu"))
    assert isinstance(served, torch.Tensor)
    for backend in ("aclnn", "cffi"):
        with ascend_sample.use_backend(backend), pytest.raises(RuntimeError, match=OPERATORS[APPLY].found_in):
            apply_top_k_top_p(logits, k=2)
    return [*kept, kept_of(served)]


def test_a_cann_without_the_second_operator_is_not_asked(npu: str) -> None:
    """It is of 8.5, whose kernel has faults that its sources show."""
    finished = run_isolated(filter_by_each_way, without=[OPERATORS[SAMPLE_V2].phase_2])
    finished.check_clean()
    assert finished.result == [[0, 1]] * 3
    assert OPERATORS[APPLY].name not in finished.launches
    said = [line for line in finished.stderr.splitlines() if f"{APPLY}: served by the composite" in line]
    assert len(said) == 2  # by the compiled binding, and by the other
    assert all(f"{OPERATORS[SAMPLE_V2].name} was not found" in line for line in said)


def test_routes(npu: str) -> None:
    logits = torch.zeros(1, 4)
    assert ascend_sample.which_backend(logits, APPLY).backend == "composite"
    assert ascend_sample.which_backend(logits.to(npu), APPLY).backend == "aclnn"
    with ascend_sample.use_backend("cpu"), pytest.raises(RuntimeError, match="the forced backend cpu cannot serve"):
        apply_top_k_top_p(logits, k=2)
