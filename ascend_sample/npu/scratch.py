"""Device memory that a call writes and nobody reads after it: a block for each stream, kept from call to call.

The compiled binding has blocks of its own, by the same rules (``csrc/npu/scratch.h``): the stream orders the calls that
share its block; a block grows when a call needs more; a call that is being captured gets memory of its own, from the
graph's pool, because a replay may run beside calls on this stream.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Scratch:
    """Memory for one call.

    Attributes:
        memory: uint8, at least as many as asked for. To be held until the call is on its stream.
        order: to be entered while the call's operators are put on the stream, so that no other call's come between
            them.
    """

    memory: torch.Tensor
    order: AbstractContextManager[object]


@dataclass
class _Block:
    memory: torch.Tensor | None = None
    order: threading.Lock = field(default_factory=threading.Lock)


_blocks: defaultdict[tuple[int, int, int], _Block] = defaultdict(_Block)
_lock = threading.Lock()


def take_scratch(size: int, device: torch.device) -> Scratch:
    """Returns at least `size` bytes on the current device, for a call on its current stream."""
    import torch_npu  # deferred: importing this module must not need it

    npu = torch_npu.npu
    if npu.is_current_stream_capturing():
        return Scratch(torch.empty(size, dtype=torch.uint8, device=device), nullcontext())
    stream = npu.current_stream()
    with _lock:
        block = _blocks[stream.stream_id, stream.device_index, stream.device_type]
        if block.memory is None or block.memory.numel() < size:
            block.memory = None  # first: the allocator may then make the new one of it
            block.memory = _allocated_outside_pools(size, device, stream)
        return Scratch(block.memory, block.order)


def _allocated_outside_pools(size: int, device: torch.device, stream: torch.Stream) -> torch.Tensor:
    """Allocates a block that belongs to no pool of this thread's, a graph's or its caller's.

    It would be kept when that is gone. The allocator chooses pools by thread.

    Args:
        size: of the block, in bytes.
        device: where.
        stream: that the block is for.
    """
    import torch_npu  # deferred, as above

    def allocate() -> torch.Tensor:
        torch_npu.npu.set_device(device)  # of this thread: the stream's manager would begin to use device 0
        with torch_npu.npu.stream(stream):
            return torch.empty(size, dtype=torch.uint8, device=device)

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(allocate).result()


def release() -> None:
    """Gives the blocks of all streams, and the compiled binding's, back to the allocator.

    Example:
        >>> from ascend_sample.npu import scratch
        >>> scratch.release()
        >>> torch.npu.empty_cache()  # doctest: +SKIP
    """
    with _lock:
        _blocks.clear()
    if hasattr(torch.ops.ascend_sample, "release_npu_scratch"):
        torch.ops.ascend_sample.release_npu_scratch()
