"""Tells the compiled binding (``csrc/npu``) what this package knows about CANN, so that it is written down once."""

import torch

from ascend_sample.npu import _abi, libraries
from ascend_sample.npu.operators import OPERATORS


def configure() -> None:
    """Hands the operators, the libraries, the memory formats and the names of statuses to the loaded binding."""
    for name, operator in OPERATORS.items():
        torch.ops.ascend_sample.describe_aclnn_operator(
            name,
            operator.name,
            operator.supported_soc.pattern,
            operator.devices,
            list(operator.dtypes),
            operator.found_in,
            operator.takes_any_k,
            operator.checks_unwanted,
            operator.most_rows,
            operator.companion,
        )
    torch.ops.ascend_sample.configure_aclnn(
        libraries.operator_libraries(),
        libraries.RUNTIME_LIBRARY,
        list(_abi.PLAIN_FORMATS),
        list(_abi.STATUS_NAMES),
        list(_abi.STATUS_NAMES.values()),
    )
