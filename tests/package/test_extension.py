"""Which compiled core is loaded: that of the environment, or the one of a wheel that fits the torch."""

from __future__ import annotations

import re
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ascend_sample import _extension
from tests.support.user_process import run_python_warm


def test_a_wheel_has_a_core_for_each_minor_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was built here comes first; where nothing fits, the error says what there is."""
    monkeypatch.setattr(_extension, "_FOLDER", tmp_path)
    with pytest.raises(ImportError, match=r"_C\.so is missing from the package\. Run `pip install \.`"):
        _extension.core_path()
    for version in ("2_7", "2_13", "2_9"):
        (tmp_path / f"_C_torch_{version}.so").touch()
    for version in ("2.13.0", "2.13.1+cpu", "2.13.0a0+gitabc"):
        monkeypatch.setattr(torch, "__version__", version)
        assert _extension.core_path() == tmp_path / "_C_torch_2_13.so"
    for version in ("2.8.0", "2.1.3", "2.130.0"):
        monkeypatch.setattr(torch, "__version__", version)
        text = rf"for torch 2\.7, 2\.9, 2\.13, got torch {version}\. Install one of these"
        with pytest.raises(ImportError, match=text):
            _extension.core_path()
    (tmp_path / "_C.so").touch()
    assert _extension.core_path() == tmp_path / "_C.so"


def test_first_calls_from_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are registered once, and all of them before any thread goes on."""
    begun, ended = [], threading.Event()
    together = threading.Barrier(8)

    def load_slowly() -> bool:
        begun.append(threading.get_ident())
        time.sleep(0.1)
        ended.set()
        return True

    def call() -> bool:
        together.wait()
        return _extension.load_npu_if_imported() and ended.is_set()

    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    for name, value in {"_is_settled": False, "_npu_is_loaded": False, "_load_npu": load_slowly}.items():
        monkeypatch.setattr(_extension, name, value)
    with ThreadPoolExecutor(8) as threads:
        assert all(each.result() for each in [threads.submit(call) for _ in range(8)])
    assert len(begun) == 1


def test_the_threads_are_those_of_torch() -> None:
    """A second OpenMP runtime in the process would have others, and torch.set_num_threads would not reach them."""
    finished = run_python_warm("-c", "import ascend_sample; print(open('/proc/self/maps').read())")
    runtimes = {line.split()[-1] for line in finished.stdout.splitlines() if re.search("lib(gomp|omp|iomp)", line)}
    assert len(runtimes) == 1, runtimes
