"""`python -m ascend_sample bench`: what sampling costs on this machine, for shapes that the user gives.

`timing` measures alternatives side by side, `samplers` holds what the operator is compared with, `run` is the command.
The repository's own benchmark, `make bench`, is built on `timing` too.
"""

from .run import add_bench_arguments, run_bench

__all__ = ["add_bench_arguments", "run_bench"]
