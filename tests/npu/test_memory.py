"""Device memory of a call, lifetimes, layouts that CANN must be told of, and inputs that must never reach it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import hostcann
from ascend_sample.npu import scratch

from .batches import SAMPLE_V2, Batch, aclnn_name, check_equal, every_other, make_batch, operator_name, sample


def requested() -> int:
    """Bytes of the tensors alive, as they were asked for: blocks are larger where other tests have left fragments."""
    torch.npu.synchronize()
    return int(torch.npu.memory_stats()["requested_bytes.all.current"])


# ---- how much ----


@pytest.mark.usefixtures("uncollected")
def test_only_results_are_held(route: str) -> None:
    batch = make_batch(vocab_size=20000).to("npu")
    batch.sample(is_need_logits=False)
    before = requested()
    result = batch.sample(is_need_logits=False)
    assert requested() - before == sum(batch.result_sizes(is_need_logits=False))
    assert result.logits_top_kp_select is None
    del result
    result = batch.sample(is_need_logits=True)
    assert requested() - before == sum(batch.result_sizes())
    del result
    assert requested() == before


def requested_by(action: Callable[[], object]) -> tuple[int, int]:
    """How many blocks an action asks the allocator for, and how many bytes, whether they are given back or not."""
    names = ("allocation.all.allocated", "requested_bytes.all.allocated")
    torch.npu.synchronize()
    before = torch.npu.memory_stats()
    action()
    torch.npu.synchronize()
    after = torch.npu.memory_stats()
    blocks, size = (int(after[name]) - int(before[name]) for name in names)
    return blocks, size


def workspace_of(batch: Batch) -> int:
    """What CANN asks for here, with its system part; nothing of that is ours."""
    return 24 * batch.logits.numel() + (16 << 20)


def test_nothing_is_allocated_beyond_workspace_and_wanted_results(route: str, emulated: None) -> None:
    """After the first call. The block for what nobody wants is kept, and serves every later call of the stream."""
    batch = make_batch(batch_size=16, vocab_size=30000).to("npu")
    with hostcann.null_kernels():
        batch.sample(is_need_logits=False)
        for is_need_logits in (False, False, True):
            needed = [workspace_of(batch), *batch.result_sizes(is_need_logits)]
            assert requested_by(functools.partial(batch.sample, is_need_logits)) == (len(needed), sum(needed))


@pytest.mark.usefixtures("uncollected")
def test_the_kept_block_holds_what_cann_insists_on(route: str, emulated: None) -> None:
    """The valid k, and the first operator's unwanted logits. It is given back on request, and grows with the largest
    call."""
    batch = make_batch(batch_size=512, vocab_size=2000).to("npu")
    smaller = make_batch(batch_size=4, vocab_size=1000).to("npu")
    unwanted = 8 if operator_name() == SAMPLE_V2 else 4 * batch.logits.numel()
    scratch.release()
    before = requested()
    with hostcann.null_kernels():
        for first, second in ((batch, smaller), (smaller, batch)):
            for each in (first, second):
                each.sample(is_need_logits=False)
            assert requested() - before == unwanted + 4 * 512
            scratch.release()
            assert requested() == before


@pytest.mark.usefixtures("uncollected")
def test_each_stream_has_a_block(route: str, emulated: None) -> None:
    batch = make_batch().to("npu")
    side = torch.npu.Stream()
    scratch.release()
    before = requested()
    with hostcann.null_kernels():
        for _ in range(2):
            batch.sample(is_need_logits=False)
        one = requested() - before
        assert one > 0
        with torch.npu.stream(side):
            for _ in range(2):
                batch.sample(is_need_logits=False)
        assert requested() - before == 2 * one


# ---- layouts ----


def behind_an_offset(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at an address that is no multiple of 32."""
    flat = tensor.new_zeros(tensor.numel() + 3)
    flat[3:] = tensor.flatten()
    return flat[3:].view(tensor.shape)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


def test_layouts(route: str, subtests: pytest.Subtests) -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for dtype, layout in itertools.product(dtypes, (transposed, every_other, behind_an_offset)):
        with subtests.test(layout=layout.__name__, dtype=dtype):
            host = make_batch(dtype=dtype)
            batch = host.to("npu").each(layout)
            assert batch.logits.storage_offset() == 3 or not batch.logits.is_contiguous()
            if dtype == torch.float32 and operator_name() != SAMPLE_V2:
                with pytest.raises(RuntimeError, match="takes float16 and bfloat16"):
                    batch.sample()
            else:
                check_equal(batch.sample(), host.expected())
    with subtests.test(layout="rows that are one in memory"):
        host = make_batch(batch_size=2).each(lambda tensor: tensor[1:])
        batch = host.to("npu").each(lambda tensor: tensor.expand(6, *tensor.shape[1:]))
        check_equal(batch.sample(), host.each(lambda tensor: tensor.repeat(6, *[1] * (tensor.dim() - 1))).expected())


