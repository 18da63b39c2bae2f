"""torch_npu's own compiled call of aclnnTopKTopPSample, as a witness of the order and the types of our arguments."""

from __future__ import annotations

import pytest
import torch

from ascend_sample import hostcann

from .batches import Batch, check_equal, check_same_bits, make_batch

DTYPES = (torch.float16, torch.bfloat16)
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
    return Batch(batch.logits, torch.full_like(batch.k, k), torch.full_like(batch.p, p), batch.q)


def builtin(batch: Batch, is_need_logits: bool, eps: float = 1e-8, top_k_guess: int = 32) -> tuple[torch.Tensor, ...]:
    sample = torch.ops.npu.npu_top_k_top_p_sample
    return tuple(
        sample(batch.logits, batch.k, batch.p, batch.q, eps=eps, is_need_logits=is_need_logits, top_k_guess=top_k_guess)
    )


@pytest.mark.parametrize("is_need_logits", [False, True])
@pytest.mark.parametrize("with_q", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_ids_and_logits(route: str, scenario: str, dtype: torch.dtype, with_q: bool, is_need_logits: bool) -> None:
    batch = make_scenario(scenario, dtype, with_q).to("npu")
    ids, kept = builtin(batch, is_need_logits)
    ours = batch.sample(is_need_logits)
    assert ours.logits_select_idx.tolist() == ids.tolist()
    if is_need_logits:
        check_same_bits(ours.logits_top_kp_select, kept)
    else:
        assert ours.logits_top_kp_select is None


@pytest.mark.parametrize("eps", [1e-8, 1e-3, 0.5])
@pytest.mark.parametrize("top_k_guess", [1, 32, 5000])
def test_options_arrive(npu: str, eps: float, top_k_guess: int) -> None:
    """With small noise, eps decides the draw."""
    batch = make_batch(seed=23, vocab_size=4000)
    assert batch.q is not None
    batch = Batch(batch.logits, batch.k, batch.p, batch.q * 1e-3).to("npu")
    ids, kept = builtin(batch, True, eps, top_k_guess)
    ours = torch.ops.ascend_sample.top_k_top_p_sample(batch.logits, batch.k, batch.p, batch.q, eps, True, top_k_guess)
    assert ours[0].tolist() == ids.tolist()
    check_same_bits(ours[1], kept)


def test_every_other_element(route: str) -> None:
    """The built-in hands k on as it is, so the operator itself must follow its strides."""
    host = make_batch(seed=29)
    expected = host.expected()
    batch = host.to("npu")

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
        wide[..., ::2] = tensor
        return wide[..., ::2]

    assert batch.q is not None
    batch = Batch(spread(batch.logits), spread(batch.k), spread(batch.p), spread(batch.q))
    assert not batch.k.is_contiguous()
    ids, kept = builtin(batch, True)
    assert ids.tolist() == expected.logits_select_idx.tolist()
    check_same_bits(kept, expected.logits_top_kp_select)
    check_equal(batch.sample(), expected)


def test_both_call_the_same_operator(route: str, emulated: None) -> None:
    batch = make_batch().to("npu")
    hostcann.reset_counters()
    builtin(batch, True)
    batch.sample()
    torch.npu.synchronize()
    assert hostcann.counters().launches["aclnnTopKTopPSample"] == 2
