"""Builds the programs of this folder with the kernel's core, free of torch and Python.

    python tests/cpu/build_programs.py native              # with the package's own objects, as `make build` left them
    python tests/cpu/build_programs.py address thread      # with sanitizers
    python tests/cpu/build_programs.py aarch64             # by Debian's cross compiler, linked statically

Everything goes to build/cpu/VARIANT; ninja builds what has changed. The flags of each source are those of
csrc/cpu/flags.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "csrc"
FOLDER = Path(__file__).parent
CORE_OBJECTS = "the core's"
PACKAGE_OBJECTS = ROOT / "build" / "objects" / "_C"
_ORACLE = ("oracle.cpp", "oracle_judge.cpp", "oracle_ranking.cpp", "oracle_row.cpp")
_CASE = ("fuzz_case.cpp", "fuzz_edits.cpp", "placed_case.cpp")
_FUZZ = ("fuzz.cpp", "fuzzer.cpp", *_CASE, *_ORACLE)
PROGRAMS = {
    "fuzz": (*_FUZZ, CORE_OBJECTS),
    "faulty_fuzz": (*_FUZZ, "faulty_core.cpp", CORE_OBJECTS),
    "allocations": ("allocations.cpp", *_CASE, CORE_OBJECTS),
}
_COMPILER = os.environ.get("CXX", "g++")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Variant:
    """A way to build.

    Attributes:
        name: of its folder.
        machine: what it is for.
        compiler: the command.
        compile_flags: before those of flags.json.
        link_flags: the linker's.
        last_flags: after those of flags.json.
        core_objects: the folder of the core's objects, where they are there already.
    """

    name: str
    machine: str
    compiler: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    last_flags: tuple[str, ...] = ()
    core_objects: Path | None = None


def _sanitized(name: str, sanitizers: str) -> Variant:
    flags = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    # Instrumented code takes twice as long to compile at -O3.
    return Variant(name, platform.machine(), _COMPILER, ("-g1", *flags), flags, last_flags=("-O1",))


NATIVE = Variant("native", platform.machine(), _COMPILER, ("-O2", "-g1"), core_objects=PACKAGE_OBJECTS)
ADDRESS = _sanitized("address", "address,undefined")
THREAD = _sanitized("thread", "thread")
AARCH64 = Variant("aarch64", "aarch64", "aarch64-linux-gnu-g++", ("-O2", "-g1"), ("-static",))
VARIANTS = {variant.name: variant for variant in (NATIVE, ADDRESS, THREAD, AARCH64)}


def core_sources() -> list[Path]:
    """The sources of the kernel that are free of torch."""
    return sorted((CORE / "cpu").glob("*.cpp"))


def package_object(source: Path) -> Path:
    """What setup.py made of one of the kernel's sources, in place."""
    return PACKAGE_OBJECTS / source.stem / source.relative_to(ROOT).with_suffix(".o")


def build(variant: Variant, programs: tuple[str, ...] = ("fuzz",), jobs: int = 1) -> Path:
    """Builds programs.

    Args:
        variant: how.
        programs: names in PROGRAMS.
        jobs: compilers at a time.

    Returns:
        The folder with the programs.

    Raises:
        RuntimeError: the compiler or the package's objects are missing, or the compiler fails; the message holds what
            it says.
    """
    if shutil.which(variant.compiler) is None:
        remedy = " On Debian: apt-get install g++-aarch64-linux-gnu." if variant is AARCH64 else " Set CXX."
        raise RuntimeError(f"the compiler of variant {variant.name}, {variant.compiler}, is not installed.{remedy}")
    if variant.core_objects is not None and not variant.core_objects.is_dir():
        raise RuntimeError(f"{variant.core_objects} must hold the kernel's objects, and is not there. Run make build.")
    folder = ROOT / "build" / "cpu" / variant.name
    folder.mkdir(parents=True, exist_ok=True)
    ninja = [sys.executable, "-m", "ninja", "-C", str(folder), "-j", str(jobs), "--quiet", *programs]
    with (folder / "lock").open("w") as lock:  # of several processes one builds and the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "build.ninja").write_text(_rules(variant))
        run = subprocess.run(ninja, capture_output=True, text=True, check=False)
    if run.returncode != 0 or "warning:" in run.stdout:
        raise RuntimeError(f"building {', '.join(programs)} ({variant.name}) failed:\n{run.stdout}{run.stderr}")
    return folder


def _rules(variant: Variant) -> str:
    """The ninja file of a variant."""
    flags = json.loads((CORE / "cpu" / "flags.json").read_text())
    own_flags = flags.get(variant.machine, {})
    # What the programs compute is not contracted either, so that all machines try the same rows.
    common = ["-std=c++20", "-ffp-contract=off", *variant.compile_flags, *_WARNINGS, f"-I{CORE}", "-pthread"]
    lines = [
        f"compiler = {variant.compiler}",
        "rule compile",
        "  command = $compiler $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = $compiler $in -o $out {' '.join(variant.link_flags)} -pthread",
    ]
    own_files = {name for names in PROGRAMS.values() for name in names if name != CORE_OBJECTS}
    sources = {FOLDER / name: [] for name in sorted(own_files)}
    if variant.core_objects is None:
        sources |= {source: [*flags["all"], *own_flags.get(source.name, [])] for source in core_sources()}
    for source, source_flags in sources.items():
        lines += [
            f"build {source.stem}.o: compile {source}",
            f"  flags = {' '.join([*common, *source_flags, *variant.last_flags])}",
        ]
    for program, names in PROGRAMS.items():
        objects = [f"{Path(name).stem}.o" for name in names if name != CORE_OBJECTS]
        if CORE_OBJECTS in names:
            made = (lambda source: f"{source.stem}.o") if variant.core_objects is None else package_object
            is_replaced = "faulty_core.cpp" in names
            objects += [str(made(each)) for each in core_sources() if not (is_replaced and each.stem == "targets")]
        lines.append(f"build {program}: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", choices=sorted(VARIANTS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    for name in options.variants:
        print(build(VARIANTS[name], jobs=options.jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
