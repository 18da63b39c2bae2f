"""The second operator's sample result: the kept ids and their weights, through every implementation."""

from __future__ import annotations

import math

import pytest
import torch

from tests.operators.by_hand import INF, NAN, PROBABILITIES, SAMPLE_V2, TENTHS, run


@pytest.mark.parametrize(
    ("k", "p", "min_p", "ids"),
    [
        (None, None, None, [0, 1, 2, 3]),
        (None, None, 0.5, [1, 2]),
        (3, None, None, [1, 2, 0]),
        (None, 0.75, None, [1, 2]),
        (3, 0.8, 0.5, [1, 2]),
        (None, 0.0, None, [1]),
    ],
)
def test_dense(
    device: str, route: str | None, k: int | None, p: float | None, min_p: float | None, ids: list[int]
) -> None:
    options = {"k": k, "p": p, "min_p": min_p, "input_is_logits": False, "is_need_sample_result": True}
    result = run(SAMPLE_V2, device, route, [PROBABILITIES], **options)
    assert result.logits_select_idx.tolist() == [1]
    assert result.logits_top_kp_select is None
    assert result.logits_idx.dtype == torch.int64
    assert result.logits_idx[0, : len(ids)].tolist() == ids
    assert result.logits_sort_masked[0].tolist() == [PROBABILITIES[i] for i in ids] + [0.0] * (4 - len(ids))


def test_weights_are_not_normalised_again(device: str, route: str | None) -> None:
    """Of the best three, 4/9, 3/9 and 2/9, two reach .7; infinities share the mass."""
    result = run(SAMPLE_V2, device, route, [TENTHS], k=3, p=0.7, is_need_sample_result=True, dtype=torch.float32)
    assert result.logits_idx[0, :2].tolist() == [3, 2]
    assert result.logits_sort_masked[0].tolist() == pytest.approx([4 / 9, 3 / 9, 0.0, 0.0])
    options = {"is_need_sample_result": True, "input_is_logits": False}
    result = run(SAMPLE_V2, device, route, [[INF, 0.5, INF, 0.25]], k=3, **options)
    assert result.logits_sort_masked.tolist() == [[0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "input_is_logits", "weight"),
    [
        ([0.0, 1.0, 2.0], True, 1.0),
        ([NAN, 2.0, 2.0], True, 1.0),
        ([0.0, INF, INF], True, 1.0),
        ([-INF, -INF, NAN], True, 0.0),
        ([0.25, 0.5, 0.125], False, 0.5),
        ([0.5, INF, INF], False, 1.0),
    ],
)
def test_weight_of_the_only_candidate(
    device: str, route: str | None, values: list[float], input_is_logits: bool, weight: float
) -> None:
    """Where p <= 0: softmax of one logit, or the probability that it is."""
    options = {"input_is_logits": input_is_logits, "is_need_sample_result": True}
    for p, k, min_p in ((0.0, None, None), (-0.5, 3, None), (0.0, None, 0.5), (-0.5, 2, 1.0)):
        result = run(SAMPLE_V2, device, route, [values], k=k, p=p, min_p=min_p, **options)
        assert result.logits_sort_masked[0].tolist() == [weight, 0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "dtype", "input_is_logits", "best"),
    [
        ([1e-20, 2e-20, 0.0], torch.bfloat16, True, 1),
        ([6e-8, 1.2e-7, 0.0], torch.float16, True, 1),
        ([1.0, math.nextafter(1.0, 2.0), 1 + 2**-23], torch.float32, True, 2),
        ([-0.0, 0.0, -1.0], torch.float16, True, 0),
        ([NAN, -INF, -3.0], torch.float16, True, 2),
        ([NAN, -INF, NAN], torch.float16, True, 0),
        ([0.0, INF, INF], torch.float16, True, 1),
        ([0.0, 1e-40, 2e-40], torch.float32, False, 2),
        ([-1.0, NAN, 0.25], torch.float16, False, 2),
        ([-1.0, NAN, 0.0], torch.float16, False, 0),
        ([0.5, INF, INF], torch.float16, False, 1),
    ],
)
def test_id_is_the_first_of_the_order(
    device: str, route: str | None, values: list[float], dtype: torch.dtype, input_is_logits: bool, best: int
) -> None:
    """Also where unequal entries have one weight, and the same as without a sample result."""
    rows = [values, values[::-1]]
    for k, p, min_p in ((None, None, None), (2, None, None), (None, 0.0, None), (None, 0.5, 0.5), (2, 0.5, 1.0)):
        options = {"k": k, "p": p, "min_p": min_p, "input_is_logits": input_is_logits, "dtype": dtype}
        for each in (route, "cffi") if (device, route) == ("npu", None) else (route,):
            ids = run(SAMPLE_V2, device, each, rows, is_need_sample_result=True, **options).logits_select_idx.tolist()
            assert ids[0] == best
            assert ids == run(SAMPLE_V2, device, each, rows, **options).logits_select_idx.tolist()


def test_drawing_from_it_is_the_draw(device: str, route: str | None) -> None:
    """weights / q, argmax, gather: what the operator does with q."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(8, 200, generator=generator).tolist()
    q = torch.empty(8, 200).exponential_(generator=generator)
    options = {
        "k": torch.tensor([0, 0, 20, 20, 0, 0, 9, 9]),
        "p": torch.tensor([1.0, 0.7] * 4),
        "min_p": torch.tensor([0.0] * 4 + [0.1] * 4),
    }
    result = run(SAMPLE_V2, device, route, rows, is_need_sample_result=True, **options)
    best = (result.logits_sort_masked / (q + 1e-8)).argmax(dim=1, keepdim=True)
    drawn = run(SAMPLE_V2, device, route, rows, q=q.tolist(), **options)
    assert result.logits_idx.gather(1, best).squeeze(1).tolist() == drawn.logits_select_idx.tolist()
