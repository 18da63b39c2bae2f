"""Runs programs in new processes that need not import torch first: forks of one that has imported nothing but it.

A process of its own is what many tests are about, and importing is most of the time that it takes. The server is
a Python without this package, without torch_npu and without hostcann, so that a fork sees each of them as new: it loads
their libraries, reads the environment and is judged at its end like any process. Where the environment names a home of
hostcann, its libraries are loaded, in place of LD_LIBRARY_PATH, which is read when a program starts, and then torch's
backends, as the import of torch would have.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED_FIRST = ("torch", "pytest", "torch.distributed._tensor.experimental", "torch.distributed.checkpoint")
"""What nearly every program of the tests imports, by itself or because torch_npu does."""
_OF_THE_SERVER = ("LD_PRELOAD", "OMP_NUM_THREADS", "ASAN_OPTIONS")
"""Variables that are read when a program starts: a fork has the server's."""
_UNKNOWN_TO_THE_SERVER = ("ASCEND", "HOSTCANN", "LD_LIBRARY_PATH", "PYTHONPATH")
_LOCK = threading.Lock()


def run_warm(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    seconds: int,
    first: tuple[str, ...] = IMPORTED_FIRST,
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run of a Python with these arguments gives, without the time to import torch.

    Args:
        arguments: `-c CODE ...`, `-m MODULE ...` or `FILE ...`.
        environment: all variables of the process, of which PYTHONPATH is obeyed.
        folder: where it runs.
        seconds: after which it is killed by SIGALRM.
        first: the modules that it finds imported.

    Raises:
        ValueError: a variable is another than here that a fork does not read.
    """
    for name in _OF_THE_SERVER:
        if environment.get(name) != os.environ.get(name):
            raise ValueError(f"{name} is read when a program starts, so it must stay as it is for a fork")
    with tempfile.TemporaryDirectory() as outputs:
        stdout, stderr = Path(outputs) / "stdout", Path(outputs) / "stderr"
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "seconds": seconds,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        with _LOCK:
            status = _ask(_server(os.getpid(), first), request)
        return subprocess.CompletedProcess(list(arguments), status, stdout.read_text(), stderr.read_text())


@functools.cache
def _server(owner: int, first: tuple[str, ...]) -> subprocess.Popen[str]:
    """The server of this process with these modules; it ends with its standard input."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_UNKNOWN_TO_THE_SERVER)}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [sys.executable, __file__, *first]
    server = subprocess.Popen(
        command, env=environment, cwd="/", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(server.communicate)
    return server


def _ask(server: subprocess.Popen[str], request: dict[str, Any]) -> int:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise RuntimeError(f"the server of warm processes has ended with status {server.wait()}")
    return int(answer)


# ---- in the server ----


def serve() -> dict[str, Any] | None:
    """Answers each request with the exit status of a fork; in a fork, returns what it shall become."""
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Runs the program in this fork, which then ends as a program does."""
    signal.alarm(request["seconds"])
    for descriptor, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first, *others = request["arguments"]
    sys.path[0:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if "HOSTCANN_HOME" in os.environ:
        load_hostcann(Path(os.environ["HOSTCANN_HOME"]))
    if first == "-c":
        sys.argv = ["-c", *others[1:]]
        sys.path.insert(0, "")
        exec(compile(others[0], "<string>", "exec"), vars(_fresh_main()))
    elif first == "-m":
        sys.argv = others
        sys.path.insert(0, os.getcwd())
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *others]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


def load_hostcann(home: Path) -> None:
    """What the dynamic linker and the import of torch do in a program that is started with hostcann."""
    import torch

    from hostcann._home import library_paths

    for library in library_paths(home):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    torch._import_device_backends()


def _fresh_main() -> Any:
    """A module __main__ in place of this one."""
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    return main


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each fork, when it ends, walks and thereby copies all that was imported
    if (wanted := serve()) is not None:
        become(wanted)
