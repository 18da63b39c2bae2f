"""`filter_logits` in each of its forms beside the float64 reference and torch, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, filter_logits
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.reference.distribution import kept_ids, target_distribution
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.distribution import Form, _scaled, scaled_logits
from tests.support.code_paths import assert_same_on_all_code_paths

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (1, 2, 15, 16, 17, 33, 300, 5000)
REQUESTS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0, 0.3, 1.0, 1.7)
    for top_k in (None, 1, 3, 40)
    for top_p in (1.0, 0.6, 0.95)
    for min_p in (0.0, 0.2)
]
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


def make_logits(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """One row a request: spread, with ties, and some with NaN, with +inf, or with hardly anything."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(len(REQUESTS), vocab_size, generator=generator) * 4
    logits[1::3] = logits[1::3].round()
    logits[2::7, : vocab_size // 2] = float("nan")
    logits[3::11, vocab_size // 3 : vocab_size // 3 + 2] = float("inf")
    logits[4::13, 1:] = -float("inf")
    return logits.to(dtype)


def columns(requests: list[SamplingParams]) -> dict[str, Tensor]:
    return {
        "temperature": torch.tensor([float(one.temperature) for one in requests]),
        "top_k": torch.tensor([one.top_k or 0 for one in requests], dtype=torch.int32),
        "top_p": torch.tensor([one.top_p for one in requests]),
        "min_p": torch.tensor([one.min_p for one in requests]),
    }


def by_operator(logits: Tensor, requests: list[SamplingParams], keep_ties: bool, is_shifted: bool) -> Tensor:
    form = Form.SHIFTED if is_shifted else Form.DIVIDED
    return torch.ops.ascend_sample.filter_logits(logits, *columns(requests).values(), form, keep_ties)


def by_torch(logits: Tensor, requests: list[SamplingParams], keep_ties: bool, is_shifted: bool) -> Tensor:
    """What devices do without an operator of their own."""
    filters = columns(requests)
    scaled = _scaled(logits, filters, keep_ties)
    if is_shifted:
        return scaled
    divisor = torch.where(filters["temperature"] == 0, 1, filters["temperature"]).unsqueeze(1)
    return torch.where(scaled > -torch.inf, logits.float() / divisor, -torch.inf)


# ---- beside the reference ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_probabilities_are_the_references(vocab_size: int, dtype: torch.dtype) -> None:
    logits = make_logits(vocab_size, dtype)
    found = torch.ops.ascend_sample.filter_logits(logits, *columns(REQUESTS).values(), Form.PROBABILITIES)
    assert (found.dtype, found.shape) == (torch.float32, logits.shape)
    has_any = (logits > -torch.inf).any(dim=1)
    assert found[~has_any].isnan().all()
    for row in has_any.nonzero().flatten().tolist():
        expected = target_distribution(logits[row].float().numpy(), REQUESTS[row])
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-6, err_msg=str(REQUESTS[row]))
        assert ((found[row].numpy() > 0) <= (expected > 0)).all(), "what is not kept has exactly 0"


def test_a_sum_that_is_p_does_not_exceed_it() -> None:
    given = columns([SamplingParams(top_p=0.5)]).values()
    for dtype in DTYPES:
        found = torch.ops.ascend_sample.filter_logits(torch.zeros(1, 4, dtype=dtype), *given, Form.PROBABILITIES)
        torch.testing.assert_close(found, torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0]]))


@pytest.mark.parametrize("keep_ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeps_what_the_reference_keeps(device: str, dtype: torch.dtype, keep_ties: bool) -> None:
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in itertools.product((0.0, 0.4, 1.0), (None, 1, 7, 200), (1.0, 0.2, 0.9), (0.0, 0.03, 1.0))
    ]
    logits = (torch.randn(len(params), 300) * 2).to(dtype)
    logits[::5, ::7] = -torch.inf
    given = {name: column.to(device) for name, column in columns(params).items()}
    filtered = filter_logits(logits.to(device), **given, keep_ties=keep_ties).cpu()
    for row, one in enumerate(params):
        values = logits[row].double().numpy()
        kept = [token_id for token_id in kept_ids(values, one, keep_ties) if values[token_id] > -np.inf]
        assert (filtered[row] > -torch.inf).nonzero().flatten().tolist() == sorted(kept)
        expected = torch.from_numpy(values[kept]) / (one.temperature or 1.0)
        torch.testing.assert_close(filtered[row, kept].double(), expected, rtol=1e-6, atol=0)


