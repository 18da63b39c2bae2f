"""Where CANN's functions are looked for, and in which order."""

import ctypes.util
import os
import shutil
from pathlib import Path

import pytest

from ascend_sample.npu import libraries

BARE = ["libopapi.so", *(f"libaclnn_{name}.so" for name in ("ops_infer", "ops_train", "math", "sparse", "fft", "rand"))]
"""What torch_npu asks everywhere, in its order. Source: op-plugin, GetOpApiFuncAddr, 7.0 to 26.1."""
FUNCTION = "cbrtl"
"""Any function of the C mathematics library, which stands in for an operator library here."""


def mathematics_library() -> Path:
    """The file that the process has mapped."""
    name = ctypes.util.find_library("m")
    ctypes.CDLL(name)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in lines if line.endswith(f"/{name}")))


def install(library: Path) -> Path:
    """A library at this place that exports FUNCTION."""
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(mathematics_library(), library)
    return library


def custom_library(package: Path) -> Path:
    """The place of a custom operator package's library."""
    return package / "op_api" / "lib" / "libcust_opapi.so"


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty installation that the environment points to: ``home`` and ``opp``."""
    for variable, folder in (("ASCEND_HOME_PATH", "home"), ("ASCEND_OPP_PATH", "opp")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
    return tmp_path


def name_vendors(cann: Path, line: str) -> None:
    """Writes the vendors' configuration."""
    configuration = cann / "opp" / "vendors" / "config.ini"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text(f"[vendors]\n{line}\n")


def test_without_operator_packages(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare installation; one whose vendors have no priorities; none."""
    assert libraries.operator_libraries() == BARE
    install(custom_library(cann / "opp" / "vendors" / "alpha"))
    name_vendors(cann, "something_else=alpha")
    assert libraries.operator_libraries() == BARE
    for variable in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(variable)
    assert libraries.operator_libraries() == BARE


def test_order(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [install(custom_library(cann / name)) for name in ("second", "first")]
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"{cann}/second::{cann}/absent:{cann}/first")
    vendors = [install(custom_library(cann / "opp" / "vendors" / name)) for name in ("zeta", "alpha")]
    install(custom_library(cann / "opp" / "vendors" / "not listed"))
    name_vendors(cann, "load_priority=zeta, missing,alpha")
    groups = [install(cann / "home" / "lib64" / f"libopapi_{name}.so") for name in ("math", "nn")]
    assert libraries.operator_libraries() == [*map(str, (*own, *vendors, *groups)), *BARE]


def test_configuration_with_words_in_another_encoding(cann: Path) -> None:
    library = install(custom_library(cann / "opp" / "vendors" / "alpha"))
    (cann / "opp" / "vendors" / "config.ini").write_bytes("# \u5382\u5546\nload_priority=alpha\n".encode("gbk"))
    assert libraries.operator_libraries() == [str(library), *BARE]


def test_folders_that_cannot_be_entered(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, or with a name that is too long: torch_npu passes them over too, and nothing may be imported
    otherwise. Root may enter every folder, so the system is made to refuse.
    """
    library = install(custom_library(cann / "own"))
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"{cann / ('x' * 300)}:{cann / 'private'}:{cann / 'own'}")
    name_vendors(cann, "load_priority=alpha")
    stat, read_text = Path.stat, Path.read_text

    def refused(path: Path) -> Path:
        if "private" in path.parts or path.name == "config.ini":
            raise PermissionError(13, "Permission denied", str(path))
        return path

    monkeypatch.setattr(Path, "stat", lambda path, **options: stat(refused(path), **options))
    monkeypatch.setattr(Path, "read_text", lambda path, *arguments, **options: read_text(refused(path), **options))
    assert libraries.operator_libraries() == [str(library), *BARE]


def test_library_of_another_user_is_not_loaded(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(custom_library(cann / "own"))
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(cann / "own"))
    assert libraries.operator_libraries() == [str(library), *BARE]
    somebody = 4242
    if os.getuid() == 0:
        os.chown(library, somebody, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: somebody)
    assert libraries.operator_libraries() == BARE


def test_where_a_function_is_looked_for(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first library that has it counts; where none has, each is named, with the loader's own words."""
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"{cann}/broken:{cann}/good")
    broken, good = custom_library(cann / "broken"), install(custom_library(cann / "good"))
    broken.parent.mkdir(parents=True)
    broken.write_text("not a library")
    assert libraries.find_operator_symbol(FUNCTION) == libraries.Symbol(FUNCTION, str(good))
    monkeypatch.setattr(libraries, "_loader", libraries.ffi.dlopen(None))  # in which nothing was looked up yet
    with pytest.raises(NotImplementedError) as caught:
        libraries.find_operator_symbol("aclnnNoSuchOperator")
    text = str(caught.value)
    assert text.startswith("aclnnNoSuchOperator was not found in any of: ")
    for part in (f"{broken} ({broken}: ", f"{good} (does not export it)", "libopapi.so (", "Install a CANN toolkit"):
        assert part in text


def test_missing_runtime_function() -> None:
    with pytest.raises(NotImplementedError, match=r"aclrtNoSuchFunction was not found in any of: libascendcl\.so \("):
        libraries.find_runtime_symbol("aclrtNoSuchFunction")
