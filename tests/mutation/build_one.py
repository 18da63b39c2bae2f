"""Builds one of setup.py's extensions in place: `python build_one.py NAME`, in the project's folder.

With `--quick` the kernel is compiled with -O1, which takes half the time. With `--served`, it is compiled for the one
instruction set that serves calls on this machine, and stays as it is for the others.
"""

import platform
import runpy
import sys
from typing import Any

import setuptools

name, *options = sys.argv[1:]
setup = setuptools.setup


def leave_what_does_not_serve(extension: setuptools.Extension) -> None:
    with open("/proc/cpuinfo") as file:
        features = file.read().split()
    serving = "avx512" if "avx512f" in features else "avx2" if "avx2" in features else None
    if platform.machine() != "x86_64" or serving is None:
        return
    for target in {"plain", "avx2", "avx512"} - {serving}:
        source = f"csrc/cpu/kernel_{target}.cpp"
        if source in extension.sources:
            extension.sources.remove(source)
            extension.extra_objects.append(f"build/objects/{name}/kernel_{target}/{source.removesuffix('.cpp')}.o")


def setup_one(**arguments: Any) -> object:
    """`setuptools.setup` without the other extensions."""
    extensions = [extension for extension in arguments.pop("ext_modules") if extension.name.split(".")[-1] == name]
    if len(extensions) != 1:
        raise SystemExit(f"build_one: {name!r} must name one extension of setup.py, got {len(extensions)}.")
    # What it needs of the others is linked as it lies in the package: they may never have been built here.
    extensions[0].library_dirs.append("ascend_sample/hostcann/home/lib64")
    if "--quick" in options:
        for flags in getattr(extensions[0], "kernel_args", {}).values():
            flags.append("-O1")  # the last one counts
    if "--served" in options:
        leave_what_does_not_serve(extensions[0])
    return setup(**arguments, ext_modules=extensions)


setuptools.setup = setup_one
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
