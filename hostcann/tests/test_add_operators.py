"""Operators of a vendor: the one of docs/operators.md, added to a copy of the package."""

import re
import shutil
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

import hostcann
from hostcann._elf import exported_symbols
from tests.support import cann
from tests.support.isolation import must_succeed, run_in_process
from tests.support.user_process import run_python_warm

PACKAGE = Path(hostcann.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "operators.md"
FLOAT32, ND = 0, 2


def copied_package(folder: Path) -> dict[str, str]:
    """Copies hostcann without operators of vendors; returns the environment in which it is found."""
    shutil.copytree(PACKAGE, folder / "hostcann", ignore=shutil.ignore_patterns("vendors", "__pycache__"))
    return {"PYTHONPATH": str(folder)}


def check_double(library: str) -> None:
    """In a process of its own: calls aclnnDouble, phase after phase."""
    cann.start()
    array = np.array([1.0, -2.5, 0.0], dtype=np.float32)
    shape, strides = cann.ffi.new("int64_t[]", [3]), cann.ffi.new("int64_t[]", [1])

    def tensor(block: Any) -> Any:
        return cann.aclnn.aclCreateTensor(shape, 1, FLOAT32, strides, 0, ND, shape, 1, block)

    blocks = [cann.malloc(array.nbytes) for _ in range(2)]
    cann.ok("aclrtMemcpy", blocks[0], array.nbytes, array.tobytes(), array.nbytes, cann.H2D)
    tensors = [tensor(block) for block in blocks]
    ffi = cffi.FFI()
    ffi.cdef("""
      int aclnnDoubleGetWorkspaceSize(void* self, void* out, uint64_t* workspace_size, void** executor);
      int aclnnDouble(void* workspace, uint64_t workspace_size, void* executor, void* stream);
    """)
    mine = ffi.dlopen(library)
    size, executor = ffi.new("uint64_t *"), ffi.new("void **")
    arguments = [ffi.cast("void *", cann.address_of(each)) for each in tensors]
    assert mine.aclnnDoubleGetWorkspaceSize(*arguments, size, executor) == 0, cann.recent_message()
    on = cann.stream()
    assert mine.aclnnDouble(ffi.NULL, size[0], executor[0], ffi.cast("void *", cann.address_of(on))) == 0
    cann.ok("aclrtSynchronizeStream", on)
    assert np.frombuffer(cann.read(blocks[1], array.nbytes), np.float32).tolist() == [2.0, -5.0, 0.0]
    for each in tensors:
        cann.aclnn.aclDestroyTensor(each)
    cann.check_violations()


def test_an_operator_of_the_documentation_is_added_and_runs(tmp_path: Path) -> None:
    variables = copied_package(tmp_path)
    (text,) = re.findall(r"\$ cat double\.cpp\n(.*?)\$ hostcann", PAGE.read_text(), re.DOTALL)
    source = tmp_path / "double.cpp"
    source.write_text(text)
    done = run_python_warm("-m", "hostcann", "add-operators", "mine", str(source), **variables)
    assert done.returncode == 0, done.stderr
    library = tmp_path / "hostcann" / "home" / "opp" / "vendors" / "mine" / "op_api" / "lib" / "libcust_opapi.so"
    assert done.stdout.strip() == str(library)
    assert (library.parents[3] / "config.ini").read_text() == "load_priority=mine\n"
    listed = run_python_warm("-m", "hostcann", "info", "--symbols", **variables).stdout
    assert listed.endswith("2 symbols\n  aclnnDouble\n  aclnnDoubleGetWorkspaceSize\n")
    must_succeed(run_in_process(check_double, [str(library)]))

    # A home without one of its symbols is an older package of the vendor.
    older = run_python_warm("-m", "hostcann", "env", "--without", "aclnnDouble", **variables)
    assert older.returncode == 0, older.stderr
    (home,) = re.findall(r"export HOSTCANN_HOME=(.*)", older.stdout)
    symbols = exported_symbols(Path(home) / library.relative_to(tmp_path / "hostcann" / "home"))
    assert "aclnnDouble" not in symbols
    assert "aclnnDoubleGetWorkspaceSize" in symbols

    # What does not compile leaves the operators that were there.
    source.write_text("int")
    done = run_python_warm("-m", "hostcann", "add-operators", "mine", str(source), **variables)
    assert done.returncode == 1
    assert "the sources must compile, but they do not" in done.stderr
    assert "double.cpp" in done.stderr
    assert [path.name for path in library.parent.iterdir()] == ["libcust_opapi.so"]


def test_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "some.cpp"
    source.touch()
    with pytest.raises(ValueError, match=r"vendor must consist of letters, digits and underscores, got '\.\./up'"):
        hostcann.add_operators("../up", [source])
    with pytest.raises(ValueError, match=r"sources must name files that exist, got \['.*no\.cpp'\]\. Give C\+\+ files"):
        hostcann.add_operators("mine", [source, tmp_path / "no.cpp"])
    with pytest.raises(ValueError, match=r"sources must name files that exist, got \[\]"):
        hostcann.add_operators("mine", [])
    monkeypatch.setattr("hostcann._operators.PACKAGE_HOME", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="a compiler must be on PATH, but no-such-compiler is not"):
        hostcann.add_operators("mine", [source])
    (tmp_path / "opp").rename(tmp_path / "was")
    (tmp_path / "opp").touch()
    with pytest.raises(RuntimeError, match="vendors must be a folder that can be written"):
        hostcann.add_operators("mine", [source])
