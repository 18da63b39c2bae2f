"""torch_npu's own compiled calls of CANN's operators, as a witness of the order and the types of our arguments.

The built-in prefers aclnnTopKTopPSampleV2. For the first operator it is asked in a process whose CANN has no V2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu.operators import OPERATORS
from tests.support.isolation import run_isolated

from .batches import (
    SAMPLE_V2,
    Batch,
    aclnn_name,
    check_equal,
    check_same_bits,
    every_other,
    make_batch,
    operator_name,
    use_variant,
)
from .conftest import ROUTES

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SCENARIOS = {
    "mixed rows": (None, None),
    "top-k and top-p": (20, 0.75),
    "top-k": (20, 1.0),
    "top-p": (0, 0.75),
    "neither": (0, 1.0),
}
"""Each is run with q and without, which makes the eight scenarios, mixed and alone."""


def make_scenario(name: str, dtype: torch.dtype, with_q: bool) -> Batch:
    batch = make_batch(seed=17, dtype=dtype, with_q=with_q)
    k, p = SCENARIOS[name]
    if k is None or p is None:
        return batch
    return Batch(batch.logits, torch.full_like(batch.k, k), torch.full_like(batch.p, p), batch.q, batch.min_p)


def builtin(batch: Batch, is_need_logits: bool, **options: object) -> tuple[torch.Tensor, ...]:
    """The built-in with our arguments; min_p and what follows it only where the operator has them."""
    if operator_name() == SAMPLE_V2:
        options["min_ps"] = batch.min_p
    call = torch.ops.npu.npu_top_k_top_p_sample
    return tuple(call(batch.logits, batch.k, batch.p, batch.q, is_need_logits=is_need_logits, **options))


def check_same(batch: Batch, is_need_logits: bool, **options: object) -> None:
    """The built-in and ours, by the route and the operator that are set."""
    ids, kept = builtin(batch, is_need_logits, **options)
    ours = batch.sample(is_need_logits, **options)
    assert ours.logits_select_idx.tolist() == ids.tolist()
    if is_need_logits:
        check_same_bits(ours.logits_top_kp_select, kept)
    else:
        assert ours.logits_top_kp_select is None


def check_scenarios(dtypes: Sequence[torch.dtype]) -> int:
    """Every scenario, with q and without, mixed and alone; returns how many."""
    cases = list(itertools.product(SCENARIOS, dtypes, (False, True), (False, True)))
    for scenario, dtype, with_q, is_need_logits in cases:
        check_same(make_scenario(scenario, dtype, with_q).to("npu"), is_need_logits)
    return len(cases)


def check_options() -> None:
    """With small noise, eps decides the draw."""
    batch = make_batch(seed=23, vocab_size=4000)
    batch = Batch(batch.logits, batch.k, batch.p, batch.q * 1e-3, batch.min_p).to("npu")
    for eps, top_k_guess in itertools.product((1e-8, 1e-3, 0.5), (1, 32, 5000)):
        check_same(batch, True, eps=eps, top_k_guess=top_k_guess)


def check_every_other_element() -> None:
    """The built-in hands k on as it is, so the operator itself must follow its strides."""
    host = make_batch(seed=29)
    expected = host.expected()
    batch = host.to("npu").each(every_other)
    assert not batch.k.is_contiguous()
    ids, kept = builtin(batch, True)
    assert ids.tolist() == expected.logits_select_idx.tolist()
    check_same_bits(kept, expected.logits_top_kp_select)
    check_equal(batch.sample(), expected)


def check_same_symbol() -> None:
    batch = make_batch().to("npu")
    with hostcann.profile() as counted:
        builtin(batch, True)
        batch.sample()
    assert counted.launches[aclnn_name()] == 2


def check_everything(dtypes: int) -> int:
    """By each binding, with the first so many dtypes; returns how many scenarios."""
    checked = 0
    for route in ROUTES:
        with ascend_sample.use_backend(route):
            checked += check_scenarios(DTYPES[:dtypes])
            check_options()
            check_every_other_element()
            check_same_symbol()
    return checked


def test_first_operator(emulated: None) -> None:
    hidden = (OPERATORS[SAMPLE_V2].phase_1, OPERATORS[SAMPLE_V2].phase_2)
    finished = run_isolated(check_everything, 2, without=hidden)
    finished.check_clean()
    assert finished.result == len(ROUTES) * len(SCENARIOS) * 2 * 4


def test_second_operator(emulated: None) -> None:
    """The rows have a min-p of their own each."""
    with use_variant(SAMPLE_V2):
        assert check_everything(3) == len(ROUTES) * len(SCENARIOS) * 3 * 4


@pytest.fixture(params=ROUTES)
def second_operator(npu: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """The second operator by each binding in turn."""
    with ascend_sample.use_backend(request.param), use_variant(SAMPLE_V2):
        yield


def test_probabilities(second_operator: None) -> None:
    for dtype, with_q, ks_max in itertools.product(DTYPES, (False, True), (1, 9, 1000)):
        batch = make_batch(seed=31, dtype=dtype, with_q=with_q)
        probabilities = torch.softmax(batch.logits.float(), dim=1).to(dtype)
        batch = Batch(probabilities, batch.k, batch.p, batch.q, batch.min_p).to("npu")
        options = {"input_is_logits": False, "ks_max": ks_max}
        check_same(batch, True, **options)
        check_equal(batch.sample(**options), batch.expected(**options))


def test_without_min_p(second_operator: None) -> None:
    batch = make_batch(seed=37)
    check_same(Batch(batch.logits, batch.k, batch.p, batch.q).to("npu"), True)


def test_ks_max(second_operator: None) -> None:
    """Of k = 40, which is honoured where ks_max, rounded up to a multiple of 8, is no less."""
    batch = make_batch(seed=41)
    batch = Batch(batch.logits, torch.full_like(batch.k, 40), torch.ones_like(batch.p), batch.q).to("npu")
    for ks_max, kept in ((9, 1500), (33, 40), (1024, 40)):
        check_same(batch, True, ks_max=ks_max)
        select = batch.sample(ks_max=ks_max).logits_top_kp_select
        assert (select > -torch.inf).sum(dim=1).tolist() == [kept] * 8


def test_multinomial(second_operator: None) -> None:
    """It asks for a sample result beside ids of [batch, 1], which CANN does not look at then, and draws from it."""
    for dtype in DTYPES:
        batch = make_batch(seed=43, dtype=dtype, with_q=False).to("npu")
        drawn, kept = builtin(batch, True, post_sample="multiNomial", generator=generator_of(5))
        ours = batch.sample(is_need_sample_result=True)
        check_same_bits(ours.logits_top_kp_select, kept)
        places = torch.multinomial(ours.logits_sort_masked, 1, replacement=True, generator=generator_of(5))
        assert drawn.tolist() == ours.logits_idx.gather(1, places).squeeze(1).tolist()


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator("npu").manual_seed(seed)
