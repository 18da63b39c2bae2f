"""`info` repeats which build of an operator CANN's own files say there is, and guesses nothing."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from ascend_sample import info
from ascend_sample.npu import libraries, packages
from ascend_sample.npu.operators import SAMPLE, SAMPLE_V2

KERNELS = "op_impl/ai_core/tbe/kernel/config"
OF_9_1 = 'Version=9.1.0\nversion_dir=cann\nrequired_package_runtime_version=">=8.5"\ntimestamp=20260709_232316123\n'
SAID_OF_9_1 = "Version=9.1.0, version_dir=cann, timestamp=20260709_232316123"


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty installation that the environment points to, as set_env.sh does."""
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path / "opp"))
    return tmp_path


def install(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_package_of_operators(cann: Path) -> None:
    """From CANN 8.5 on. The second operator has a kernel for the SoC, and the first one none."""
    file = install(cann / "share/info/ops_nn/version.info", OF_9_1)
    install(cann / "share/info/ops_math/version.info", "Version=9.0.0\n")
    kernels = cann / "opp/built-in" / KERNELS
    for soc in ("ascend950", "ascend910b"):
        install(kernels / soc / "ops_nn/top_k_top_p_sample_v2.json")
    library = str(cann / "lib64/libopapi_nn.so")
    said = f"{SAID_OF_9_1} in {file}; "
    assert packages.build_of(SAMPLE_V2, library) == f"{said}kernels for ascend910b, ascend950 in {kernels}"
    assert packages.build_of(SAMPLE, library) == f"{said}no top_k_top_p_sample.json in {kernels}"


def test_a_cann_in_one_library(cann: Path) -> None:
    """Before 8.5: kernels are a package of their own, here of another version, and lie a folder higher."""
    operators = install(cann / "opp/version.info", "Version=8.3.0.1.200\nversion_dir=8.3.RC1\n")
    kernels = install(cann / "opp_kernel/version.info", "Version=8.3.T5.0.B028\nadk_version=8.3.T5.0.B028\n")
    config = cann / "opp/built-in" / KERNELS
    install(config / "ascend910_93/top_k_top_p_sample.json")
    assert packages.build_of(SAMPLE, "libopapi.so") == (
        f"Version=8.3.0.1.200, version_dir=8.3.RC1 in {operators}; Version=8.3.T5.0.B028 in {kernels}; "
        f"kernels for ascend910_93 in {config}"
    )


def test_a_custom_package(cann: Path) -> None:
    """It has its own file and kernels, whatever CANN's are."""
    install(cann / "share/info/ops_nn/version.info", OF_9_1)
    install(cann / "opp/built-in" / KERNELS / "ascend950/ops_nn/top_k_top_p_sample.json")
    package = cann / "opp/vendors/custom"
    file = install(package / "version.info", "custom_opp_compiler_version=9.0.0\n")
    install(package / KERNELS / "ascend910b/top_k_top_p_sample.json")
    assert packages.build_of(SAMPLE, str(package / "op_api/lib/libcust_opapi.so")) == (
        f"custom_opp_compiler_version=9.0.0 in {file}; kernels for ascend910b in {package / KERNELS}"
    )


def test_what_is_not_said(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are absent, empty, or not for this user; variables that are not set. Root may read every file."""
    file = install(cann / "share/info/ops_nn/version.info", "\n")
    build_of = functools.partial(packages.build_of, SAMPLE, str(cann / "lib64/libopapi_nn.so"))
    assert build_of().startswith(f"no version in {file}; ")
    for error, reason in ((PermissionError(13, "Permission denied"), "Permission denied"), (None, "No such file")):
        with monkeypatch.context() as patch:
            if error is None:
                file.unlink()
            else:
                patch.setattr(Path, "read_text", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
            assert build_of().startswith(f"{file} cannot be read ({reason}")
    for variable in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(variable)
    assert packages.build_of(SAMPLE, "libopapi.so").startswith("$ASCEND_OPP_PATH/version.info cannot be read (")
    assert packages.build_of_cann().startswith("$ASCEND_HOME_PATH/share/info/runtime/version.info cannot be read (")


def test_info_says_it_of_the_library_that_serves(npu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is the emulated one, by another path: a package with a file."""
    found, _ = libraries.find_operator(SAMPLE)
    library = install(tmp_path / "op_api/lib/libcust_opapi.so")
    library.unlink()
    library.symlink_to(found.library)
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(tmp_path))
    file = install(tmp_path / "version.info", OF_9_1)
    facts = info.collect()["npu"]
    for operator in (SAMPLE, SAMPLE_V2):
        assert facts[operator.name] == str(library)
        assert facts[f"{operator.name} build"].startswith(f"{SAID_OF_9_1} in {file}; ")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    file = install(tmp_path / "share/info/runtime/version.info", OF_9_1)
    assert info.collect()["npu"]["CANN build"] == f"{SAID_OF_9_1} in {file}"