def test_single_entry_and_empty_batch(route: str, emulated: None) -> None:
    batch = make_batch(vocab_size=1).to("npu")
    assert batch.sample().logits_select_idx.tolist() == [0] * 8
    with hostcann.profile() as counted:
        result = batch.each(lambda tensor: tensor[:0]).sample()
    assert result.logits_select_idx.shape == (0,)
    assert result.logits_top_kp_select.shape == (0, 1)
    assert aclnn_name() not in counted.launches


# ---- what must not reach CANN ----


def test_misaligned_storage(route: str, emulated: None) -> None:
    """DLPack presents a slice as a storage of its own, at an address that CANN cannot use."""
    batch = make_batch(batch_size=1).to("npu")
    wide = torch.cat([batch.logits, batch.logits], dim=1)
    slice_of_wide = torch.from_dlpack(wide[:, 1:1501])
    assert slice_of_wide.storage_offset() == 0
    must = f"{operator_name()}: logits must have a storage address that is a multiple of 32, got 0x"
    with hostcann.profile() as counted, pytest.raises(ValueError, match=f"^{must}"):
        Batch(slice_of_wide, batch.k, batch.p, batch.q).sample()
    assert aclnn_name() not in counted.launches
    assert hostcann.violations() == []
    view = Batch(wide[:, 1:1501], batch.k, batch.p, batch.q)
    check_equal(view.sample(), view.expected())


@pytest.mark.usefixtures("uncollected")
def test_too_many_logits(route: str, emulated: None) -> None:
    """5 numbers for each overflow 32 bits inside CANN. They are rejected; one row less is only more than the memory."""
    logits = torch.zeros(1, 1 << 20, dtype=torch.float16, device="npu").expand(820, 1 << 20)
    must = rf"{operator_name()}: logits must have at most 858993459 elements on an NPU, got .* Split the batch"
    with hostcann.profile() as counted:
        with pytest.raises(ValueError, match=must):
            sample(logits, 5, 0.5)
        scratch.release()
        k, p = (torch.full((819,), value, device="npu") for value in (5, 0.5))  # their block has room for ids
        before = requested()
        torch.npu.empty_cache()
        hostcann.inject("malloc", count=1000)  # the emulated memory has room for most of it, and would fill that
        with pytest.raises(torch.OutOfMemoryError):
            sample(logits[1:], k, p)
    hostcann.clear_faults()
    scratch.release()
    assert aclnn_name() not in counted.launches
    assert requested() == before


def test_too_many_rows(route: str) -> None:
    """The kernel of the first operator has room for 128 rows on each of at least 40 cores, and does not look."""
    logits = torch.zeros(1, 8, dtype=torch.float16, device="npu").expand(5121, 8)
    if operator_name() == SAMPLE_V2:
        assert len(sample(logits, 5, 0.5).logits_select_idx) == 5121
    else:
        must = rf"{operator_name()}: logits must have at most 5120 rows on an NPU, got \[5121, 8\].* Split the batch"
        with pytest.raises(ValueError, match=must):
            sample(logits, 5, 0.5)
    assert sample(logits[1:], 5, 0.5).logits_select_idx.tolist() == [0] * 5120


def test_memory_that_torch_wraps(route: str) -> None:
    """By at::from_blob, as torch's reader of DLPack does: torch_npu, which has another one, keeps no format of it."""
    import torch_npu

    batch = make_batch().to("npu")
    wrapped = torch._C._from_dlpack(torch._C._to_dlpack(batch.logits))
    with pytest.raises(RuntimeError, match="requires a real NPU tensor"):
        torch_npu.get_npu_format(wrapped)
    check_equal(replace(batch, logits=wrapped).sample(), batch.expected())


def test_blocked_memory_format(route: str) -> None:
    """Formats of matrix units are not rows of logits."""
    import torch_npu

    fractal_nz = 29
    torch.npu.config.allow_internal_format = True
    try:
        logits = torch_npu.empty_with_format((16, 256), dtype=torch.float16, device="npu", acl_format=fractal_nz)
    finally:
        torch.npu.config.allow_internal_format = False  # as it is by default
    assert torch_npu.get_npu_format(logits) == fractal_nz
    with pytest.raises(ValueError, match=r"logits must have a plain memory format.*npu_format_cast\(logits, 2\) first"):
        sample(logits, 5, 0.5)
