"""Lets Triton's kernels run by Triton's interpreter where no driver of Triton is: with ``TRITON_INTERPRET=1``."""

from __future__ import annotations

import types
from typing import Any


def interpret_triton(device: str = "cpu") -> None:
    """Lets engines believe that Triton has a backend for a device; nothing is compiled for it."""
    import triton.experimental.gluon.language  # noqa: F401  vllm_ascend puts a stub where it has not been imported
    from triton.backends import Backend, backends
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import driver
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    class Driver:
        """What vLLM, vllm_ascend and Triton's interpreter ask of a driver."""

        utils = types.SimpleNamespace(get_device_properties=lambda number: {"num_aicore": 2, "num_vectorcore": 4})

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> GPUTarget:
            return GPUTarget(device, 0, 1)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device(device)

    backends[device] = Backend(CUDABackend, Driver)
    driver.set_active(Driver())
    own = InterpreterBuilder.create_masked_store

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, cache_policy: Any) -> Any:
        """As the interpreter's, which refuses masks that it has itself computed in integers of one bit."""
        return own(self, ptrs, value, TensorHandle(mask.data.astype(bool), mask.dtype), cache_policy)

    InterpreterBuilder.create_masked_store = create_masked_store


def admit_any_range() -> None:
    """Lets a kernel have ranges of any length, as Triton for NPUs does; Triton's own are powers of two."""
    from triton import _utils
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        kind = core.block_type(core.int32, [end - start])
        return self.make_tensor(self.builder.create_make_range(kind.to_ir(self.builder), start, end), kind)

    _utils.is_power_of_two = lambda number: True
    TritonSemantic.arange = arange
