"""What the composite adds on a device that has no float64: as good as the CPU kernel's sums, in rows of any length."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import ascend_sample

pytestmark = pytest.mark.usefixtures("emulated")
LONGEST = 2**20


@pytest.mark.parametrize("operator", ["top_k_top_p_sample", "top_k_top_p_sample_v2"])
def test_as_many_are_kept_of_a_million_near_equals_as_on_the_cpu(operator: str) -> None:
    logits = torch.randint(-2, 3, (2, LONGEST), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    p = torch.tensor([0.99609375, 0.3], dtype=torch.bfloat16)
    counts = []
    for device in ("cpu", "npu"):
        with ascend_sample.use_backend("composite" if device == "npu" else None):
            kept = getattr(ascend_sample, operator)(logits.to(device), p=p.to(device), is_need_logits=True)
        counts.append((kept.logits_top_kp_select.cpu() > -torch.inf).sum(dim=1))
    assert (counts[1] - counts[0]).abs().max() <= LONGEST * 1e-6, counts


@pytest.mark.parametrize("k", [-1, 50])
def test_weights_of_a_language_models_row_are_those_of_float64(k: int) -> None:
    logits = torch.randn(4, 151936, generator=torch.Generator().manual_seed(2)) * 3
    with ascend_sample.use_backend("composite"):
        result = ascend_sample.top_k_top_p_sample_v2(logits.npu(), k=k, p=0.1, is_need_sample_result=True)
    ranked = logits.double().sort(dim=1, descending=True).values
    weights = ranked[:, :k].softmax(dim=1) if k > 0 else ranked.softmax(dim=1)
    assert torch.allclose(result.logits_sort_masked[:, 0].cpu().double(), weights[:, 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("operator", ["top_k_top_p_sample", "top_k_top_p_sample_v2"])
def test_sums_are_of_integers(operator: str) -> None:
    """The emulation adds float32 in float64, as torch does on the host: numbers hide what a device would lose."""
    logits = torch.zeros(1, 2000).npu().to(torch.bfloat16)
    p = torch.full((1,), 0.5, dtype=torch.bfloat16).npu()
    with ascend_sample.use_backend("composite"), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        getattr(ascend_sample, operator)(logits, p=p)
    events = seen.profiler.kineto_results.events()
    assert [event.dtypes()[0] for event in events if event.name() == "aten::cumsum"] == ["long int"]


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("operator", ["top_k_top_p_sample", "top_k_top_p_sample_v2"])
def test_ids_keep_no_row_alive(operator: str, batch_size: int) -> None:
    logits = torch.randn(batch_size, 2000).npu()
    with ascend_sample.use_backend("composite"):
        ids = getattr(ascend_sample, operator)(logits).logits_select_idx
    assert (ids.stride(), ids.untyped_storage().nbytes()) == ((1,), 8 * batch_size)
