"""Builds one of setup.py's extensions in place: `python build_one.py NAME`, in the project's folder."""

import runpy
import sys
from typing import Any

import setuptools

name = sys.argv[1]
setup = setuptools.setup


def setup_one(**arguments: Any) -> object:
    """`setuptools.setup` without the other extensions."""
    extensions = [extension for extension in arguments.pop("ext_modules") if extension.name.split(".")[-1] == name]
    if len(extensions) != 1:
        raise SystemExit(f"build_one: {name!r} must name one extension of setup.py, got {len(extensions)}.")
    return setup(**arguments, ext_modules=extensions)


setuptools.setup = setup_one
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
