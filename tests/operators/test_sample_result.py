"""The second operator's sample result: the kept ids and their weights, through every implementation."""

from __future__ import annotations

import math

import pytest
import torch

from tests.operators.by_hand_v2 import INF, NAN, PROBABILITIES, run


class TestSampleResult:
    """is_need_sample_result=True."""

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
        self, device: str, route: str | None, k: int | None, p: float | None, min_p: float | None, ids: list[int]
    ) -> None:
        options = {"k": k, "p": p, "min_p": min_p, "input_is_logits": False, "is_need_sample_result": True}
        result = run(device, route, [PROBABILITIES], **options)
        assert result.logits_select_idx.tolist() == [1]
        assert result.logits_top_kp_select is None
        assert result.logits_idx is not None
        assert result.logits_sort_masked is not None
        assert result.logits_idx.dtype == torch.int64
        assert result.logits_idx[0, : len(ids)].tolist() == ids
        assert result.logits_sort_masked[0].tolist() == [PROBABILITIES[i] for i in ids] + [0.0] * (4 - len(ids))

    @pytest.mark.parametrize(("k", "min_p"), [(None, None), (3, None), (None, 0.5), (2, 1.0)])
    @pytest.mark.parametrize(
        ("row", "input_is_logits", "weight"),
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
        self,
        device: str,
        route: str | None,
        row: list[float],
        input_is_logits: bool,
        weight: float,
        k: int | None,
        min_p: float | None,
    ) -> None:
        """Where p <= 0: softmax of one logit, or the probability that it is."""
        options = {"k": k, "min_p": min_p, "input_is_logits": input_is_logits, "is_need_sample_result": True}
        for p in (0.0, -0.5):
            result = run(device, route, [row], p=p, **options)
            assert result.logits_sort_masked is not None
            assert result.logits_sort_masked[0].tolist() == [weight, 0.0, 0.0]

    @pytest.mark.parametrize(
        ("k", "p", "min_p"), [(None, None, None), (2, None, None), (None, 0.0, None), (None, 0.5, 0.5), (2, 0.5, 1.0)]
    )
    @pytest.mark.parametrize(
        ("row", "dtype", "input_is_logits", "best"),
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
        self,
        device: str,
        route: str | None,
        row: list[float],
        dtype: torch.dtype,
        input_is_logits: bool,
        best: int,
        k: int | None,
        p: float | None,
        min_p: float | None,
    ) -> None:
        """Also where unequal entries have one weight, and the same as without a sample result."""
        options = {"k": k, "p": p, "min_p": min_p, "input_is_logits": input_is_logits, "dtype": dtype}
        for each in (route, "cffi") if (device, route) == ("npu", None) else (route,):
            result = run(device, each, [row, row[::-1]], is_need_sample_result=True, **options)
            assert result.logits_select_idx[0].item() == best
            assert result.logits_select_idx.tolist() == run(device, each, [row, row[::-1]], **options)[0].tolist()

    def test_drawing_from_it_is_the_draw(self, device: str, route: str | None) -> None:
        """weights / q, argmax, gather: what the operator does with q."""
        generator = torch.Generator().manual_seed(3)
        rows = torch.randn(8, 200, generator=generator).tolist()
        q = torch.empty(8, 200).exponential_(generator=generator)
        options = {
            "k": torch.tensor([0, 0, 20, 20, 0, 0, 9, 9]),
            "p": torch.tensor([1.0, 0.7, 1.0, 0.7, 1.0, 0.7, 1.0, 0.7]),
            "min_p": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1]),
        }
        result = run(device, route, rows, is_need_sample_result=True, **options)
        assert result.logits_idx is not None
        assert result.logits_sort_masked is not None
        best = (result.logits_sort_masked / (q + 1e-8)).argmax(dim=1, keepdim=True)
        drawn = run(device, route, rows, q=q.tolist(), **options)
        assert result.logits_idx.gather(1, best).squeeze(1).tolist() == drawn.logits_select_idx.tolist()
