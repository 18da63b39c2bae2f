"""Installs the package with plain ``pip install`` in environments of its own, as a user does (``make test-install``).

Each environment is checked for what was built and for the route that serves an NPU's tensors on hostcann:

- torch alone: no binding is built. torch_npu is installed afterwards, and is then served through cffi.
- torch and torch_npu: the binding is built against it, although pip builds in isolation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.environments import PINS, PIP_INSTALL, ROOT, create


class Environment:
    """A virtual environment, used from outside the project's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = create(folder)

    def run(self, *arguments: str) -> str:
        """Run python with the arguments; returns what it printed."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        finished = subprocess.run(
            [self.python, *arguments], cwd=self.folder, env=variables, stdout=subprocess.PIPE, text=True
        )
        if finished.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} ended with status {finished.returncode}:\n{finished.stdout}")
        return finished.stdout

    def install(self, *packages: str) -> None:
        """Install with plain pip."""
        print(f"  pip install {' '.join(packages)}", flush=True)
        self.run(*PIP_INSTALL, *packages)

    def check(self, has_binding: bool, route: str | None) -> None:
        """Compare what `info` says with what is expected, and verify some rows on each device."""
        hostcann = ("-m", "ascend_sample.hostcann", "run", str(self.python)) if route else ()
        facts = json.loads(self.run(*hostcann, "-m", "ascend_sample", "info", "--json"))
        built = facts["built"]["NPU binding (_npu.so)"]
        assert built == ("yes" if has_binding else "no"), facts
        served = re.match(r"\w+", facts["routes"].get("npu bfloat16", "")) if route else None
        assert (served.group() if served else None) == route, facts
        for device in ("cpu", "npu") if route else ("cpu",):
            report = self.run(*hostcann, "-m", "ascend_sample", "verify", "--device", device, "--rows", "300")
            print(f"  verify {device}: {report.strip().splitlines()[-2]}", flush=True)


def pinned(package: str) -> str:
    """The requirement with the version that the project is developed with."""
    return f"{package}=={PINS[package]}"


def main() -> int:
    """Check both environments; ends with an error at the first thing that is not as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        print("torch alone, torch_npu afterwards")
        environment = Environment(Path(folder) / "without")
        environment.install(pinned("torch"))
        environment.install(str(ROOT))
        environment.check(has_binding=False, route=None)
        environment.install(pinned("torch_npu"))
        environment.check(has_binding=False, route="cffi")

        print("torch and torch_npu")
        environment = Environment(Path(folder) / "with")
        environment.install(pinned("torch"), pinned("torch_npu"))
        environment.install(str(ROOT))
        environment.check(has_binding=True, route="aclnn")
    print("PASSED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
