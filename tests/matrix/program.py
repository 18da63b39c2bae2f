"""What a user of torch_npu starts first: a tensor that goes to the device, and the operator there."""

from __future__ import annotations

import torch
import torch_npu

from ascend_sample import top_k_top_p_sample, which_backend

assert torch.arange(6.0).npu().mul(2).cpu().tolist() == [0, 2, 4, 6, 8, 10]
logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
q = torch.empty(64, 1000).exponential_(generator=torch.Generator().manual_seed(1))
assert which_backend(logits.npu()).backend == "aclnn", which_backend(logits.npu())
on_the_device = top_k_top_p_sample(logits.npu(), 50, 0.9, q.npu()).logits_select_idx.cpu()
assert torch.equal(on_the_device, top_k_top_p_sample(logits, 50, 0.9, q).logits_select_idx)
print(torch.__version__, torch_npu.__version__)
