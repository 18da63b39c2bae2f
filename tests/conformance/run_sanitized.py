"""Runs the conformance suite on a hostcann built with AddressSanitizer and UndefinedBehaviorSanitizer.

    python tests/conformance/run_sanitized.py              # hostcann at its C interface: no torch in the process
    python tests/conformance/run_sanitized.py --binding    # and the compiled binding, through torch_npu

The build goes to build/sanitize and leaves the ordinary one alone. The run fails when a test fails, when a sanitizer
reports anything, and when memory leaks whose allocation went through one of the project's libraries. Python and its
extensions leak on purpose at exit; a suppression by their names would also hide every allocation that they asked
hostcann for, so the leak reports are read here instead.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"
PACKAGE = BUILD / "lib"
REPORTS = BUILD / "reports"
SANITIZERS = "address,undefined"
FLAGS = (f"-fsanitize={SANITIZERS}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-g1")

# A frame names its source file where it has line numbers, else its library.
OWN_CODE = re.compile(rf"{re.escape(str(ROOT))}/(?:hostcann/)?csrc/|\({re.escape(str(PACKAGE))}/")
LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*?(?=^\s*$)", re.MULTILINE | re.DOTALL)
FINDING = re.compile(
    r"ERROR: AddressSanitizer|runtime error:|AddressSanitizer: CHECK failed|LeakSanitizer has encountered"
)


def build(binding: bool) -> None:
    """Compiles hostcann and its vendor's operators, and the binding where it is wanted, with setup.py's own flags."""
    variables = os.environ | {"HOSTCANN_SANITIZE": SANITIZERS, "ASCEND_SAMPLE_SANITIZE": SANITIZERS}
    variables |= {"CXXFLAGS": " ".join(FLAGS), "PYTHONPATH": str(PACKAGE), "MAX_JOBS": os.environ.get("MAX_JOBS", "2")}
    for folder in (ROOT / "hostcann", *([ROOT] if binding else [])):
        places = (
            "--build-base",
            BUILD / folder.name,
            "--build-lib",
            PACKAGE,
            "--build-temp",
            BUILD / folder.name / "o",
        )
        command = [sys.executable, "setup.py", "--quiet", "build", *map(str, places)]
        subprocess.run(command, cwd=folder, env=variables, check=True)
    sources = sorted(map(str, (ROOT / "csrc" / "emulated_operators").glob("*.cpp")))
    command = [sys.executable, "-m", "hostcann", "add-operators", "ascend_sample", *sources]
    subprocess.run(command, cwd=PACKAGE, env=variables, check=True)


def environment() -> dict[str, str]:
    """What makes an uninstrumented Python run instrumented libraries, and write the reports to files."""
    compiler = os.environ.get("CXX", "g++")

    def library(name: str) -> str:
        return subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()

    log = f"log_path={REPORTS / 'report'}"
    return os.environ | {
        # libstdc++ too: the sanitizer looks for the functions that it wraps before Python has loaded any C++.
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        # A memory error aborts; leaks alone leave the exit status as it is. Where a library's thread-local memory lies,
        # the sanitizer guesses from what lies before it, and follows a wrong guess into nowhere: it is not to guess.
        "ASAN_OPTIONS": f"{log}:abort_on_error=1:detect_leaks=1:strict_string_checks=1:check_initialization_order=1"
        ":intercept_tls_get_addr=0",
        "LSAN_OPTIONS": "exitcode=0",
        "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
        # Objects in Python's own arenas would hide the pointers that they hold from the leak search.
        "PYTHONMALLOC": "malloc",
        "ASCEND_SAMPLE_CONFORMANCE_HOME": str(PACKAGE / "hostcann" / "home"),
    }


def findings() -> list[str]:
    """The parts of the reports that are about the project's code."""
    found = []
    for path in sorted(REPORTS.iterdir()):
        text = path.read_text(errors="replace") + "\n\n"
        if FINDING.search(text):
            found.append(f"{path.name}:\n{text}")
        found += [f"{path.name}:\n{leak.group()}" for leak in LEAK.finditer(text) if OWN_CODE.search(leak.group())]
    return found


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binding", action="store_true", help="also build the binding and call it through torch_npu")
    parser.add_argument("pytest_arguments", nargs="*", help="passed to pytest, after --")
    options = parser.parse_args()

    build(options.binding)
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    suite = [sys.executable, "-m", "pytest", "-q", "--confcutdir", str(Path(__file__).parent)]
    commands = [(ROOT, [*suite, *(options.pytest_arguments or [str(Path(__file__).parent)])])]
    if options.binding:
        script = Path(__file__).parent / "binding_smoke.py"
        # From the instrumented package's folder: -m looks into the current one first.
        commands.append((PACKAGE, [sys.executable, "-m", "hostcann", "run", sys.executable, str(script)]))
    failed = False
    for folder, command in commands:
        variables = {
            "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT)]),
            "ASCEND_SAMPLE_EXPECTED_PACKAGE": str(PACKAGE),
        }
        status = subprocess.run(command, cwd=folder, env=environment() | variables, check=False)
        failed |= status.returncode != 0
    found = findings()
    print("\n".join(found))
    print(f"sanitizers ({SANITIZERS}): {len(found)} findings, tests {'failed' if failed else 'passed'}")
    return 1 if failed or found else 0


if __name__ == "__main__":
    sys.exit(main())
