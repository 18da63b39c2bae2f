"""CANN's interfaces on the host: the real torch_npu runs without an Ascend device, up to the line where CANN begins.

hostcann emulates interfaces and behaviour. It says nothing about the numerics or the speed of a device. Two ways to use
it, of which the first needs no change to the program:

    python -m ascend_sample.hostcann run python my_program.py

    from ascend_sample import hostcann
    hostcann.activate()
    import torch_npu

`profile` counts what a program asks of the device, by operator and by line; `python -m ascend_sample.hostcann profile`
does so for a whole program. The other functions look for misuse, or make hostcann misbehave on purpose, for tests. They
have environment variables of the same meaning, for programs that are started: HOSTCANN_SOC, HOSTCANN_CANN_VERSION,
HOSTCANN_MEMORY, HOSTCANN_STREAM_MODE, HOSTCANN_NULL_KERNELS, HOSTCANN_FAULTS, HOSTCANN_REPORT, HOSTCANN_STRICT.
"""

from ascend_sample.hostcann._activation import activate, environment, is_active
from ascend_sample.hostcann._control import (
    Violation,
    clear_faults,
    inject,
    live,
    null_kernels,
    reset_violations,
    set_memory_capacity,
    set_stream_mode,
    violations,
)
from ascend_sample.hostcann._profile import Activity, Profile, Totals, profile

__all__ = [
    "Activity",
    "Profile",
    "Totals",
    "Violation",
    "activate",
    "clear_faults",
    "environment",
    "inject",
    "is_active",
    "live",
    "null_kernels",
    "profile",
    "reset_violations",
    "set_memory_capacity",
    "set_stream_mode",
    "violations",
]
