"""torch_npu's own `npu_top_k_top_p_sample` beside our binding: both call the same symbol of CANN.

The built-in's call was compiled by torch_npu against CANN's headers, so equal results prove our parameter order, dtypes
and strides.
"""

from __future__ import annotations

import pytest
import torch

import ascend_sample
from ascend_sample.parity import verify
from ascend_sample.parity.cases import SCENARIOS, stream
from ascend_sample.parity.environment import is_real_device

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _same_symbol(npu: str) -> None:
    if is_real_device(npu):
        pytest.skip("a real CANN may have aclnnTopKTopPSampleV2, which the built-in prefers: another operator")


def built_in(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The built-in with our arguments; it returns its second output even where it was not written."""
    ids, select = torch.ops.npu.npu_top_k_top_p_sample(logits, k, p, q, eps, is_need_logits, top_k_guess)
    return ids, select if is_need_logits else None


def test_identical_results_in_all_scenarios(npu: str) -> None:
    seen = set()
    for batch in stream(7, 1300, DTYPES):
        seen.update(batch.scenarios())
        q = None if batch.q is None else batch.q.view(npu)
        inputs = (batch.logits.view(npu), batch.k.view(npu), batch.p.view(npu), q)
        options = (batch.eps, batch.is_need_logits, batch.top_k_guess)
        theirs = built_in(*inputs, *options)
        with ascend_sample.use_backend("aclnn"):
            ours = ascend_sample.top_k_top_p_sample(*inputs, *options)
        assert torch.equal(ours.logits_select_idx.cpu(), theirs[0].cpu()), batch.describe(0)
        if ours.logits_top_kp_select is not None:
            assert theirs[1] is not None
            assert theirs[1].dtype == torch.float32
            assert torch.equal(ours.logits_top_kp_select.cpu().view(torch.int32), theirs[1].cpu().view(torch.int32)), (
                batch.describe(0)
            )
    assert seen == set(SCENARIOS)


def test_built_in_passes_the_same_verification(npu: str) -> None:
    assert verify(npu, 600, operator=built_in).problems() == []
