"""CANN's interfaces on the host: the real torch_npu runs without an Ascend device, up to the line where CANN begins.

hostcann emulates interfaces and behaviour. It says nothing about the numerics or the speed of a device. Two ways to use
it, of which the first needs no change to the program:

    hostcann run python my_program.py

    import hostcann
    hostcann.activate()
    import torch_npu

`profile` counts what a program asks of the device, by operator and by line; `hostcann profile`
does so for a whole program. The other functions look for misuse, or make hostcann misbehave on purpose, for tests. They
have environment variables of the same meaning, for programs that are started: HOSTCANN_SOC, HOSTCANN_CANN_VERSION,
HOSTCANN_MEMORY, HOSTCANN_STREAM_MODE, HOSTCANN_NULL_KERNELS, HOSTCANN_FAULTS, HOSTCANN_REPORT, HOSTCANN_STRICT.
"""

from hostcann._activation import activate, environment, find_real_cann, is_active
from hostcann._control import (
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
from hostcann._operators import add_operators
from hostcann._profile import Activity, Profile, Totals, profile

__all__ = [
    "Activity",
    "Profile",
    "Totals",
    "Violation",
    "activate",
    "add_operators",
    "clear_faults",
    "environment",
    "find_real_cann",
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
