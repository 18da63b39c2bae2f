"""Rows of the second operator that one can check by hand, through every implementation."""

from __future__ import annotations

import math
import time

import pytest
import torch

import ascend_sample
from tests.operators.by_hand_v2 import DTYPES, INF, NAN, PROBABILITIES, TENTHS, log, run, sample
from tests.operators.guesses import GUESSED, GUESSES, ROW


class TestTopP:
    """Sums that are exact in binary tell >= from >."""

    @pytest.mark.parametrize(
        ("p", "n"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.125, 1), (0.515625, 3), (0.0, 1), (-0.5, 1), (1.0, 4), (1.5, 4)]
    )
    @pytest.mark.parametrize("k", [None, 4])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_keep_until_sum_reaches_p(
        self, device: str, route: str | None, k: int | None, p: float, n: int, dtype: torch.dtype
    ) -> None:
        assert sample(device, route, [[0.0] * 4], k=k, p=p, dtype=dtype) == ([0], [list(range(n))])

    def test_nan_skips_top_p(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], p=NAN) == ([3], [[0, 1, 2, 3]])

    def test_weights_are_those_of_softmax(self, device: str, route: str | None) -> None:
        # .8 : .15 are drawn 5.33 : 1. The first operator would draw them 1.916 : 1.
        row = log(0.8, 0.15, 0.05)
        assert sample(device, route, [row], p=0.9, q=[[1.0, 0.45, 1.0]])[0] == [0]
        assert sample(device, route, [row], p=0.9, q=[[1.0, 0.15, 1.0]])[0] == [1]

    def test_one_entry_is_the_best(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], p=0.0, q=[[9.0, 1e-9, 1e-9, 1e-9]]) == ([3], [[3]])
        assert sample(device, route, [TENTHS], k=2, p=-1.0, min_p=0.9) == ([3], [[3]])

    @pytest.mark.parametrize(
        ("levels", "rank"),
        [
            ([(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], 59),
            ([(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], 559),
            ([(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], 2059),
            ([(1.0, 2000), (0.5, 2000), (1e-9, 28000)], 1999),
            ([(1.0, 2000), (0.5, 2000)], 1999),
        ],
    )
    def test_the_last_rank_before_a_step_is_drawn(
        self, device: str, route: str | None, levels: list[tuple[float, int]], rank: int
    ) -> None:
        """Within a level, weights fall by 1e-3. A later rank with less noise scores 5/6 of this one."""
        weights = [weight * (1 - i * 1e-3 / count) for weight, count in levels for i in range(count)]
        later = 3000
        q = [1000.0] * len(weights)
        q[rank] = 1.0
        q[later] = 1.2 * weights[later] / weights[rank]
        assert sample(device, route, [log(*weights)], p=0.95, q=[q], dtype=torch.float32)[0] == [rank]

    @GUESSES
    def test_guess_never_changes_a_result(self, device: str, route: str | None, guess: int) -> None:
        expected = sample("cpu", "reference", [ROW], **GUESSED)
        assert sample(device, route, [ROW], **GUESSED, top_k_guess=guess) == expected


class TestTopK:
    """What ks_max makes of k."""

    @pytest.mark.parametrize(("ks_max", "k", "kept"), [(1, 8, 8), (1, 9, 30), (9, 16, 16), (9, 17, 30), (1024, 30, 30)])
    def test_ks_max(self, device: str, route: str | None, ks_max: int, k: int, kept: int) -> None:
        row = [float(-i) / 8 for i in range(30)]
        assert sample(device, route, [row], k=k, ks_max=ks_max) == ([0], [list(range(kept))])

    def test_weights_are_not_normalised_again(self, device: str, route: str | None) -> None:
        # Among the best three: 4/9, 3/9, 2/9. Two reach .7; their weights stay 4/9 and 3/9.
        result = run(device, route, [TENTHS], k=3, p=0.7, is_need_sample_result=True, dtype=torch.float32)
        assert result.logits_idx is not None
        assert result.logits_sort_masked is not None
        assert result.logits_idx[0, :2].tolist() == [3, 2]
        assert result.logits_sort_masked[0].tolist() == pytest.approx([4 / 9, 3 / 9, 0.0, 0.0])


class TestMinP:
    """Of probabilities, whose products are exact."""

    @pytest.mark.parametrize(
        ("min_p", "kept"),
        [
            (0.5, [1, 2]),
            (0.51, [1]),
            (0.25, [0, 1, 2, 3]),
            (1.0, [1]),
            (7.0, [1]),
            (0.0, [0, 1, 2, 3]),
            (-1.0, [0, 1, 2, 3]),
            (NAN, [0, 1, 2, 3]),
            (None, [0, 1, 2, 3]),
        ],
    )
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_what_is_kept(
        self, device: str, route: str | None, min_p: float | None, kept: list[int], dtype: torch.dtype
    ) -> None:
        options = {"min_p": min_p, "input_is_logits": False, "dtype": dtype}
        assert sample(device, route, [PROBABILITIES], **options) == ([1], [kept])

    def test_one_best_among_equals(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[0.0, 2.0, 2.0]], min_p=1.0) == ([1], [[1]])
        assert sample(device, route, [[0.0, 2.0, 2.0]], min_p=0.999) == ([1], [[1, 2]])

    def test_after_top_k_and_top_p(self, device: str, route: str | None) -> None:
        rows = [PROBABILITIES] * 3
        k = torch.tensor([3, 0, 3])
        p = torch.tensor([1.0, 0.8, 0.8])
        min_p = torch.tensor([0.5, 0.5, 0.25])
        options = {"k": k, "p": p, "min_p": min_p, "input_is_logits": False}
        assert sample(device, route, rows, **options)[1] == [[1, 2], [1, 2], [0, 1, 2]]

    def test_index_of_q(self, device: str, route: str | None) -> None:
        # Kept are 1, 2: by place the noises .9 and .1, by rank the same; by id they would be .1 and 9.
        q = [[0.9, 0.1, 9.0, 9.0]]
        assert sample(device, route, [PROBABILITIES], min_p=0.5, q=q, input_is_logits=False)[0] == [2]
        # Kept are 0, 1, 3 in this order; by rank they would be 3, 0, 1.
        row = [0.25, 0.125, 0.0, 0.5]
        assert sample(device, route, [row], min_p=0.25, q=[[9.0, 1e-3, 9.0, 9.0]], input_is_logits=False)[0] == [1]
        assert sample(device, route, [row], k=3, min_p=0.25, q=[[9.0, 1e-3, 9.0, 9.0]], input_is_logits=False)[0] == [0]

    @pytest.mark.parametrize(("nearly", "kept"), [(-5e-7, [0]), (5e-7, [0, 1])])
    def test_a_logit_next_to_the_bound(self, device: str, route: str | None, nearly: float, kept: list[int]) -> None:
        """Within a millionth of min-p it is told by the probabilities; a kept one would be drawn."""
        rows, q = [[0.0, math.log(0.5) + nearly]], [[1.0, 1e-6]]
        assert sample(device, route, rows, min_p=0.5, q=q, dtype=torch.float32) == ([kept[-1]], [kept])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_entries_of_infinity_share_the_mass(self, device: str, route: str | None, dtype: torch.dtype) -> None:
        rows, q = [[INF, 9.0, INF, INF]], [[3.0, 1.0, 2.0, 1e-6]]
        assert sample(device, route, rows, min_p=0.5, q=q, dtype=dtype) == ([2], [[0, 2, 3]])

    @pytest.mark.parametrize(
        ("nucleus", "staying", "quiet", "drawn"),
        [
            (1500, 1400, 1399, 1399),
            (1500, 1400, 1400, 0),
            (1500, 1520, 1499, 1499),
            (1500, 1520, 1510, 0),  # a rough sum leaves it open which of the two is smaller
            (1500, 2200, 1505, 0),
            (1500, 600, 599, 599),
            (1500, 600, 600, 0),
        ],
    )
    def test_of_a_large_nucleus(
        self, device: str, route: str | None, nucleus: int, staying: int, quiet: int, drawn: int
    ) -> None:
        """Logits that fall slowly, and many low ones: a rank with little noise is drawn where both filters keep it."""
        row = [-rank / 700 for rank in range(2500)] + [-4.0] * 16_380
        sums = torch.softmax(torch.tensor([row], dtype=torch.float64), 1).cumsum(1)
        p = float(sums[0, nucleus - 2] + sums[0, nucleus - 1]) / 2
        q = [1.0] * len(row)
        q[quiet] = 1e-3
        result = run(device, route, [row], [q], torch.float32, p=p, min_p=math.exp(-(staying - 0.5) / 700))
        assert result.logits_select_idx.tolist() == [drawn]

    def test_of_logits(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[0.0, 3.0, 2.0, 1.0]], min_p=0.3) == ([1], [[1, 2]])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_stays_inside_the_unit_interval(self, device: str, route: str | None, dtype: torch.dtype) -> None:
        """Rounded up to 1, it would keep one of two equal entries; rounded to 0, it would keep everything."""
        assert sample(device, route, [[2.0, 2.0]], min_p=1 - 1e-9, dtype=dtype)[1] == [[0, 1]]
        assert sample(device, route, [[0.0, -200.0]], min_p=1e-30, dtype=dtype)[1] == [[0]]


class TestProbabilities:
    """input_is_logits=False."""

    def test_used_as_they_are(self, device: str, route: str | None) -> None:
        assert sample(device, route, [PROBABILITIES], p=0.75, input_is_logits=False) == ([1], [[1, 2]])

    def test_need_not_sum_to_one(self, device: str, route: str | None) -> None:
        assert sample(device, route, [[0.1, 0.2, 0.05]], p=0.9, input_is_logits=False)[1] == [[0, 1, 2]]

    @pytest.mark.parametrize("k", [None, 4])
    def test_all_are_kept_of_any_sum(self, device: str, route: str | None, k: int | None) -> None:
        q = [[9.0, 9.0, 9.0, 1e-9]]
        assert sample(device, route, [[1.0] * 4], k=k, q=q, input_is_logits=False) == ([3], [[0, 1, 2, 3]])

    @pytest.mark.parametrize(("k", "p"), [(None, None), (3, None), (None, 0.99), (3, 0.99)])
    @pytest.mark.parametrize("nothing", [0.0, -0.5, NAN, -INF])
    def test_nothing_is_never_drawn(
        self, device: str, route: str | None, k: int | None, p: float | None, nothing: float
    ) -> None:
        row = [nothing, 0.5, nothing, nothing]
        options = {"k": k, "p": p, "q": [[1e-30, 1.0, 1e-30, 1e-30]], "input_is_logits": False}
        assert sample(device, route, [row], **options) == ([1], [[1]])

    def test_nothing_is_never_drawn_for_another_score_of_0(self, device: str, route: str | None) -> None:
        options = {"q": [[1.0, INF, 1.0, 1.0]], "input_is_logits": False}
        assert sample(device, route, [[0.0, 0.5, 0.0, 0.0]], **options) == ([1], [[1]])

    @pytest.mark.parametrize(("k", "p", "min_p"), [(None, None, None), (2, 0.5, 0.5), (None, 0.5, None)])
    def test_row_of_nothing_gives_id_0(
        self, device: str, route: str | None, k: int | None, p: float | None, min_p: float | None
    ) -> None:
        for q in (None, [[5.0, 1.0, 1e-3, 1.0]]):
            options = {"k": k, "p": p, "min_p": min_p, "q": q, "input_is_logits": False}
            assert sample(device, route, [[0.0, NAN, -1.0, 0.0]], **options) == ([0], [[]])

    def test_infinities_share_the_mass(self, device: str, route: str | None) -> None:
        options = {"is_need_sample_result": True, "input_is_logits": False}
        result = run(device, route, [[INF, 0.5, INF, 0.25]], k=3, **options)
        assert result.logits_sort_masked is not None
        assert result.logits_sort_masked.tolist() == [[0.5, 0.5, 0.0, 0.0]]


class TestSpecialValues:
    """What the first operator's tests say holds here too."""

    @pytest.mark.parametrize(
        ("k", "p", "min_p"), [(None, None, None), (2, None, None), (None, 0.9, 0.1), (2, 0.9, 0.1)]
    )
    @pytest.mark.parametrize("value", [-INF, NAN])
    def test_row_without_a_number_gives_id_0(
        self, device: str, route: str | None, k: int | None, p: float | None, min_p: float | None, value: float
    ) -> None:
        for q in (None, [[5.0, 1.0, 1e-3, 1.0]]):
            assert sample(device, route, [[value] * 4], k=k, p=p, min_p=min_p, q=q) == ([0], [[]])

    def test_noise(self, device: str, route: str | None) -> None:
        assert sample(device, route, [TENTHS], q=[[-0.1, 1.0, 1.0, -1.0]])[0] == [0]
        assert sample(device, route, [TENTHS], q=[[NAN, 1.0, NAN, NAN]])[0] == [1]
        assert sample(device, route, [TENTHS], k=3, q=[[NAN] * 4])[0] == [3]
        assert sample(device, route, [[-INF, 1.0]], q=[[1.0, NAN]])[0] == [1]
        assert sample(device, route, [[0.0, 0.0, -20000.0]], q=[[1.0, 0.0, 0.0]], eps=0.0)[0] == [1]

    def test_empty_batch(self, device: str, route: str | None) -> None:
        x = torch.empty(0, 7, dtype=torch.float16, device=device)
        with ascend_sample.use_backend(route):
            result = ascend_sample.top_k_top_p_sample_v2(
                x, 3, 0.9, min_p=0.1, is_need_logits=True, is_need_sample_result=True
            )
            assert ascend_sample.top_k_top_p_sample_v2(x)[1:] == (None, None, None)
        assert [(part.shape, part.dtype) for part in result if part is not None] == [
            ((0,), torch.int64),
            ((0, 7), torch.float32),
            ((0, 7), torch.int64),
            ((0, 7), torch.float32),
        ]

    @pytest.mark.parametrize("layout", ["transposed", "expanded", "every second"])
    def test_strided_inputs(self, device: str, route: str | None, layout: str) -> None:
        generator = torch.Generator().manual_seed(1)

        def lay_out(x: torch.Tensor) -> torch.Tensor:
            if layout == "transposed":
                return x.T.contiguous().T
            return x[:1].expand(x.shape) if layout == "expanded" else x.repeat_interleave(2, 1)[:, ::2]

        x = lay_out(torch.randn(6, 100, generator=generator).half().to(device))
        q = lay_out(torch.rand(6, 100, generator=generator).to(device))
        k = torch.arange(12, dtype=torch.int32, device=device)[::2]
        p, min_p = (torch.linspace(0.1, 1.2, 12).half().to(device)[start::2] for start in (0, 1))
        with ascend_sample.use_backend(route):
            strided = ascend_sample.top_k_top_p_sample_v2(x, k, p, q, min_p, is_need_logits=True)
            plain = ascend_sample.top_k_top_p_sample_v2(
                *(t.clone(memory_format=torch.contiguous_format) for t in (x, k, p, q, min_p)), is_need_logits=True
            )
        assert torch.equal(strided.logits_select_idx, plain.logits_select_idx)
        assert torch.equal(strided.logits_top_kp_select, plain.logits_top_kp_select)


class TestRowsThatWentWrong:
    """Faults that the fuzzer once found in the CPU kernel."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_a_large_nucleus_is_drawn_from_in_order(self, device: str, route: str | None, dtype: torch.dtype) -> None:
        """A noise of 0 leaves the draw open, so the whole nucleus is sorted: padded scores fell onto its first ids."""
        row = [i / 1024 for i in range(2999)] + [3.0]
        q = [[0.0] + [1.0] * 2999]
        options = {"p": 0.9, "q": q, "eps": 0.0, "dtype": dtype}
        assert sample(device, route, [row], **options)[0] == [2999]

    def test_min_p_cuts_next_to_zero(self, device: str, route: str | None) -> None:
        """Half of the best has the logit 1.2e-7, and a millionth around it lie 1.8e9 floats, tried one by one."""
        row = [math.log(2) + 1.2e-7, 5e-7, -3e-7, -3.0]
        start = time.process_time()
        assert sample(device, route, [row], min_p=0.5, dtype=torch.float32) == ([0], [[0, 1]])
        assert time.process_time() - start < 3

    def test_a_logit_just_below_the_cut_of_min_p(self, device: str, route: str | None) -> None:
        """4e-7 below half of the best. The first row tells what is tried first for the others: they kept it."""
        row = [math.log(2), -4e-7]
        options = {"p": 0.99, "min_p": 0.5, "dtype": torch.float32}
        assert sample(device, route, [row] * 3, **options) == ([0] * 3, [[0]] * 3)

    def test_scores_that_overflow_only_among_the_kept(self, device: str, route: str | None) -> None:
        """Weights of 1/802 in the row, of 1/2 among what min-p leaves: 0.5 / 1e-39 is beyond float32, twice."""
        row = [math.log(0.4)] * 2000 + [0.0, 0.0]
        q = [[1.25e-39, 1e-39] + [1.0] * 2000]
        options = {"min_p": 0.5, "q": q, "eps": 0.0, "dtype": torch.float32}
        assert sample(device, route, [row], **options) == ([2001], [[2000, 2001]])
