"""Builds the compiled parts against the torch (and torch_npu) of the environment that will use them.

    ascend_sample/_C.so                    schemas, checks, composite, fake and CPU kernels: always
    ascend_sample/_npu.so                  the aclnn binding: where torch_npu is installed

ASCEND_SAMPLE_NPU=0 leaves the binding out; ASCEND_SAMPLE_SANITIZE=address,undefined instruments everything.
ASCEND_SAMPLE_TORCHES names a folder with torches, unpacked by csrc/wheel.py: the core is built for each of them, and
nothing else; ASCEND_SAMPLE_MACHINE is the machine that they are for where it is not this one. What is not to be built
is removed where an earlier build made it.
"""

import importlib.util
import json
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
UNITS = ROOT / "build" / "units"
OBJECTS = ROOT / "build" / "objects"  # of the sources built in place: kept, so that only what changed is compiled again


def make_environment_importable() -> None:
    """Under build isolation, pip hides the environment's packages; the extension must be built against its torch.

    Where it is, a Python that pip does not lead tells: the environment's folder, the system's or the user's.
    """
    variables = {name: os.environ[name] for name in os.environ.keys() - {"PYTHONPATH", "PYTHONNOUSERSITE"}}
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    found = json.loads(subprocess.check_output(command, env=variables))
    sys.path += [path for path in found if path and path not in sys.path]


os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # importing torch must not need a CANN
os.environ["PATH"] += f"{os.pathsep}{Path(sys.executable).parent}"  # where ninja is that came with requirements.txt
make_environment_importable()
try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    raise SystemExit(
        "ascend_sample is compiled against the torch that will load it, and this environment has none. "
        "Install torch first (pip install torch==2.13.0), then ascend_sample. uv and build, which make an environment "
        "for the build, need --no-build-isolation and --no-isolation, and setuptools and ninja beside torch."
    ) from error

SANITIZE = os.environ.get("ASCEND_SAMPLE_SANITIZE", "")
TORCHES = os.environ.get("ASCEND_SAMPLE_TORCHES", "")
MACHINE = os.environ.get("ASCEND_SAMPLE_MACHINE", platform.machine())
COMPILE_ARGS = ["-std=c++20", "-O2", "-g1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
LINK_ARGS = ["-Wl,--as-needed", *(["-s"] if TORCHES else [])]
if SANITIZE:
    flags = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
    COMPILE_ARGS += flags
    LINK_ARGS += flags


def sources(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).glob("*.cpp"))


def unit(folder: str) -> str:
    """A file that includes the sources of a folder: reading torch's headers is most of the work, and is done once.

    Args:
        folder: its sources have no names, of functions or macros, that mean different things in two of them.
    """
    path = UNITS / f"{folder.replace('/', '_')}.cpp"
    text = "".join(f'#include "../../{name}"\n' for name in sources(folder))
    if not path.exists() or path.read_text() != text:
        UNITS.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path.relative_to(ROOT))


def core_extension(name: str, include_dirs: list[str], library_dirs: list[str]) -> Extension:
    """The core for a torch, whose folders these are."""
    flags = json.loads((ROOT / "csrc/cpu/flags.json").read_text())
    of_machine = flags.get(MACHINE, {})
    compile_args = [*COMPILE_ARGS, *flags["all"]]
    kernel = sources("csrc/cpu")  # knows nothing of torch
    extension = Extension(
        f"ascend_sample.{name}",
        [unit("csrc"), unit("csrc/cpu/torch"), *kernel],
        include_dirs=[str(ROOT / "csrc"), *include_dirs],
        library_dirs=library_dirs,
        libraries=["c10", "torch_cpu"],
        language="c++",
        # Without OpenMP, at::parallel_for, whose loop is in a header, would run on one thread. No runtime is linked:
        # the names are found in that of torch, whatever its file is called. A second one in the process would have
        # threads of its own, and not as many as torch.set_num_threads says.
        extra_compile_args=[*compile_args, "-fopenmp"],
        extra_link_args=LINK_ARGS,
    )
    # Some files are compiled for one instruction set, which is chosen when the library is loaded.
    extension.kernel_args = {source: [*compile_args, *of_machine.get(Path(source).name, [])] for source in kernel}
    return extension


def core_extensions() -> list[Extension]:
    """The core for the torch of the environment, or for each one that is unpacked: the same kernel, compiled once."""
    if not TORCHES:
        return [core_extension("_C", cpp_extension.include_paths(), cpp_extension.library_paths())]
    return [
        core_extension(
            f"_C_torch_{folder.name.replace('.', '_')}",
            [str(folder / "include"), str(folder / "include/torch/csrc/api/include")],
            [str(folder / "lib")],
        )
        for folder in sorted(Path(TORCHES).iterdir())
    ]


