"""The C++ interface that the operator libraries use."""

import os
import shlex
import subprocess
from pathlib import Path

from hostcann._home import PACKAGE_HOME
from hostcann._operators import INCLUDE
from tests.support.user_process import run_command


def test_the_interface_of_operators(tmp_path: Path) -> None:
    libraries, program = PACKAGE_HOME / "lib64", tmp_path / "operators"
    compiler = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++17", f"-I{INCLUDE}"]
    linked = [f"-L{libraries}", "-l:libascendcl.so", f"-Wl,-rpath,{libraries}"]
    source = str(Path(__file__).with_name("operators.cpp"))
    subprocess.run([*compiler, source, *linked, "-o", str(program)], cwd=tmp_path, check=True)
    done = run_command(str(program))
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stdout + done.stderr
