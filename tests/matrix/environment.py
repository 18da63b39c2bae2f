"""One environment of the matrix: a Python, a torch, a torch_npu, and a copy of the project that is built for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ascend_sample.hostcann._elf import exported_symbols
from ascend_sample.hostcann._home import library_paths
from tests.support.environments import PINS, PIP_INSTALL, ROOT

TOOLS: Final = (
    *("cffi", "PyYAML", "tqdm", "rich", "tokenizers", "transformers", "pytest", "pytest-timeout", "pytest-xdist"),
    *("hypothesis", "ninja"),
)
"""What the build and the chosen tests need beside torch, torch_npu and numpy, in the versions of `PINS`."""
SETUPTOOLS: Final = "setuptools>=77,<85"
"""As pyproject.toml has it: some versions of torch want an older one than requirements.txt has."""
OF_PYTHON_3_10: Final = {"numpy": "2.2.6", "transformers": "5.20.2", "hypothesis": "6.168.5", "tomli": "2.5.0"}
"""The last that are made for it, and what stands for its successors' tomllib."""
CANN_NAMES: Final = ("acl", "Hccl", "Msprof", "_ZN2ge")
"""How the names of CANN's functions begin."""
COMPILER_CACHE: Final = Path("/usr/lib/ccache")
LIMIT_SECONDS: Final = 3600
"""Of one step, on a machine that has much else to do."""
ERROR: Final = re.compile(r"^(FAILED|ERROR)\b|\w(Error|Failure)\b|\b(error|what\(\)): ")
"""A line that says what went wrong."""
LAST_LINES, LAST_ERRORS = 12, 3
"""How much of a failed step's output is kept: its end, and of what is above that, the last errors."""


class StepFailure(Exception):
    """A step has failed; the text is the end of what it has printed."""


@dataclass(frozen=True)
class Pair:
    """What is built and tested together."""

    torch: str
    torch_npu: str
    python: str

    @property
    def name(self) -> str:
        """As the results are keyed."""
        return f"{self.torch_npu} python {self.python}"