def npu_extension() -> Extension | None:
    spec = importlib.util.find_spec("torch_npu")  # found, never imported: it may be broken here
    if TORCHES or os.environ.get("ASCEND_SAMPLE_NPU") == "0" or spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    return cpp_extension.CppExtension(
        "ascend_sample._npu",
        [unit("csrc/npu"), "csrc/checks.cpp"],
        include_dirs=[str(ROOT / "csrc")],
        library_dirs=[str(package / "lib")],
        libraries=["torch_npu"],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=[*LINK_ARGS, "-Wl,--allow-shlib-undefined"],
    )


EXTENSIONS = [e for e in (*core_extensions(), npu_extension()) if e is not None]


class BuildExtension(cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)):
    """Compiles the sources of all extensions side by side, and links them.

    setuptools would compile one extension after the other, each with processors that wait for its last source.
    """

    def run(self) -> None:
        words = shlex.split(cpp_extension.get_cxx_compiler())  # "ccache g++", say
        program = words[0] if words else "what CXX names"
        if shutil.which(program) is None:
            raise SystemExit(
                f"ascend_sample is compiled here, and {program} is not on PATH. Install a C++ compiler "
                "(apt-get install g++), or ascend_sample's wheel, which needs none."
            )
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        if not jobs.isdecimal() or int(jobs) < 1:
            raise SystemExit(
                f"ascend_sample: MAX_JOBS must be a whole number above 0, got {jobs!r}. Unset it to use all processors."
            )
        self.jobs = int(jobs)
        if len(words) > 1:
            self.use_ninja = False  # torch's rules for it take the words for one name
        objects = OBJECTS if self.inplace or self.editable_mode else Path(self.build_temp)
        self.objects = objects.absolute()
        self.remove_stale()
        self.remove_objects_for_another_torch()
        super().run()

    def remove_stale(self) -> None:
        """Removes what an earlier build left where it is to be left out now: it would be packed, or loaded."""
        current = {self.get_ext_filename(ext.name) for ext in EXTENSIONS}
        places = [Path(self.build_lib), *([ROOT] if self.inplace or self.editable_mode else [])]
        for place in places:
            for path in sorted((place / "ascend_sample").rglob("*.so")):
                if str(path.relative_to(place)) not in current:
                    path.unlink()
        for path in sorted((Path(self.build_lib) / "ascend_sample").rglob("*.py")):
            if not (ROOT / path.relative_to(self.build_lib)).is_file():
                path.unlink()

    def remove_objects_for_another_torch(self) -> None:
        """To ninja they are new: uv and conda keep the times of headers, which can be older than they."""
        known = self.objects / "torch"
        if not known.is_file() or known.read_text() != torch.__version__:
            for path in sorted(self.objects.rglob("*.o")):
                path.unlink()
            self.objects.mkdir(parents=True, exist_ok=True)
            known.write_text(torch.__version__)

    def build_extension(self, ext: Extension) -> None:
        if ext is self.extensions[0]:
            self.compile_all()
        path = Path(self.get_ext_fullpath(ext.name))
        self.compiler.link_shared_object(  # always: it takes a moment, and what is there may be half of a library
            [*ext.made, *ext.extra_objects],
            str(path),
            libraries=ext.libraries,
            library_dirs=ext.library_dirs,
            extra_postargs=ext.extra_link_args,
            target_lang="c++",
        )

    def compile_all(self) -> None:
        jobs = {self.key_of(ext, source): (ext, source) for ext in reversed(self.extensions) for source in ext.sources}
        # What takes longest comes first: the kernel for each instruction set, and what reads torch's headers.
        order = sorted(jobs, key=lambda key: (key[0] != "kernel", len(jobs[key][0].include_dirs) == 1))
        with ThreadPoolExecutor(self.jobs) as pool:
            compiled = pool.map(lambda number, key: self.compile_one(number, len(order), *jobs[key]), count(1), order)
            made = dict(zip(order, compiled, strict=True))
        for ext in self.extensions:
            ext.made = [made[self.key_of(ext, source)] for source in ext.sources]

    def key_of(self, ext: Extension, source: str) -> tuple[str, str]:
        return ("kernel" if source in getattr(ext, "kernel_args", {}) else ext.name, source)

    def compile_one(self, number: int, of: int, ext: Extension, source: str) -> str:
        self.announce(f"compiling {number}/{of}: {source}", level=logging.INFO)  # pip shows it with -v
        folder = self.objects / ext.name.split(".")[-1] / Path(source).stem  # ninja's, which has one for each run
        of_kernel = getattr(ext, "kernel_args", {}).get(source)
        (made,) = self.compiler.compile(
            [source],
            output_dir=str(folder),
            include_dirs=ext.include_dirs if of_kernel is None else [str(ROOT / "csrc")],
            extra_postargs=of_kernel or ext.extra_compile_args,
        )
        return made


class Wheel(bdist_wheel):
    """No compiled part knows Python; with the core for each torch, no installation does either."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2]) if TORCHES else super().get_tag()


setup(
    packages=find_packages(include=["ascend_sample", "ascend_sample.*"]),
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildExtension, "bdist_wheel": Wheel},
)
