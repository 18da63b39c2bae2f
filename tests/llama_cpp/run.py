"""Compares what requests keep and draw with llama.cpp's own samplers (``make test-llama-cpp``).

PyPI has llama-cpp-python as sources alone: pip compiles it once, into a folder of its own under ``build/``, without the
parts of llama.cpp that can be left out. No model is needed. The tests print how many rows were equal, and how many not
for which of the reasons that docs/requests.md names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.environments import PIP_INSTALL, must, variables

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
BUILD: Final = ROOT / "build" / "llama_cpp"
PACKAGES: Final = BUILD / "packages"
TESTS: Final = ("filters_parity.py", "text_rules_parity.py", "draw_states_parity.py")
"""Not named test_*: every other run of pytest has no llama.cpp."""
LEFT_OUT: Final = ("MTMD_BUILD", "LLAVA_BUILD", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TOOLS")
CMAKE_ARGS: Final = " ".join(f"-D{option}=OFF" for option in (*LEFT_OUT, "LLAMA_BUILD_SERVER", "GGML_OPENMP"))


def install() -> None:
    """Compiles llama.cpp, and again only when the requirements have changed."""
    requirements, installed = HERE / "requirements.txt", BUILD / "requirements.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print("compiling llama.cpp: minutes", flush=True)
        shutil.rmtree(PACKAGES, ignore_errors=True)
        os.environ.setdefault("CMAKE_ARGS", CMAKE_ARGS)
        must(sys.executable, *PIP_INSTALL, "--no-deps", "--target", PACKAGES, "-r", requirements)
        shutil.copy(requirements, installed)


def environment() -> dict[str, str]:
    """The variables of a process that finds llama.cpp beside this project."""
    # torch would load torch_npu, which looks for CANN.
    return variables(BUILD, (ROOT, PACKAGES)) | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def passes(test: Path) -> bool:
    """Runs the tests of a file, and shows what they print."""
    options = ("-q", "-s", "-p", "no:cacheprovider", "--confcutdir", str(HERE), "-o", "timeout=3000")
    return subprocess.run((sys.executable, "-m", "pytest", *options, str(test)), env=environment()).returncode == 0


def main() -> int:
    """Run the tests, or where a command is given, that with llama.cpp beside this project."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_known_args(sys.argv[1:2])  # --help further on is the command's
    BUILD.mkdir(parents=True, exist_ok=True)
    install()
    if sys.argv[1:]:
        return subprocess.run((sys.executable, *sys.argv[1:]), env=environment()).returncode
    failed = [name for name in TESTS if not passes(HERE / name)]
    print(f"FAILED: {', '.join(failed)}" if failed else "PASSED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
