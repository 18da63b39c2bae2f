"""Puts the emulated NPU in place, and what engines import beside torch_npu: to be imported before torch.

torchair compiles graphs for NPUs, and comes with CANN; SGLang's kernels for them are on no index. A sampler asks for
none of that.
"""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import hostcann

PATCH = "torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce"
KERNELS = ("norm.gemma_rmsnorm", "norm.add_rmsnorm_bias", "kvcacheio", "sample")
NPU = "npu:0"

hostcann.activate()
for _name in ("torchair.configs.compiler_config", PATCH, "custom_ops", *map("sgl_kernel_npu.{}".format, KERNELS)):
    while _name:
        sys.modules[_name] = MagicMock()
        _name = _name.rpartition(".")[0]
