"""The composite on a device that has no float64: its sums are of integers, and its ids hold no row."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import ascend_sample

pytestmark = pytest.mark.usefixtures("emulated")


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