def test_special_values(device: str) -> None:
    logits = torch.tensor([[torch.nan, 1.0, 2.0], [torch.inf, 1.0, torch.inf], [-torch.inf] * 3], device=device)
    filtered = filter_logits(logits, top_p=torch.full((3,), 0.9, device=device))
    nothing = -torch.inf
    assert filtered.tolist() == [[nothing, 1.0, 2.0], [torch.inf, nothing, torch.inf], [nothing] * 3]
    batch = SamplingBatch(3, device)
    batch.extend([SamplingParams(temperature=0.5, top_p=0.9, seed=1)] * 3)
    scaled = scaled_logits(logits, batch.row_parameters())
    assert scaled.tolist() == [[nothing, -2.0, 0.0], [0.0, nothing, 0.0], [nothing] * 3]


def test_a_softmax_of_scaled_logits_loses_no_digits(device: str) -> None:
    """Of the logits divided first it is off by 2e-6."""
    params = [SamplingParams(temperature=temperature, top_k=7, seed=1) for temperature in (0.7, 0.2, 1.7, 0.0)]
    batch = SamplingBatch(300, device)
    batch.extend(params)
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) + 30
    for keep_ties in (False, True):
        found = scaled_logits(logits.to(device), batch.row_parameters(), keep_ties).cpu().double().log_softmax(1)
        for row, one in enumerate(params):
            kept = sorted(kept_ids(logits[row].double().numpy(), one, keep_ties))
            assert (found[row] > -torch.inf).nonzero().flatten().tolist() == kept
            wanted = (logits[row, kept].double() / (float(np.float32(one.temperature)) or 1.0)).log_softmax(0)
            torch.testing.assert_close(found[row, kept], wanted, rtol=2**-23, atol=1e-7)


# ---- the CPU's kernel beside torch's operators ----


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
        given = (*columns(requests).values(), Form.LOGITS, keep_ties)
        undivided = torch.ops.ascend_sample.filter_logits(logits, *given)
        assert torch.equal(undivided, torch.where(found > -torch.inf, logits.float(), -torch.inf)), keep_ties
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


def test_top_k_keeps_by_the_logits_where_the_division_makes_some_equal() -> None:
    for dtype in DTYPES:
        logits = torch.zeros(1, 40, dtype=dtype)
        logits[0, 7], logits[0, 9] = 1e-7, 2e-7  # (logit - 1) / 3 is the same of both
        logits[0, 3] = 1
        kept = by_operator(logits, [SamplingParams(temperature=3, top_k=2)], keep_ties=False, is_shifted=True)
        assert (kept > -torch.inf).nonzero()[:, 1].tolist() == [3, 9]


def test_nothing_is_kept_beside_infinity() -> None:
    for temperature, top_k, dtype in itertools.product((1.0, 0.5), (None, 3, 300), DTYPES):
        logits = torch.randn(1, 400).to(dtype)
        logits[0, [5, 90]] = torch.inf
        for is_shifted, wanted in ((False, torch.inf), (True, 0.0)):
            kept = by_operator(logits, [SamplingParams(temperature=temperature, top_k=top_k)], False, is_shifted)
            assert (kept > -torch.inf).nonzero()[:, 1].tolist() == [5, 90]
            assert kept[0, [5, 90]].tolist() == [wanted, wanted]


def test_any_integers_are_a_top_k() -> None:
    """Also such as do not reach the vocabulary."""
    logits = torch.randn(2, 70000)
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.int64):
        kept = filter_logits(logits, top_k=torch.tensor([3, 0]).to(dtype)) > -torch.inf
        assert kept.sum(dim=1).tolist() == [3, 70000]
    assert (filter_logits(logits, top_k=torch.tensor([-1, 2**32 + 5])) > -torch.inf).all()


def test_a_min_p_next_to_a_weight_keeps_what_is_drawn_from() -> None:
    rows = 200
    for vocab_size, temperature in itertools.product((5, 300, 2000), (1.0, 0.7, 1.7)):
        generator = torch.Generator().manual_seed(vocab_size)
        logits = 2 * torch.randn(rows, vocab_size, generator=generator)
        weights = ((logits - logits.amax(1, keepdim=True)) / temperature).double().exp().float()
        one = weights.gather(1, torch.randint(vocab_size, (rows, 1), generator=generator)).squeeze(1)
        ulps = torch.randint(-3, 4, (rows,), generator=generator, dtype=torch.int32)
        min_p = (one.view(torch.int32) + ulps).view(torch.float32).clamp(max=0.999)
        batch = SamplingBatch(vocab_size)
        asked: dict[str, Any] = {"temperature": temperature, "return_sampling_mask": True}
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
    {"logit_bias": {3: 4.0, 40: -2.0}, "suppress_token_ids": [7]},
    {"allowed_token_ids": list(range(2, 90, 3))},
    {"typical_p": 0.8},
    {"top_a": 0.1, "presence_penalty": 1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 0.0},
    {"epsilon_cutoff": 0.01, "allowed_token_ids": list(range(50)), "logit_bias": {9: 1.0}},
    {},
]
FILTERS: list[dict[str, Any]] = [{}, {"top_k": 12, "top_p": 0.9}, {"top_p": 0.8}, {"min_p": 0.02}]


