"""torch_npu's own `npu_top_k_top_p_sample` beside our binding: both call aclnnTopKTopPSampleV2.

The built-in's call was compiled by torch_npu against CANN's headers, so equal results prove our parameter order, dtypes
and strides. `npu/test_builtin.py` asks it for the first operator too.
"""

from __future__ import annotations

import pytest
import torch

import ascend_sample
from ascend_sample.parity import verify
from ascend_sample.parity.environment import is_real_npu
from ascend_sample.parity.subjects import SAMPLE_V2

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def _emulated(npu: str) -> None:
    if is_real_npu(npu):
        pytest.skip("a real CANN may lack aclnnTopKTopPSampleV2: the built-in then calls another operator")


def built_in(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    *,
    is_need_logits: bool = False,
    is_need_sample_result: bool = False,
    **options: object,
) -> tuple[torch.Tensor | None, ...]:
    """The built-in with our arguments.

    It returns its second output even where it was not written, and no sample result: that is ours here.
    """
    ids, select = torch.ops.npu.npu_top_k_top_p_sample(
        logits, k, p, q, min_ps=min_p, is_need_logits=is_need_logits, **options
    )
    dense = ascend_sample.top_k_top_p_sample_v2(
        logits, k, p, None, min_p, is_need_sample_result=is_need_sample_result, **options
    )
    return ids, select if is_need_logits else None, *dense[2:]


def test_built_in_passes_the_same_verification(npu: str) -> None:
    assert verify(npu, 600, operator=built_in, subject=SAMPLE_V2).problems() == []
