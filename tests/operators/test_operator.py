"""Rows that one can check by hand, through every implementation."""

from __future__ import annotations

import math

import pytest
import torch

import ascend_sample
from tests.operators.by_hand_v2 import INF, TENTHS, log
from tests.operators.guesses import GUESSED, GUESSES, ROW


def sample(
    device: str,
    route: str | None,
    logits: list[list[float]],
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
    q: list[list[float]] | None = None,
    dtype: torch.dtype = torch.float16,
    **options: object,
) -> tuple[list[int], list[list[int]]]:
    """The drawn ids and the kept ids of each row."""
    x = torch.tensor(logits, dtype=torch.float32).to(dtype).to(device)
    noise = None if q is None else torch.tensor(q, dtype=torch.float32, device=device)
    k = k.to(device) if isinstance(k, torch.Tensor) else k
    p = p.to(device) if isinstance(p, torch.Tensor) else p
    with ascend_sample.use_backend(route):
        result = ascend_sample.top_k_top_p_sample(x, k, p, noise, is_need_logits=True, **options)
    select = result.logits_top_kp_select.cpu()
    kept = [torch.nonzero(row != -INF).flatten().tolist() for row in select]
    values = x.float().cpu()
    for b, ids in enumerate(kept):
        assert torch.equal(select[b, ids], values[b, ids]), "kept logits are the original ones"
    return result.logits_select_idx.tolist(), kept


class TestScenarios:
    """One row a scenario: the probabilities .1, .2, .3, .4 of the ids 0 to 3."""

    def test_softmax_argmax(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS]) == ([3], [[0, 1, 2, 3]])

    def test_top_k(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], k=3) == ([3], [[1, 2, 3]])

    def test_top_p(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], p=0.6) == ([3], [[2, 3]])

    def test_top_k_top_p(self, device: str, route: str | None) -> None:
        # Among the best three the probabilities are 4/9, 3/9, 2/9: the first two sum to .78.
        assert sample(device, route, [TENTHS], k=3, p=0.7) == ([3], [[2, 3]])

    def test_sample(self, device: str, route: str | None) -> None:
        # q by id: .1/.1 = 1, .2/1, .3/1, .4/1
        assert sample(device, route, [TENTHS], q=[[0.1, 1, 1, 1]]) == ([0], [[0, 1, 2, 3]])

    def test_top_k_sample(self, device: str, route: str | None) -> None:
        # q by rank: the second best, id 2, gets .1
        assert sample(device, route, [TENTHS], k=3, q=[[1, 0.1, 1, 1]]) == ([2], [[1, 2, 3]])

    def test_top_p_sample(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], p=0.6, q=[[1, 0.1, 1e-6, 1e-6]]) == ([2], [[2, 3]])

    def test_top_k_top_p_sample(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], k=3, p=0.7, q=[[1, 0.1, 1e-6, 1e-6]]) == ([2], [[2, 3]])

    def test_all_mixed_in_one_batch(self, device: str, route: str | None) -> None:
        k = torch.tensor([0, 3, 0, 3, 5, -1], dtype=torch.int32)
        p = torch.tensor([1.0, 1.0, 0.6, 0.7, 0.6, 2.0])
        ids, kept = sample(device, route, [TENTHS] * 6, k=k, p=p, q=[[1, 0.1, 1, 1]] * 6)
        assert kept == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [2, 3], [2, 3], [0, 1, 2, 3]]
        assert ids == [1, 2, 2, 2, 2, 1]


class TestSecondSoftmax:
    """With top-p alone the draw is from softmax(probabilities), not from softmax(logits)."""

    def test_weights_differ_by_less_than_e(self, device: str, route: str | None) -> None:
        # .8 and .15 are kept. Weights: exp(.8) : exp(.15) = 1.916 : 1, while the probabilities are 5.33 : 1.
        row = log(0.8, 0.15, 0.05)
        assert sample(device, route, [row], p=0.9, q=[[1.0, 0.55, 1.0]])[0] == [0]
        assert sample(device, route, [row], p=0.9, q=[[1.0, 0.45, 1.0]])[0] == [1]

    def test_with_top_k_it_does_not_happen(self, device: str, route: str | None) -> None:
        row = log(0.8, 0.15, 0.05)
        assert sample(device, route, [row], k=3, p=0.9, q=[[1.0, 0.45, 1.0]])[0] == [0]
        assert sample(device, route, [row], k=3, p=0.9, q=[[1.0, 0.15, 1.0]])[0] == [1]


