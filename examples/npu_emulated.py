"""The same call on the CPU and on npu:0, where the NPU is emulated: no Ascend hardware, no CANN.

python examples/npu_emulated.py

The real torch_npu runs, with its streams, task queue and caching allocator. What it takes for CANN is hostcann, which
computes on this machine's CPU: results mean something, times do not.
"""

import ascend_sample
import hostcann

hostcann.activate()  # before torch_npu is imported; refuses on a machine that has a real CANN

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401  registers the device "npu"

BATCH_SIZE, VOCAB_SIZE = 8, 32000

generator = torch.Generator().manual_seed(0)
logits = torch.randn(BATCH_SIZE, VOCAB_SIZE, generator=generator).mul(3).to(torch.bfloat16)
q = torch.empty(BATCH_SIZE, VOCAB_SIZE).exponential_(generator=generator)
k = torch.tensor([1, 5, 50, 1024, 0, 0, 0, 50])
p = torch.tensor([1.0, 0.5, 0.9, 0.99, 0.9, 0.3, 1.0, 1.0])

results = {}
for device in ("cpu", "npu:0"):
    moved = [tensor.to(device) for tensor in (logits, k, p, q)]
    with hostcann.profile() as counted:
        results[device] = ascend_sample.top_k_top_p_sample(*moved, is_need_logits=True)
    backend, reason = ascend_sample.which_backend(moved[0])
    print(f"{device:<6} ids {results[device].logits_select_idx.tolist()}  by {backend}: {reason}")

assert hostcann.is_active()
print("npu:0 is EMULATED by hostcann:", torch.npu.get_device_name(0), "is only the name it reports")
same_ids = torch.equal(results["cpu"].logits_select_idx, results["npu:0"].logits_select_idx.cpu())
same_kept = torch.equal(results["cpu"].logits_top_kp_select, results["npu:0"].logits_top_kp_select.cpu())
print(f"the same ids: {same_ids}; the same kept logits, bit for bit: {same_kept}")
assert same_ids, "the device must draw the CPU's ids"
assert same_kept, "the device must keep the CPU's logits"
print("kernels launched:", counted.launches.get("aclnnTopKTopPSample", 0), "x aclnnTopKTopPSample")
