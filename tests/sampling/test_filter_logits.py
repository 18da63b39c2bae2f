"""ascend_sample::filter_logits on the CPU: what filters keep of rows, beside torch's operators, and what it refuses.

`test_filters.py` compares what is kept with the reference in float64.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_filter_probabilities import DTYPES, REQUESTS, SIZES, make_logits
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, filter_logits
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.step.distribution import _scaled
from tests.support.code_paths import assert_same_on_all_code_paths

LARGE = [
    SamplingParams(temperature=1.0, top_k=1500),
    SamplingParams(temperature=0.7, top_k=1500, top_p=0.9),
    SamplingParams(temperature=1.7, top_k=1025, min_p=0.01),
    SamplingParams(temperature=1.0, top_k=4999, top_p=0.99, min_p=0.001),
    SamplingParams(temperature=0.3, top_k=2000, min_p=1.0),
    SamplingParams(temperature=0.7, top_k=300, top_p=0.9),
    SamplingParams(temperature=1.7, top_k=700, min_p=0.01),
    SamplingParams(temperature=1.0, top_k=1000, top_p=0.99),
]
"""Of which what top-k keeps is not sorted, or is counted."""


def columns(requests: list[SamplingParams]) -> dict[str, Tensor]:
    return {
        "temperature": torch.tensor([float(one.temperature) for one in requests]),
        "top_k": torch.tensor([one.top_k or 0 for one in requests], dtype=torch.int32),
        "top_p": torch.tensor([one.top_p for one in requests]),
        "min_p": torch.tensor([one.min_p for one in requests]),
    }


def by_operator(logits: Tensor, requests: list[SamplingParams], keep_ties: bool, is_shifted: bool) -> Tensor:
    return torch.ops.ascend_sample.filter_logits(logits, *columns(requests).values(), keep_ties, is_shifted)


def by_torch(logits: Tensor, requests: list[SamplingParams], keep_ties: bool, is_shifted: bool) -> Tensor:
    """What devices do without an operator of their own."""
    filters = columns(requests)
    scaled = _scaled(logits, filters, keep_ties)
    if is_shifted:
        return scaled
    divisor = torch.where(filters["temperature"] == 0, 1, filters["temperature"]).unsqueeze(1)
    return torch.where(scaled > -torch.inf, logits.float() / divisor, -torch.inf)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_keeps_what_torchs_operators_keep(vocab_size: int, dtype: torch.dtype) -> None:
    """With the same bits; rows with NaN, with +inf and with hardly anything among them."""
    requests = REQUESTS + LARGE if vocab_size == 5000 else REQUESTS
    logits = make_logits(vocab_size, dtype)
    logits = torch.cat((logits, logits[: len(requests) - len(logits)]))
    before = logits.clone()
    for keep_ties, is_shifted in itertools.product((False, True), (False, True)):
        found = by_operator(logits, requests, keep_ties, is_shifted)
        assert found.dtype == torch.float32
        assert torch.equal(found, by_torch(logits, requests, keep_ties, is_shifted)), (keep_ties, is_shifted)
        undivided = torch.ops.ascend_sample.filter_logits(
            logits, *columns(requests).values(), keep_ties, is_shifted, is_divided=False
        )
        assert torch.equal(undivided, torch.where(found > -torch.inf, logits.float(), -torch.inf)), keep_ties
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_keeps_by_the_logits_where_the_division_makes_some_equal(dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 40, dtype=dtype)
    logits[0, 7], logits[0, 9] = 1e-7, 2e-7  # (logit - 1) / 3 is the same of both
    logits[0, 3] = 1
    kept = by_operator(logits, [SamplingParams(temperature=3, top_k=2)], keep_ties=False, is_shifted=True)
    assert (kept > -torch.inf).nonzero()[:, 1].tolist() == [3, 9]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_k", [None, 3, 300])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_nothing_is_kept_beside_infinity(temperature: float, top_k: int | None, dtype: torch.dtype) -> None:
    logits = torch.randn(1, 400).to(dtype)
    logits[0, [5, 90]] = torch.inf
    for is_shifted, wanted in ((False, torch.inf), (True, 0.0)):
        request = SamplingParams(temperature=temperature, top_k=top_k)
        kept = by_operator(logits, [request], keep_ties=False, is_shifted=is_shifted)
        assert (kept > -torch.inf).nonzero()[:, 1].tolist() == [5, 90]
        assert kept[0, [5, 90]].tolist() == [wanted, wanted]


def test_any_integers_are_a_top_k() -> None:
    logits = torch.randn(4, 50)
    for top_k in (torch.tensor([3, -1, 2**32 + 5, 50]), torch.tensor([3, -1, 0, 50], dtype=torch.int16)):
        assert (filter_logits(logits, top_k=top_k) > -torch.inf).sum(dim=1).tolist() == [3, 50, 50, 50]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32])
def test_integers_that_do_not_reach_the_vocabulary(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 70000)
    kept = filter_logits(logits, top_k=torch.tensor([3, 0]).to(dtype)) > -torch.inf
    assert kept.sum(dim=1).tolist() == [3, 70000]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.7])
@pytest.mark.parametrize("vocab_size", [5, 300, 2000])
def test_a_min_p_next_to_a_weight_keeps_what_is_drawn_from(vocab_size: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    rows = 200
    logits = 2 * torch.randn(rows, vocab_size, generator=generator)
    weights = ((logits - logits.amax(1, keepdim=True)) / temperature).double().exp().float()
    one = weights.gather(1, torch.randint(vocab_size, (rows, 1), generator=generator)).squeeze(1)
    ulps = torch.randint(-3, 4, (rows,), generator=generator, dtype=torch.int32)
    min_p = (one.view(torch.int32) + ulps).view(torch.float32).clamp(max=0.999)
    batch = SamplingBatch(vocab_size)
    asked = {"temperature": temperature, "kept": True}
    batch.extend([SamplingParams(min_p=bound, seed=row, **asked) for row, bound in enumerate(min_p.tolist())])
    drawn = Sampler()(logits, batch).kept
    assert drawn is not None
    kept = filter_logits(logits, min_p=min_p, temperature=torch.full((rows,), temperature)) > -torch.inf
    assert torch.equal(kept.sum(dim=1, dtype=torch.int32), drawn.counts)


def test_gradients_flow_where_they_are_asked_for() -> None:
    """The kernel has none: torch's operators keep the same then."""
    logits = torch.randn(3, 100)
    given = {"temperature": torch.full((3,), 0.5), "top_k": torch.full((3,), 4)}
    expected = filter_logits(logits, **given)
    found = filter_logits(logits.requires_grad_(), **given)
    assert torch.equal(found.detach(), expected)
    found[found > -torch.inf].sum().backward()
    assert torch.equal(logits.grad, torch.where(expected > -torch.inf, 2.0, 0.0))
    with torch.no_grad():
        assert torch.equal(filter_logits(logits, **given), expected)
    found = filter_logits(logits.detach(), temperature=given["temperature"].requires_grad_(), top_k=given["top_k"])
    found[found > -torch.inf].sum().backward()
    sums = torch.where(expected > -torch.inf, expected, 0.0).sum(1)
    torch.testing.assert_close(given["temperature"].grad, -sums / 0.5)