class TestBoundaries:
    """Sums that are exact in binary tell > from >=."""

    @pytest.mark.parametrize(("p", "n"), [(0.25, 2), (0.5, 3), (0.75, 4), (0.125, 1), (0.499, 2)])
    @pytest.mark.parametrize("k", [None, 4])
    def test_keep_until_sum_exceeds_p(self, device: str, route: str | None, k: int | None, p: float, n: int) -> None:
        assert sample(device, route, [[0.0] * 4], k=k, p=p) == ([0], [list(range(n))])

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_ties_at_the_kth_value_go_to_the_lowest_id(self, device: str, route: str | None, k: int) -> None:
        assert sample(device, route, [[1.0, 2.0, 1.0, 1.0]], k=k)[1] == [sorted([1, 0, 2, 3][:k])]

    @pytest.mark.parametrize("k", [-7, 0, 5, 2**31 - 1, None])
    def test_k_out_of_range_skips_top_k(self, device: str, route: str | None, k: int | None) -> None:
        assert sample(device, route, [TENTHS], k=k)[1] == [[0, 1, 2, 3]]

    @pytest.mark.parametrize("p", [-0.5, 0.0, 1.0, 1.5, INF, math.nan, None])
    def test_p_out_of_range_skips_top_p(self, device: str, route: str | None, p: float | None) -> None:
        assert sample(device, route, [TENTHS], p=p)[1] == [[0, 1, 2, 3]]

    def test_k_above_1024_skips_top_k(self, device: str, route: str | None) -> None:
        rows = [[float(i % 97) / 10 for i in range(2000)]]
        assert [len(kept) for kept in sample(device, route, rows, k=1024)[1]] == [1024]
        assert [len(kept) for kept in sample(device, route, rows, k=1025)[1]] == [2000]

    @GUESSES
    def test_guess_never_changes_a_result(self, device: str, route: str | None, guess: int) -> None:
        expected = sample("cpu", "reference", [ROW], **GUESSED)
        assert sample(device, route, [ROW], **GUESSED, top_k_guess=guess) == expected


class TestSpecialValues:
    """The table of section 5."""

    @pytest.mark.parametrize(("k", "p"), [(None, None), (2, None), (None, 0.99), (2, 0.99)])
    def test_minus_infinity_is_never_drawn(
        self, device: str, route: str | None, k: int | None, p: float | None
    ) -> None:
        row = [-INF, 1.0, -INF, -INF]
        assert sample(device, route, [row], k=k, p=p, q=[[1e-30, 1.0, 1e-30, 1e-30]])[0] == [1]

    @pytest.mark.parametrize(("k", "p"), [(None, None), (2, None), (None, 0.99), (2, 0.99)])
    @pytest.mark.parametrize("value", [-INF, math.nan])
    def test_row_without_a_number_gives_id_0(
        self, device: str, route: str | None, k: int | None, p: float | None, value: float
    ) -> None:
        for q in (None, [[5.0, 1.0, 1e-3, 1.0]]):
            assert sample(device, route, [[value] * 4], k=k, p=p, q=q) == ([0], [[]])

    def test_nan_is_minus_infinity(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[math.nan, 1.0, 2.0, math.nan]], q=[[1e-30, 1.0, 1.0, 1e-30]]) == ([2], [[1, 2]])

    @pytest.mark.parametrize(("k", "p"), [(None, None), (3, None), (None, 0.9), (3, 0.9)])
    def test_plus_infinities_share_the_mass(
        self, device: str, route: str | None, k: int | None, p: float | None
    ) -> None:
        row = [INF, 60000.0, INF, 0.0]
        ranked = k is not None or p is not None  # q by rank: the two infinities are ranks 0 and 1
        for winner in (0, 2):
            q = [1.0, 1e-9, 1.0, 1e-9]
            q[winner // 2 if ranked else winner] = 0.5
            if ranked:
                q[1 - winner // 2] = 1.0
            assert sample(device, route, [row], k=k, p=p, q=[q])[0] == [winner]

    def test_zero_noise_divides_by_eps(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], q=[[1.0, 0.0, 1.0, 1e-9]])[0] == [3]  # .4 / 1.1e-8 beats .2 / 1e-8

    @pytest.mark.parametrize("k", [-1, 3])
    def test_nothing_divided_by_nothing_scores_zero(self, device: str, route: str | None, k: int) -> None:
        row, q = [1.0, INF, 2.0], [[0.0, math.nan, 1.0]] if k < 0 else [[math.nan, 0.0, 1.0]]
        assert sample(device, route, [row], k=k, q=q, eps=0.0)[0] == [0 if k < 0 else 2]

    def test_sign_of_noise_is_ignored(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], q=[[-0.1, 1.0, 1.0, -1.0]])[0] == [0]

    @pytest.mark.parametrize(("k", "expected"), [(None, 1), (3, 2)])
    def test_nan_noise_is_not_drawn(self, device: str, route: str | None, k: int | None, expected: int) -> None:
        nan = math.nan
        assert sample(device, route, [TENTHS], k=k, q=[[nan, 1.0, nan, nan]])[0] == [expected]

    @pytest.mark.parametrize(("k", "expected"), [(None, 0), (3, 3)])
    def test_all_nan_noise_gives_the_first_kept(
        self, device: str, route: str | None, k: int | None, expected: int
    ) -> None:
        assert sample(device, route, [TENTHS], k=k, q=[[math.nan] * 4])[0] == [expected]

    @pytest.mark.parametrize(
        ("k", "q", "expected"),
        [
            (-1, [math.nan] * 4, 0),
            (-1, [1.0, 1.0, math.nan, 1.0], 0),
            (-1, [math.nan, 1.0, math.nan, 1.0], 1),
            (3, [math.nan] * 4, 2),
            (3, [math.nan, 1.0, 1.0, 1.0], 3),
        ],
    )
    def test_nan_noise_of_an_infinite_logit_leaves_the_draw_to_those_beside_it(
        self, device: str, route: str | None, k: int, q: list[float], expected: int
    ) -> None:
        assert sample(device, route, [[1.0, 2.0, INF, 3.0]], k=k, q=[q])[0] == [expected]

    def test_a_masked_logit_loses_against_nan_noise(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[-INF, 1.0]], q=[[1.0, math.nan]])[0] == [1]

    def test_zeros_of_both_signs_are_equal(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[-0.0, 0.0, -0.0, 0.0]], k=2)[1] == [[0, 1]]

    def test_infinite_noise_scores_zero(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], q=[[INF, INF, INF, 1e9]])[0] == [3]

    def test_eps_zero(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[0.0, 0.0, -20000.0]], q=[[1.0, 0.0, 0.0]], eps=0.0)[0] == [1]


