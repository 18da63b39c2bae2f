"""``python -m ascend_sample info``: versions, compiled parts, the route of each device, and the engines served."""

from __future__ import annotations

import json
import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import torch

from ascend_sample import _environment, _extension, backend
from ascend_sample.integrations._installed import NOT_FOUND, engines, version_of
from ascend_sample.npu.operators import OPERATORS, SAMPLE

CAPABILITY_VARIABLE = "ASCEND_SAMPLE_CPU_CAPABILITY"


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a list")


def run(arguments: Namespace) -> int:
    """Prints what :func:`collect` finds."""
    facts = collect()
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    for section, entries in facts.items():
        print(section)
        for name, value in entries.items():
            print(f"  {name:<30}{value}")
    return 0


def collect() -> dict[str, dict[str, Any]]:
    """Collects the facts about this installation and machine, and never fails for something that is missing.

    Returns:
        Sections of names and values: "versions", "built", "cpu", "npu", "routes" and "engines".
    """
    npu = _npu_facts()
    return {
        "versions": {
            "ascend_sample": version_of("ascend_sample"),
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "torch": torch.__version__,
            "torch_npu": version_of("torch_npu"),
            "numpy": version_of("numpy"),
            "cffi": version_of("cffi"),
            "hostcann": version_of("hostcann"),
        },
        "built": {
            "core": _extension.core_path().name,
            "NPU binding (_npu.so)": _yes(_extension.library_path("_npu") is not None),
        },
        "cpu": {"code path": _cpu_code_path()},
        "npu": npu,
        "routes": _routes(npu["devices"] != "0"),
        "engines": engines(),
    }


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"


def _cpu_code_path() -> str:
    try:
        name: str = torch.ops.ascend_sample.cpu_capability()
    except ValueError as error:  # the environment forces one that this machine does not have
        return f"none: {error}"
    return f"{name} (forced by {CAPABILITY_VARIABLE})" if os.environ.get(CAPABILITY_VARIABLE) else name


def _npu_facts() -> dict[str, str]:
    facts = {"CANN": NOT_FOUND, "SoC": "none", "devices": "0"}
    facts |= {operator.name: NOT_FOUND for operator in OPERATORS.values()}
    missing = _environment.missing_cann_library()
    if missing is not None:
        facts["CANN"] = f"not loaded ({missing}). {_environment.CANN_REMEDY}"
        return facts
    from ascend_sample.npu import libraries, packages

    facts["CANN"] = "hostcann: EMULATED on the host, no NPU is involved" if _environment.is_emulated() else "a real one"
    for operator in OPERATORS.values():
        try:
            _, phase_2 = libraries.find_operator(operator)
        except NotImplementedError as reason:
            facts[operator.name] = f"{NOT_FOUND}: {reason}"
        else:
            facts[operator.name] = phase_2.library
            facts[f"{operator.name} build"] = packages.build_of(operator, phase_2.library)
    facts["CANN build"] = packages.build_of_cann()
    if "torch_npu" not in sys.modules:
        facts["devices"] = "0 (torch_npu is not imported)"
        return facts
    npu = sys.modules["torch_npu"].npu
    count = npu.device_count()
    facts["devices"] = str(count)
    if count:
        facts["SoC"] = npu.get_device_name(0)
    return facts


def _routes(has_npu: bool) -> dict[str, str]:
    devices = ["cpu", backend.NPU] if has_npu else ["cpu"]
    routes = {}
    for operator, symbol in OPERATORS.items():
        for device in devices:
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                variant = symbol.name.removeprefix(SAMPLE.name).removeprefix("aclnn")  # "V2" of the second
                name = f"{device} {str(dtype).removeprefix('torch.')} {variant}".rstrip()
                try:
                    route = backend.which_backend(torch.empty(0, dtype=dtype, device=device), operator)
                except (RuntimeError, ValueError) as error:
                    routes[name] = f"none: {error}"
                else:
                    routes[name] = f"{route.backend} ({route.reason})"
    try:
        other = backend.which_backend(torch.empty(0, device="meta"))  # which stands for all of them
    except (RuntimeError, ValueError) as error:
        routes["other devices"] = f"none: {error}"
    else:
        reason = other.reason if other.reason == backend.FORCED else "vectorised torch operators"
        routes["other devices"] = f"{other.backend} ({reason})"
    return routes
