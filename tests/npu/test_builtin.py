"""torch_npu's own compiled calls of CANN's operators, as a witness of the order and the types of our arguments.

The built-in prefers aclnnTopKTopPSampleV2. For the first operator it is asked in a process whose CANN has no V2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS
from tests.support.isolation import run_isolated

from .batches import (
    SAMPLE_V2,
    Batch,
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


def check_everything(dtypes: int) -> int:
    """By each binding, with the first so many dtypes; returns how many scenarios."""
    checked = 0
    for route in ROUTES:
        with ascend_sample.use_backend(route):
            checked += check_scenarios(DTYPES[:dtypes])
            check_every_other_element()
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


@pytest.mark.parametrize("route", ROUTES)
def test_what_the_second_operator_adds(npu: str, route: str) -> None:
    """Probabilities, and ks_max: k = 40 is honoured where that, rounded up to a multiple of 8, is no less."""
    with ascend_sample.use_backend(route), use_variant(SAMPLE_V2):
        for dtype, with_q, ks_max in itertools.product(DTYPES, (False, True), (9, 1000)):
            batch = make_batch(seed=31, dtype=dtype, with_q=with_q)
            batch = replace(batch, logits=batch.logits.float().softmax(dim=1).to(dtype)).to(npu)
            options = {"input_is_logits": False, "ks_max": ks_max}
            check_same(batch, True, **options)
            check_equal(batch.sample(**options), batch.expected(**options))
        batch = make_batch(seed=41)
        batch = Batch(batch.logits, torch.full_like(batch.k, 40), torch.ones_like(batch.p), batch.q).to(npu)
        for ks_max, kept in ((9, 1500), (33, 40), (1024, 40)):
            check_same(batch, True, ks_max=ks_max)
            select = batch.sample(ks_max=ks_max).logits_top_kp_select
            assert (select > -torch.inf).sum(dim=1).tolist() == [kept] * 8