class TestShapesAndStrides:
    """What a caller may pass, beside contiguous tensors."""

    def test_empty_batch(self, device: str, route: str | None) -> None:
        x = torch.empty(0, 7, dtype=torch.float16, device=device)
        with ascend_sample.use_backend(route):
            result = ascend_sample.top_k_top_p_sample(x, 3, 0.9, is_need_logits=True)
            assert ascend_sample.top_k_top_p_sample(x, 3, 0.9).logits_top_kp_select is None
        assert result.logits_select_idx.shape == (0,)
        assert result.logits_select_idx.dtype == torch.int64
        assert result.logits_top_kp_select.shape == (0, 7)

    def test_one_token(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[-3.0]], k=1, p=0.5, q=[[1.0]]) == ([0], [[0]])

    @pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "every second"])
    def test_strided_inputs(self, device: str, route: str | None, layout: str) -> None:
        generator = torch.Generator().manual_seed(1)

        def lay_out(x: torch.Tensor) -> torch.Tensor:
            if layout == "transposed":
                return x.T.contiguous().T
            if layout == "sliced":
                return torch.cat([x, x], 1)[:, 3 : 3 + x.shape[1]]
            if layout == "expanded":
                return x[:1].expand(x.shape)
            return x.repeat_interleave(2, 1)[:, ::2]

        x = lay_out(torch.randn(6, 100, generator=generator).half().to(device))
        q = lay_out(torch.rand(6, 100, generator=generator).to(device))
        k = torch.arange(12, dtype=torch.int32, device=device)[::2]
        p = torch.linspace(0.1, 1.2, 12).half().to(device)[::2]
        with ascend_sample.use_backend(route):
            strided = ascend_sample.top_k_top_p_sample(x, k, p, q, is_need_logits=True)
            plain = ascend_sample.top_k_top_p_sample(
                *(tensor.clone(memory_format=torch.contiguous_format) for tensor in (x, k, p, q)), is_need_logits=True
            )
        assert torch.equal(strided.logits_select_idx, plain.logits_select_idx)
        assert torch.equal(strided.logits_top_kp_select, plain.logits_top_kp_select)

    def test_inputs_are_not_written(self, device: str, route: str | None) -> None:
        x = torch.randn(3, 50).half().to(device)
        k = torch.tensor([0, 5, -3], dtype=torch.int32, device=device)
        p = torch.tensor([0.5, 0.9, 1.0]).half().to(device)
        q = torch.rand(3, 50).to(device)
        copies = [tensor.clone() for tensor in (x, k, p, q)]
        with ascend_sample.use_backend(route):
            ascend_sample.top_k_top_p_sample(x, k, p, q, is_need_logits=True)
        for before, after in zip(copies, (x, k, p, q), strict=True):
            assert torch.equal(before, after)

    def test_a_row_does_not_depend_on_its_batch(self, device: str, route: str | None) -> None:
        x = torch.randn(8, 300).half().to(device)
        x[3] = math.nan
        x[5] = INF
        q = torch.rand(8, 300).to(device)
        k = torch.tensor([0, 1, 5, 7, 300, 301, 2, 0], dtype=torch.int32, device=device)
        p = torch.tensor([0.5, 0.9, 1.0, 0.2, 0.99, 0.7, 0.0, 1.0]).half().to(device)
        with ascend_sample.use_backend(route):
            together = ascend_sample.top_k_top_p_sample(x, k, p, q).logits_select_idx
            alone = [
                ascend_sample.top_k_top_p_sample(x[b : b + 1], k[b : b + 1], p[b : b + 1], q[b : b + 1])
                for b in range(8)
            ]
        assert together.tolist() == [int(result.logits_select_idx) for result in alone]