EDITED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"logit_bias": {3: 4.0, 40: -2.0}, "bad_ids": [7]},
    {"allowed_ids": list(range(2, 90, 3))},
    {"typical_p": 0.8},
    {"top_a": 0.1, "presence_penalty": 1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 0.0},
    {"epsilon_cutoff": 0.01, "allowed_ids": list(range(50)), "logit_bias": {9: 1.0}},
    {},
]


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("more", [{}, {"top_k": 12, "top_p": 0.9}, {"top_p": 0.8}, {"min_p": 0.02}], ids=str)
def test_edits_come_first(more: dict[str, Any], dtype: torch.dtype, is_shifted: bool) -> None:
    """They are those of the draw; a NaN and a -inf that are there stay what they are."""
    requests = [SamplingParams(seed=row, **({"temperature": 0.7} | more | kind)) for row, kind in enumerate(EDITED)] * 3
    batch = SamplingBatch(vocab_size=300)
    batch.extend(requests, output_ids=[[row, row + 1, row, 299] for row in range(len(requests))])
    logits = (torch.randn(len(requests), 300, generator=torch.Generator().manual_seed(4)) * 3).to(dtype)
    logits[:9, 11], logits[9:, 12] = torch.nan, -torch.inf
    words = torch.randint(-(2**31), 2**31, (len(requests), 10), dtype=torch.int32)
    mask = Bitmask(words, None, None)
    edits, edited = batch.native_edits(mask), batch.edited(logits, mask)
    assert edited is not None
    given = (*columns(requests).values(), False, is_shifted)
    found = torch.ops.ascend_sample.filter_logits(logits, *given, **edits)
    assert torch.equal(found, torch.ops.ascend_sample.filter_logits(edited, *given))
    assert not torch.equal(found, torch.ops.ascend_sample.filter_logits(logits, *given))