@pytest.mark.parametrize("more", FILTERS, ids=str)
def test_edits_come_first(more: dict[str, Any]) -> None:
    """They are those of the draw; a NaN and a -inf that are there stay what they are."""
    requests = [SamplingParams(seed=row, **({"temperature": 0.7} | more | kind)) for row, kind in enumerate(EDITED)] * 3
    batch = SamplingBatch(vocab_size=300)
    batch.extend(requests, output_ids=[[row, row + 1, row, 299] for row in range(len(requests))])
    words = torch.randint(-(2**31), 2**31, (len(requests), 10), dtype=torch.int32)
    mask = Bitmask(words, RowSet.all(len(words)))
    for dtype, form in itertools.product(DTYPES, (Form.DIVIDED, Form.SHIFTED)):
        logits = (torch.randn(len(requests), 300, generator=torch.Generator().manual_seed(4)) * 3).to(dtype)
        logits[:9, 11], logits[9:, 12] = torch.nan, -torch.inf
        edits, edited = batch.native_edits(mask), batch.edited(logits, mask)
        assert edited is not None
        given = (*columns(requests).values(), form)
        found = torch.ops.ascend_sample.filter_logits(logits, *given, **edits)
        assert torch.equal(found, torch.ops.ascend_sample.filter_logits(edited, *given))
        assert not torch.equal(found, torch.ops.ascend_sample.filter_logits(logits, *given))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"logits": torch.zeros(3)}, ValueError, r"logits must have shape \[rows, vocab_size\]"),
    ({"logits": [1.0]}, TypeError, "logits must be a torch.Tensor, got list"),
    ({"temperature": 0.7}, TypeError, "temperature must be a tensor of torch.float32, got float"),
    ({"top_p": torch.ones(2).double()}, TypeError, "top_p must be a tensor of torch.float32, got torch.float64"),
    ({"top_k": torch.ones(2)}, TypeError, "top_k must be a tensor of torch.int32, got torch.float32"),
    ({"min_p": torch.zeros(3)}, ValueError, "min_p must have one value for each of the 2 rows"),
    ({"keep_ties": 1}, TypeError, "keep_ties must be True or False, got int 1"),
    ({"temperature": torch.tensor([1.0, -1.0])}, ValueError, "temperature must be at least 0, got -1.0 in row 1"),
    ({"top_p": torch.tensor([1.0, torch.nan])}, ValueError, r"top_p must lie in \(0, 1\], got nan in row 1"),
    ({"min_p": torch.tensor([1.5, 1.0])}, ValueError, r"min_p must lie in \[0, 1\], got 1.5 in row 0"),
]


def test_errors_name_what_was_given() -> None:
    for changed, error, message in WRONG:
        with pytest.raises(error, match=f"^filter_logits: {message}"):
            filter_logits(**{"logits": torch.zeros(2, 5), **changed})


PROGRAM = """
import hashlib, torch
from test_filters import DTYPES, REQUESTS, columns, make_logits
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.edits.value_ranges import RangeNumbers

torch.set_num_threads(1)
digest = hashlib.sha256()
def note(tensors):
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
numbers = torch.arange(-500, 500) * 1234567890123457
note([exponential_noise(numbers, numbers.flip(0), 333)])
operators, filters = torch.ops.ascend_sample, columns(REQUESTS).values()
kinds = ({"top_k": 50, "top_p": 0.9}, {"top_k": 299}, {"top_p": 0.9}, {"temperature": 0.7}, {"min_p": 0.1})
ranges = ({"typical_p": 0.5}, {"epsilon_cutoff": 1e-3}, {"eta_cutoff": 2e-3}, {"top_a": 0.2}, {"top_n_sigma": 1.5})
for dtype in DTYPES:
    for vocab_size in (17, 300, 5000):
        logits = make_logits(vocab_size, dtype)
        note(operators.filter_logits(logits, *filters, form, form == 3) for form in (0, 2, 3))
    for vocab_size in (300, 5000):
        logits = torch.randn(10, vocab_size, generator=torch.Generator().manual_seed(1)).mul(4).to(dtype)
        batch = SamplingBatch(vocab_size)
        batch.extend([SamplingParams(seed=1, return_sampling_mask=True, **kind) for kind in (*kinds, *ranges)])
        numbers = torch.from_numpy(RangeNumbers(batch.host, batch.row_edits.states).of_step())
        note(operators.value_ranges(logits, batch.temperature, numbers))
        note(Sampler()(logits, batch).kept)
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_the_instruction_set() -> None:
    """Of noise, filters, ranges of values and kept sets."""
    assert_same_on_all_code_paths(PROGRAM)
