"""What a parity report says about the machine: hardware is named only where hardware was used."""

from __future__ import annotations

from typing import Final

import torch

from ascend_sample import info
from ascend_sample._environment import is_emulated
from ascend_sample.backend import Route, which_backend
from ascend_sample.npu.operators import OPERATORS

NO_NPU = (
    "no NPU can be used: torch_npu is not installed, or finds no CANN or device. Install them (python -m ascend_sample "
    "info says what is missing), or emulate CANN: hostcann run python -m ascend_sample {} "
    "--device npu"
)
EMULATED: Final = (
    "EMULATED: this NPU is hostcann on the CPU. Its times are the cost of an emulation and say nothing about any "
    "hardware."
)


def has_npu() -> bool:
    """Tells whether torch has an NPU that can be used."""
    return hasattr(torch, "npu") and bool(torch.npu.is_available())


def default_device() -> str:
    """Returns "npu" where there is one, else "cpu"."""
    return "npu" if has_npu() else "cpu"


def obstacle_of(device: str, command: str) -> str | None:
    """Returns why a command cannot use a device here, and what to do; None where it can.

    Args:
        device: as in ``--device``.
        command: which of the package's commands is to use it.
    """
    try:
        torch.ops.ascend_sample.cpu_capability()  # of the kernel that all commands use
    except ValueError as error:
        return f"{command}: {error}"
    if device.partition(":")[0] == "npu" and not has_npu():
        return f"{command}: {NO_NPU.format(command)}"
    try:
        torch.zeros(1, device=device).cpu()  # those that hold no values, as meta, do not get so far
    except (RuntimeError, AssertionError, ImportError) as error:  # each device has its own
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".!")
        says = f"--device must be one that torch can use here, got {device}: {reason}"
        return f"{command}: {says}. Try --device cpu."
    return None


def obstacle_of_routes(device: str, operator: str, dtypes: tuple[torch.dtype, ...], command: str) -> str | None:
    """Returns why the backend that is forced cannot serve logits of one of the dtypes, and what to do, or None."""
    try:
        find_routes(device, operator, dtypes)
    except (RuntimeError, ValueError) as error:
        return f"{command}: {error}"
    return None


def is_emulated_npu(device: str) -> bool:
    """Tells whether the device is an NPU behind an emulated CANN."""
    return device.partition(":")[0] == "npu" and is_emulated()


def is_real_npu(device: str) -> bool:
    """Tells whether the device is an NPU, and none behind an emulated CANN."""
    return device == "npu" and not is_emulated()


def find_routes(device: str, operator: str, dtypes: tuple[torch.dtype, ...]) -> dict[str, Route]:
    """Tells which implementation serves logits of each dtype on a device, by the dtypes' names."""
    return {
        str(dtype).removeprefix("torch."): which_backend(torch.empty(0, dtype=dtype, device=device), operator)
        for dtype in dtypes
    }


def describe_environment(device: str, operator: str, routes: dict[str, Route]) -> dict[str, str]:
    """Describes what is tested, by which software, on what.

    Args:
        device: "cpu", "npu", or another that torch can use.
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
    if device == "npu":
        environment["torch_npu"] = str(versions["torch_npu"])
        environment["CANN"] = _describe_cann(str(facts["npu"]["CANN"]))
        environment["SoC"] = _describe_soc(device, str(facts["npu"]["SoC"]))
        # Which of the operators the machine has, and where.
        environment |= {symbol.name: str(facts["npu"][symbol.name]) for symbol in OPERATORS.values()}
    environment |= {f"route {dtype}": f"{route.backend} ({route.reason})" for dtype, route in routes.items()}
    environment["compared with"] = f"{operator}_reference on the CPU"
    return environment


def _describe_device(device: str) -> str:
    if device == "cpu":
        return "cpu"
    if device != "npu":
        name = getattr(torch.get_device_module(device), "get_device_name", lambda _: "unnamed")(0)
        return f"{device}:0, {name}: no NPU"
    if is_real_npu(device):
        return f"{device}:0, a real NPU"
    return f"{device}:0, EMULATED by hostcann on the CPU: this run says nothing about hardware"


def _describe_cann(kind: str) -> str:
    from torch_npu.npu.utils import get_cann_version

    return f"{get_cann_version() or 'unknown version'} ({kind})"


def _describe_soc(device: str, name: str) -> str:
    return name if is_real_npu(device) else f"{name} (the name that hostcann gives)"
