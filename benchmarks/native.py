"""Compiles the contestants that are written in C++ at first use.

Nothing of them is shipped, so they may be compiled for this very machine. The kernel's core beside them is the
package's own, as `make build` compiled it.
"""

from __future__ import annotations

import fcntl
import functools
import os
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((Path(__file__).parent / "native").glob("*.cpp"))
OBJECTS = ROOT / "build" / "objects" / "_C"
BUILD = ROOT / "build" / "benchmarks"


@functools.cache
def library() -> object:
    """The namespace of the compiled functions, which are built when they are not there or not up to date.

    Raises:
        RuntimeError: there is no C++ compiler, or it failed.
        SystemExit: what `make build` left of the kernel is gone.
    """
    objects = [str(path) for path in sorted(OBJECTS.glob("*/csrc/cpu/*.o"))]
    if not objects:
        raise SystemExit(
            f"benchmarks: the kernel's objects must be in {OBJECTS}, but are not. Build the package there."
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MAX_JOBS", "1")  # the build must not take memory or cores from whatever else is running
    with (BUILD / "build.lock").open("w") as lock:  # of several processes one builds and the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        cpp_extension.load(
            name="ascend_sample_benchmarks",
            sources=[str(path) for path in SOURCES],
            extra_include_paths=[str(ROOT / "csrc")],
            extra_cflags=["-std=c++20", "-O3", "-march=native", "-fopenmp", "-fvisibility=hidden"],
            extra_ldflags=objects,
            build_directory=str(BUILD),
            is_python_module=False,
        )
    return torch.ops.ascend_sample_benchmarks
