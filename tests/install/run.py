"""Installs the package with plain ``pip install`` in environments of its own, as a user does (``make test-install``).

    python -m tests.install.run                             all of it
    python -m tests.install.run --only wheel --torches 2.13.0    the wheel alone, with this torch

Each environment is checked for what was built and for the route that serves an NPU's tensors on hostcann:

- source, torch alone: no binding is built. torch_npu is installed afterwards, and is then served through cffi.
- source, torch and torch_npu: the binding is built against it, although pip builds in isolation.
- source, no compiler: pip says what is missing.
- wheel, with each torch that it has a core for, and no compiler: the golden rows, tests of the sampling layer and the
  parity of both operators, on the CPU; and its installation takes less than `MOST_SECONDS`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from csrc.wheel import BUILD, TORCHES
from tests.matrix.steps import OPERATORS
from tests.support.environments import PINS, PIP_INSTALL, ROOT, create

MOST_SECONDS: Final = 10.0
"""That pip may take for the wheel."""
TOOLS: Final = ("pytest", "pytest-timeout", "hypothesis", "PyYAML", "rich")
"""What the tests need beside the wheel."""
TESTS: Final = (
    "tests/operators/test_golden.py",
    "tests/operators/test_golden_v2.py",
    "tests/sampling/test_native_rows.py",
)
TIMES: Final = re.compile(r"^(?:this operator|torch.topk|one read).*$", re.MULTILINE)
"""What is shown of the benchmark."""


class Environment:
    """A virtual environment, used from outside the project's folder."""

    def __init__(self, folder: Path, *, has_compiler: bool = True) -> None:
        self.folder = folder
        self.python = create(folder)
        self.has_compiler = has_compiler

    def variables(self) -> dict[str, str]:
        """Those of every command: nothing leads to another package, nor to a compiler where there is to be none."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CXX")}
        return kept if self.has_compiler else kept | {"PATH": str(self.python.parent)}

    def try_to_run(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run python with the arguments, in the environment's folder or another one, and take its output."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=folder or self.folder,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        """Run python with the arguments, as `try_to_run` does; returns what it printed."""
        finished = self.try_to_run(*arguments, folder=folder)
        if finished.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} ended with status {finished.returncode}:\n{finished.stdout}")
        return finished.stdout

    def install(self, *packages: str) -> None:
        """Install with plain pip."""
        print(f"  pip install {' '.join(packages)}", flush=True)
        self.run(*PIP_INSTALL, *packages)

    def seconds_again(self, wheel: Path) -> float:
        """Install once more what is there, and tell how long that takes."""
        start = time.monotonic()
        self.install("--force-reinstall", "--no-deps", str(wheel))
        return time.monotonic() - start

    def check(self, has_binding: bool, route: str | None) -> None:
        """Compare what `info` says with what is expected, and verify some rows on each device.

        The commands are run where a user of a clone does: there Python itself would find the sources.
        """
        commands = self.python.parent
        hostcann = (str(commands / "hostcann"), "run", str(self.python)) if route else ()
        facts = json.loads(self.run(*hostcann, str(commands / "ascend-sample"), "info", "--json", folder=ROOT))
        built = facts["built"]["NPU binding (_npu.so)"]
        assert built == ("yes" if has_binding else "no"), facts
        served = re.match(r"\w+", facts["routes"].get("npu bfloat16", "")) if route else None
        assert (served.group() if served else None) == route, facts
        verify = (*hostcann, "-m", "ascend_sample", "verify", "--rows", "300", "--operator")
        for operator, device in itertools.product(OPERATORS, ("cpu", "npu") if route else ("cpu",)):
            report = self.run(*verify, operator, "--device", device)
            print(f"  verify {operator}, {device}: {report.strip().splitlines()[-2]}", flush=True)

    def test(self, folder: Path) -> None:
        """Run tests that lie where the project's own package does not."""
        finished = self.try_to_run(
            "-m", "pytest", "-q", "--allow-skips", "-p", "no:cacheprovider", *TESTS, folder=folder
        )
        print(f"  {finished.stdout.strip().splitlines()[-1]}", flush=True)
        if finished.returncode != 0:
            raise SystemExit(finished.stdout)


def pinned(package: str) -> str:
    """The requirement with the version that the project is developed with."""
    return f"{package}=={PINS[package]}"


def install_source(folder: Path) -> None:
    """With a compiler: torch alone, with torch_npu afterwards, and both from the beginning."""
    print("source, torch alone, torch_npu afterwards")
    environment = Environment(folder / "without")
    environment.install(pinned("torch"))
    environment.install(str(ROOT))
    environment.check(has_binding=False, route=None)
    environment.install(pinned("torch_npu"))
    environment.check(has_binding=False, route="cffi")

    print("source, torch and torch_npu")
    environment = Environment(folder / "with")
    environment.install(pinned("torch"), pinned("torch_npu"))
    environment.install(str(ROOT))
    environment.check(has_binding=True, route="aclnn")


def refuse_source(folder: Path) -> None:
    """Without a compiler, what is missing is named."""
    print("source, no compiler")
    environment = Environment(folder / "source", has_compiler=False)
    environment.install(pinned("torch"))
    finished = environment.try_to_run(*PIP_INSTALL, str(ROOT))
    assert finished.returncode != 0, finished.stdout
    assert "C++ compiler" in finished.stdout, finished.stdout


def install_wheel(folder: Path, torches: list[str]) -> None:
    """Without a compiler, with one torch after the other."""
    (wheel,) = BUILD.glob(f"*_{platform.machine()}.whl")
    tests = folder / "tests of wheel"
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, tests / name)
    shutil.copy(ROOT / "pyproject.toml", tests)
    for torch in torches:
        print(f"wheel, torch {torch}, no compiler")
        environment = Environment(folder / torch, has_compiler=False)
        environment.install(f"torch=={torch}", *map(pinned, TOOLS))
        environment.install(str(wheel))
        seconds = min(environment.seconds_again(wheel) for _ in range(2))
        print(f"  in {seconds:.1f} s", flush=True)
        assert seconds < MOST_SECONDS, seconds
        environment.check(has_binding=False, route=None)
        environment.test(tests)
        print("  " + "\n  ".join(TIMES.findall(environment.run("-m", "ascend_sample", "bench", "--batch", "64"))))
        shutil.rmtree(environment.folder)


def main() -> int:
    """Check what was asked for; ends with an error at the first thing that is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("source", "wheel"), help="one of them alone")
    parser.add_argument("--torches", default=",".join(TORCHES), help="of the wheel (all that it has a core for)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.only != "wheel":
            install_source(Path(made))
            refuse_source(Path(made))
        if options.only != "source":
            install_wheel(Path(made), options.torches.split(","))
    print("PASSED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
