"""Compiles the contestants that are written in C++, and the kernel's core beside them, at first use.

Nothing of it is shipped, so it may be compiled for this very machine. The core is not: it gets the flags of the
package, because it is what the package would run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((Path(__file__).parent / "native").glob("*.cpp"))
CORE = ROOT / "csrc" / "cpu"
BUILD = ROOT / "build" / "benchmarks"


@functools.cache
def library() -> object:
    """The namespace of the compiled functions, which are built when they are not there or not up to date.

    Raises:
        RuntimeError: there is no C++ compiler, or it failed.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MAX_JOBS", "1")  # the build must not take memory or cores from whatever else is running
    with (BUILD / "build.lock").open("w") as lock:  # of several processes one builds and the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        cpp_extension.load(
            name="ascend_sample_benchmarks",
            sources=[str(path) for path in SOURCES],
            extra_include_paths=[str(ROOT / "csrc")],
            extra_cflags=["-std=c++20", "-O3", "-march=native", "-fopenmp", "-fvisibility=hidden"],
            extra_ldflags=[str(path) for path in core_objects()],
            build_directory=str(BUILD),
            is_python_module=False,
        )
    return torch.ops.ascend_sample_benchmarks


def core_objects() -> list[Path]:
    """Compiles the kernel's core, each file with its own flags; the files' names change with what they hold."""
    flags = json.loads((CORE / "flags.json").read_text())
    sources = sorted(CORE.glob("*.cpp"))  # those of its folder torch need torch
    headers = b"".join(
        path.read_bytes() for path in sorted(ROOT.joinpath("csrc").glob("*.h")) + sorted(CORE.rglob("*.h"))
    )

    def compile_one(source: Path) -> Path:
        own = flags["all"] + flags.get(platform.machine(), {}).get(source.name, [])
        arguments = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", *own, "-I", str(ROOT / "csrc")]
        digest = hashlib.sha256(headers + source.read_bytes() + " ".join(arguments).encode()).hexdigest()[:12]
        compiled = BUILD / f"{source.stem}-{digest}.o"
        if not compiled.exists():
            command = [os.environ.get("CXX", "c++"), *arguments, "-c", str(source), "-o", str(compiled)]
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
            if finished.returncode:
                raise RuntimeError(f"benchmarks: {source.name} did not compile:\n{finished.stderr}")
            for old in set(BUILD.glob(f"{source.stem}-*.o")) - {compiled}:
                old.unlink()
        return compiled

    with ThreadPoolExecutor(int(os.environ["MAX_JOBS"])) as threads:
        return list(threads.map(compile_one, sources))
