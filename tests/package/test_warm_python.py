"""The processes of tests/support/warm_python.py end as programs do, and know nothing of each other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.warm_python import run_warm


def run(code: str, *arguments: str, seconds: int = 100, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("HOSTCANN", "ASCEND")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return run_warm(["-c", code, *arguments], clean | variables, Path("/"), seconds)


def test_nothing_of_the_project_is_imported_before() -> None:
    names = run(
        "import sys; print({name.split('.')[0] for name in sys.modules} & {'ascend_sample', 'torch_npu', 'torch'})"
    )
    assert (names.stdout, names.stderr, names.returncode) == ("{'torch'}\n", "", 0)
    assert "libascendcl" not in run("print(open('/proc/self/maps').read())").stdout


def test_arguments_environment_and_folder() -> None:
    code = "import os, sys; print(sys.argv, os.environ.get('ASCEND_OF_A_TEST'), os.getcwd())"
    assert run(code, "a", ASCEND_OF_A_TEST="b").stdout == "['-c', 'a'] b /\n"
    assert run(code).stdout == "['-c'] None /\n", "the process before has left nothing"


def test_c_libraries_read_the_environment() -> None:
    code = (
        "import ctypes; get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p; print(get(b'ASCEND_OF_A_TEST'))"
    )
    assert run(code, ASCEND_OF_A_TEST="b").stdout == "b'b'\n"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("assert False, 'why'", 1, "AssertionError: why"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import atexit, os; atexit.register(lambda: os._exit(9))", 9, ""),
    ],
)
def test_the_end_is_that_of_the_program(code: str, status: int, said: str) -> None:
    finished = run(code)
    assert finished.returncode == status
    assert said in finished.stderr


def test_a_program_that_hangs_is_killed() -> None:
    assert run("import time; time.sleep(60)", seconds=1).returncode == -signal.SIGALRM


def test_a_variable_that_a_fork_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="LD_PRELOAD is read when a program starts"):
        run("pass", LD_PRELOAD="libm.so.6")
