"""Tells the compiled binding (``csrc/npu``) what this package knows about CANN, so that it is written down once."""

import torch

from ascend_sample.npu import _abi, libraries
from ascend_sample.npu.operators import OPERATORS


def configure() -> None:
    """Hands the libraries, the supported SoCs, the memory formats and the names of statuses to the loaded binding."""
    torch.ops.ascend_sample.configure_aclnn(
        libraries.operator_libraries(),
        libraries.RUNTIME_LIBRARY,
        list(OPERATORS),
        [operator.supported_soc.pattern for operator in OPERATORS.values()],
        [operator.devices for operator in OPERATORS.values()],
        [operator.found_in for operator in OPERATORS.values()],
        list(_abi.PLAIN_FORMATS),
        list(_abi.STATUS_NAMES),
        list(_abi.STATUS_NAMES.values()),
    )
