"""Builds CANN's libraries as hostcann has them, against the torch of the environment that will use them.

HOSTCANN_SANITIZE=address,undefined instruments them.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"


def make_environment_importable() -> None:
    """Under build isolation, pip hides the environment's packages; libopapi_math.so is built against its torch.

    Where it is, a Python that pip does not lead tells: the environment's folder, the system's or the user's.
    """
    variables = {name: os.environ[name] for name in os.environ.keys() - {"PYTHONPATH", "PYTHONNOUSERSITE"}}
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    found = json.loads(subprocess.check_output(command, env=variables))
    sys.path += [path for path in found if path and path not in sys.path]


os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # importing torch must not need a CANN
make_environment_importable()
try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    raise SystemExit(
        "hostcann is compiled against the torch that will load it, and this environment has none. Install torch first "
        "(pip install torch==2.13.0), then hostcann. uv and build, which make an environment for the build, need "
        "--no-build-isolation and --no-isolation, and setuptools beside torch."
    ) from error

if not sys.platform.startswith("linux"):
    raise SystemExit(f"hostcann is for Linux, as torch_npu is; this is {sys.platform}.")
SANITIZE = os.environ.get("HOSTCANN_SANITIZE", "")
SANITIZERS = (
    [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"] if SANITIZE else []
)
COMPILE_ARGS = ["-std=c++20", "-O2", "-g1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
COMPILE_ARGS += ["-pthread", *SANITIZERS]
HEADERS = "src/hostcann/include/hostcann/*.h"
INCLUDE = [str(CSRC), str(ROOT / "src/hostcann/include")]


def unit(folder: str) -> str:
    """A file that includes the sources of a folder: reading their headers is most of the work, and is done once."""
    path = ROOT / "build" / "units" / f"{folder}.cpp"
    text = "".join(f'#include "{folder}/{source.name}"\n' for source in sorted((CSRC / folder).glob("*.cpp")))
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path.relative_to(ROOT))


def library(name: str, folder: str, needed: list[str], *, has_torch: bool = False) -> Extension:
    """Describes one of CANN's libraries: all sources of a folder, or one of the stubs."""
    return Extension(
        f"hostcann.home.lib64.lib{name}",
        [f"csrc/stubs/{name}.cpp" if folder == "stubs" else unit(folder)],
        depends=[
            str(path) for pattern in (f"csrc/{folder}/*.cpp", "csrc/*/*.h", HEADERS) for path in ROOT.glob(pattern)
        ],
        include_dirs=INCLUDE + (cpp_extension.include_paths() if has_torch else []),
        library_dirs=cpp_extension.library_paths() if has_torch else [],
        libraries=["c10", "torch_cpu", "torch"] if has_torch else [],
        language="c++",
        # Each function of libopapi_math.so only calls ATen: optimising the templates between would double the build.
        extra_compile_args=[*COMPILE_ARGS, *(["-O1"] if has_torch else [])],
        extra_link_args=[
            *("-Wl,--as-needed", f"-Wl,-soname,lib{name}.so", "-Wl,-rpath,$ORIGIN", "-pthread", *SANITIZERS),
            *(f"-l:lib{other}.so" for other in needed),
        ],
    )


LIBRARIES = [
    library("ascendcl", "runtime", []),
    *(library(name, "stubs", ["ascendcl"]) for name in ("acl_op_compiler", "ge_runner", "graph")),
    library("acl_tdt_channel", "stubs", ["ascendcl"]),
    library("hccl", "hccl", ["ascendcl"]),
    library("hcomm", "stubs", ["hccl"]),
    library("opapi", "opapi", ["ascendcl"]),
    library("nnopbase", "stubs", ["opapi", "ascendcl"]),
    library("opapi_math", "aten", ["opapi", "ascendcl"], has_torch=True),
]


class BuildLibraries(build_ext):
    """Compiles all sources side by side, then links in order; an object is newer than what it was made of, or made."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"  # no Python is in it

    def run(self) -> None:
        # Kept between builds in place, so that only what changed is compiled again.
        self.objects = ROOT / "build" / "objects" if self.inplace or self.editable_mode else Path(self.build_temp)
        super().run()

    def build_extensions(self) -> None:
        with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
            compiled = [pool.submit(self.compile_one, extension) for extension in reversed(self.extensions)]
        for extension, made in zip(self.extensions, reversed(compiled), strict=True):
            self.link_one(extension, made.result())

    def compile_one(self, extension: Extension) -> str:
        folder = self.objects / torch.__version__ / extension.name.split(".")[-1]
        target = folder / Path(extension.sources[0]).with_suffix(".o")
        inputs = [*extension.sources, *extension.depends, __file__]
        if not target.exists() or target.stat().st_mtime <= max(os.path.getmtime(path) for path in inputs):
            self.compiler.compile(
                extension.sources,
                output_dir=str(folder),
                include_dirs=extension.include_dirs,
                extra_postargs=extension.extra_compile_args,
            )
        return str(target)

    def link_one(self, extension: Extension, made: str) -> None:
        path = Path(self.get_ext_fullpath(extension.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            [made],
            str(path),
            libraries=extension.libraries,
            library_dirs=[*extension.library_dirs, str(path.parent)],
            extra_postargs=extension.extra_link_args,
            target_lang="c++",
        )

    def copy_extensions_to_source(self) -> None:
        (ROOT / "src/hostcann/home/lib64").mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()


setup(ext_modules=LIBRARIES, cmdclass={"build_ext": BuildLibraries})
