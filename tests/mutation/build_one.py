"""Builds one of the compiled libraries in place, in the project's folder."""

import argparse
import os
import platform
import runpy
import sys
from pathlib import Path
from typing import Any

import setuptools

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("name", help="_C, _npu or one of hostcann's libraries")
parser.add_argument("--quick", action="store_true", help="compile the kernel with -O1, which takes half the time")
text = "compile it for the instruction set that serves calls on this machine, and leave the others as they are"
parser.add_argument("--served", action="store_true", help=text)
options = parser.parse_args()
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
            objects = f"build/objects/{options.name}/kernel_{target}"
            extension.extra_objects.append(f"{objects}/{source.removesuffix('.cpp')}.o")


def setup_one(**arguments: Any) -> object:
    """`setuptools.setup` without the other extensions."""
    every = {extension.name.split(".")[-1]: extension for extension in arguments.pop("ext_modules")}
    if options.name not in every:
        parser.error(f"name must be one of {', '.join(every)}, got {options.name!r}")
    extension = every[options.name]
    if options.quick:
        for flags in getattr(extension, "kernel_args", {}).values():
            flags.append("-O1")  # the last one counts
    if options.served:
        leave_what_does_not_serve(extension)
    return setup(**arguments, ext_modules=[extension])


if options.name == "libcust_opapi":
    sources = sorted(map(str, Path("csrc/emulated_operators").glob("*.cpp")))
    sys.argv = ["hostcann", "add-operators", "ascend_sample", *sources]
    runpy.run_module("hostcann", run_name="__main__")
if options.name.startswith("lib"):
    os.chdir("hostcann")  # whose setup.py compiles what has changed
else:
    setuptools.setup = setup_one
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
