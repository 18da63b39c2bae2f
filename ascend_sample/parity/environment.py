"""What a parity report says about the machine: hardware is named only where hardware was used."""

from __future__ import annotations

import torch

from ascend_sample import info
from ascend_sample.backend import Route, which_backend
from ascend_sample.npu.operators import OPERATORS


def is_real_device(device: str) -> bool:
    """Tells whether the device is hardware of its own: neither the CPU nor an NPU behind an emulated CANN."""
    if device == "cpu":
        return False
    from ascend_sample import hostcann

    return not hostcann.is_active()


def find_routes(device: str, operator: str, dtypes: tuple[torch.dtype, ...]) -> dict[str, Route]:
    """Tells which implementation serves logits of each dtype on a device, by the dtypes' names."""
    return {
        str(dtype).removeprefix("torch."): which_backend(torch.empty(0, dtype=dtype, device=device), operator)
        for dtype in dtypes
    }


def describe_environment(device: str, operator: str, routes: dict[str, Route]) -> dict[str, str]:
    """Describes what is tested, by which software, on what.

    Args:
        device: "cpu" or "npu".
        operator: the name of the function that is tested.
        routes: of the dtypes that will be tested.

    Returns:
        Labels and values, in the order of the report's header.
    """
    facts = info.collect()
    versions = facts["versions"]
    environment = {
        "operator": operator,
        "device": _describe_device(device),
        "machine": str(versions["machine"]),
        "python": str(versions["python"]),
        "ascend_sample": str(versions["ascend_sample"]),
        "torch": str(versions["torch"]),
    }
    if device != "cpu":
        environment["torch_npu"] = str(versions["torch_npu"])
        environment["CANN"] = _describe_cann(str(facts["npu"]["CANN"]))
        environment["SoC"] = _describe_soc(device, str(facts["npu"]["SoC"]))
        # Which of the two operators the machine has, and where.
        environment |= {symbol.name: str(facts["npu"][symbol.name]) for symbol in OPERATORS.values()}
    environment |= {f"route {dtype}": f"{route.backend} ({route.reason})" for dtype, route in routes.items()}
    environment["compared with"] = f"{operator}_reference on the CPU"
    return environment


def _describe_device(device: str) -> str:
    if device == "cpu":
        return "cpu"
    if is_real_device(device):
        return f"{device}:0, a real NPU"
    return f"{device}:0, EMULATED by hostcann on the CPU: this run says nothing about hardware"


def _describe_cann(kind: str) -> str:
    from torch_npu.npu.utils import get_cann_version

    return f"{get_cann_version() or 'unknown version'} ({kind})"


def _describe_soc(device: str, name: str) -> str:
    return name if is_real_device(device) else f"{name} (the name that hostcann gives)"