def interpreter(version: str) -> Path | None:
    """Returns this machine's Python of the version, or None: one on PATH that runs, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    for candidate in ([Path(found)] if found else []) + sorted(pyenv.glob(f"{version}.*/bin/python{version}")):
        finished = subprocess.run([candidate, "-c", "import ensurepip, venv"], capture_output=True, check=False)
        if finished.returncode == 0:
            return candidate
    return None


class Environment:
    """A virtual environment beside a copy of the project, in a folder of their own."""

    def __init__(self, pair: Pair, base: Path, folder: Path) -> None:
        self.pair = pair
        self.base = base
        self.folder = folder
        self.tree = folder / "source"
        self.python = folder / "venv" / "bin" / "python"
        self.log = folder / "log.txt"

    def variables(self) -> dict[str, str]:
        """Those of every command: nothing leads to another package, another torch or another CANN."""
        hidden = ("HOSTCANN_", "ASCEND_", "TASK_QUEUE_ENABLE", "PYTEST_", "LD_LIBRARY_PATH", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        cache = f"{COMPILER_CACHE}{os.pathsep}" if COMPILER_CACHE.is_dir() else ""
        return kept | {
            "PATH": cache + os.environ["PATH"],
            # What includes nothing of torch is compiled for the first environment alone.
            "CCACHE_BASEDIR": str(self.folder),
            "CCACHE_NOHASHDIR": "1",
            "MAX_JOBS": os.environ.get("MAX_JOBS", "2"),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "PYTHONPATH": str(self.tree),
        }

    def run(self, *command: str | Path) -> str:
        """Runs a command in the copy; returns what it has printed, which is in the log as well.

        Raises:
            StepFailure: it has failed, or found no end.
        """
        start = time.monotonic()
        try:
            finished = subprocess.run(
                list(map(str, command)),
                cwd=self.tree,
                env=self.variables(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailure(f"no end within {LIMIT_SECONDS} s: {' '.join(map(str, command))}") from error
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}  # {time.monotonic() - start:.0f} s\n{finished.stdout}\n")
        if finished.returncode != 0:
            lines = finished.stdout.strip().splitlines()
            errors = [line for line in lines[:-LAST_LINES] if ERROR.search(line)][-LAST_ERRORS:]
            text = "\n".join([f"exit status {finished.returncode}", *errors, *lines[-LAST_LINES:]])
            raise StepFailure(text.replace(f"{self.folder}{os.sep}", ""))
        return finished.stdout

    def install(self) -> None:
        """Makes the environment.

        torch_npu comes without its dependencies: it asks for the CPU build of its torch, which PyPI does not have for
        every version. The CUDA build has the same interface, and imports with its runtime packages.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.tree.mkdir(parents=True)
        self.run(self.base, "-m", "venv", self.folder / "venv")
        older = OF_PYTHON_3_10 if self.pair.python == "3.10" else {}
        pins = {name: PINS[name] for name in ("numpy", *TOOLS)} | older
        tools = [f"{name}=={version}" for name, version in pins.items()]
        self.run(self.python, *PIP_INSTALL, f"torch=={self.pair.torch}", SETUPTOOLS, *tools)
        self.run(self.python, *PIP_INSTALL, "--no-deps", f"torch_npu=={self.pair.torch_npu}")
        self.admit_cuda_build()

    def admit_cuda_build(self) -> None:
        """Makes every Python of the environment load `cuda_build.cpp` where its torch needs that."""
        (packages,) = self.folder.glob("venv/lib/python*/site-packages")
        headers, libraries = packages / "torch" / "include", packages / "torch" / "lib"
        settings = headers / "c10" / "core" / "AllocatorConfig.h"
        if not (libraries / "libc10_cuda.so").is_file() or not settings.is_file():
            return
        library = self.folder / "libcuda_build.so"
        options = ("-shared", "-fPIC", "-std=c++20", f"-I{headers}", f"-L{libraries}", f"-Wl,-rpath,{libraries}")
        self.run("c++", *options, ROOT / "tests" / "matrix" / "cuda_build.cpp", "-lc10", "-o", library)
        (packages / "cuda_build.pth").write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")

    def build(self) -> None:
        """Copies the project, without what was built, and builds it for this environment."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for path in (ROOT / name for name in names if name):
            if path.is_file():
                target = self.tree / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        self.run(self.python, *PIP_INSTALL, "--no-build-isolation", "--no-deps", "--editable", self.tree)

    def check_symbols(self) -> None:
        """Every function of CANN that libtorch_npu.so is linked to is one of this build's hostcann.

        torchair, which torch_npu brings along, is for CANN's graph engine: hostcann has none.

        Raises:
            StepFailure: naming those that are not.
        """
        (library,) = self.folder.glob("venv/lib/python*/site-packages/torch_npu/lib/libtorch_npu.so")
        taken = self.run("nm", "--dynamic", "--undefined-only", "--format=just-symbols", library).split()
        needed = {name for name in taken if name.startswith(CANN_NAMES)}
        home = self.tree / "ascend_sample" / "hostcann" / "home"
        missing = needed.difference(*map(exported_symbols, library_paths(home)))
        if missing:
            raise StepFailure(f"hostcann does not export {', '.join(sorted(missing))}")

    def emulated(self, *arguments: str | Path) -> str:
        """Runs this environment's Python under hostcann; a violation of CANN's rules is a failure."""
        return self.run(
            self.python, "-m", "ascend_sample.hostcann", "run", "--strict", self.python, *map(str, arguments)
        )

    def test(self, *tests: str) -> None:
        """Runs pytest on parts of the copy; a test that was skipped has failed."""
        self.run(self.python, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "worksteal", *tests)

    def facts(self) -> dict[str, Any]:
        """The exact versions that are installed."""
        code = (
            "import importlib.metadata as m, platform as p; "
            "print(p.python_version(), m.version('torch'), m.version('torch_npu'))"
        )
        python, torch, torch_npu = self.run(self.python, "-c", code).split()
        return {"python": python, "torch": torch, "torch_npu": torch_npu}
