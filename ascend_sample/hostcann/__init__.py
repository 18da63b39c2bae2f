"""CANN's interfaces on the host: the real torch_npu runs without an Ascend device, up to the line where CANN begins.

hostcann emulates interfaces and behaviour. It says nothing about the numerics or the speed of a device. Two ways to use
it, of which the first needs no change to the program:

    python -m ascend_sample.hostcann run python my_program.py

    from ascend_sample import hostcann
    hostcann.activate()
    import torch_npu

The functions beside `activate` read its counters and make it misbehave on purpose, for tests. Each has an environment
variable of the same meaning, for programs that are started: HOSTCANN_SOC, HOSTCANN_CANN_VERSION, HOSTCANN_MEMORY,
HOSTCANN_STREAM_MODE, HOSTCANN_NULL_KERNELS, HOSTCANN_FAULTS, HOSTCANN_REPORT, HOSTCANN_STRICT.
"""

from ascend_sample.hostcann._activation import activate, environment, is_active
from ascend_sample.hostcann._control import (
    Counters,
    Violation,
    clear_faults,
    counters,
    inject,
    live,
    null_kernels,
    reset_counters,
    reset_violations,
    set_memory_capacity,
    set_stream_mode,
    violations,
)

__all__ = [
    "Counters",
    "Violation",
    "activate",
    "clear_faults",
    "counters",
    "environment",
    "inject",
    "is_active",
    "live",
    "null_kernels",
    "reset_counters",
    "reset_violations",
    "set_memory_capacity",
    "set_stream_mode",
    "violations",
]