def test_strides_and_no_rows() -> None:
    logits = make_logits(700, torch.float32)
    expected = by_operator(logits, REQUESTS, keep_ties=True, is_shifted=False)
    wide = torch.zeros(2 * len(REQUESTS), 1400)
    wide[::2, 1::2] = logits
    for view in (wide[::2, 1::2], logits.t().contiguous().t()):
        assert torch.equal(by_operator(view, REQUESTS, keep_ties=True, is_shifted=False), expected)
    assert by_operator(torch.zeros(0, 5), [], keep_ties=False, is_shifted=True).shape == (0, 5)
    assert filter_logits(torch.zeros(0, 5)).shape == (0, 5)


PROGRAM = """
import hashlib
from test_filter_logits import DTYPES, REQUESTS, SIZES, by_operator, make_logits
digest = hashlib.sha256()
for vocab_size in SIZES:
    for dtype in DTYPES:
        for options in ((False, False), (True, True)):
            digest.update(by_operator(make_logits(vocab_size, dtype), REQUESTS, *options).numpy().tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert_same_on_all_code_paths(PROGRAM)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"logits": torch.zeros(3)}, ValueError, r"logits must have shape \[rows, vocab_size\]"),
    ({"logits": [1.0]}, TypeError, "logits must be a torch.Tensor, got list"),
    ({"temperature": 0.7}, TypeError, "temperature must be a tensor of torch.float32, got float"),
    (
        {"top_p": torch.ones(2, dtype=torch.float64)},
        TypeError,
        "top_p must be a tensor of torch.float32, got torch.float64",
    ),
    ({"top_k": torch.ones(2)}, TypeError, "top_k must be a tensor of torch.int32, got torch.float32"),
    ({"min_p": torch.zeros(3)}, ValueError, "min_p must have one value for each of the 2 rows"),
    ({"keep_ties": 1}, TypeError, "keep_ties must be True or False, got int 1"),
    ({"temperature": torch.tensor([1.0, -1.0])}, ValueError, "temperature must be at least 0, got -1.0 in row 1"),
    ({"top_p": torch.tensor([1.0, torch.nan])}, ValueError, r"top_p must lie in \(0, 1\], got nan in row 1"),
    ({"min_p": torch.tensor([1.5, 1.0])}, ValueError, r"min_p must lie in \[0, 1\], got 1.5 in row 0"),
]


@pytest.mark.parametrize(("changed", "error", "message"), WRONG)
def test_errors_name_what_was_given(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^filter_logits: {message}"):
        filter_logits(**{"logits": torch.zeros(2, 5), **changed})
