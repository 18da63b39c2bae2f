"""How hostcann gets into CANN's place, and the real torch_npu on top of it. Each test starts programs of its own."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
from hostcann_programs import (
    LAST_MESSAGES,
    LIBRARY,
    command,
    needs_torch_npu,
    output,
    python,
    run,
    variables_of_run,
)

from hostcann._elf import exported_symbols
from hostcann._home import PACKAGE_HOME, prepare_home
from tests.support.user_process import run_command

# ---- activation ----


@needs_torch_npu
def test_activate_then_import_torch_npu() -> None:
    program = """
        import hostcann
        assert not hostcann.is_active()
        hostcann.activate(soc="Ascend910_9391", memory=1 << 30)
        assert hostcann.is_active()
        hostcann.activate()
        import torch, torch_npu
        hostcann.activate()
        assert torch.arange(6.).npu().cpu().tolist() == [0, 1, 2, 3, 4, 5]
        print(torch.npu.get_device_name(), torch.npu.mem_get_info()[1])
    """
    assert output(python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) == f"Ascend910_9391 {1 << 30}"


@needs_torch_npu
def test_run_gives_a_plain_import_torch_its_npu() -> None:
    program = "import torch; print(torch.npu.is_available(), torch.ones(3).npu().cpu().sum().item())"
    assert output(run(program)) == "True 3.0"


@pytest.mark.long
@needs_torch_npu
def test_env_prints_what_a_shell_needs() -> None:
    lines = output(command("env", "--soc", "Ascend910B1"))
    program = "import torch; print(torch.npu.get_device_name())"
    assert output(run_command("sh", "-c", f"{lines}\n{sys.executable} -c '{program}'")) == "Ascend910B1"


@pytest.mark.long
@needs_torch_npu
def test_importing_torch_npu_prints_nothing() -> None:
    program = "import torch, torch_npu; torch.npu.get_device_properties(0)"
    program += "; torch.npu.current_stream().record_event().synchronize()"  # the thread of torch_npu's queue has begun
    done = run_command(sys.executable, "-c", program, **variables_of_run(), HOSTCANN_STRICT="1")
    assert output(done, LAST_MESSAGES) == ""


def test_a_real_cann_in_reach_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "lib64" / "libascendcl.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF some other libascendcl")
    program = f"""
        import os
        import hostcann
        values = dict.fromkeys(("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"), {str(tmp_path)!r})
        for variable, value in (values | {{"LD_LIBRARY_PATH": {str(library.parent)!r}}}).items():
            os.environ[variable] = value
            try:
                hostcann.activate()
            except RuntimeError as error:
                assert f"there must be no real CANN in reach, found {library} ({{variable}})" in str(error), error
            else:
                raise AssertionError(variable)
            del os.environ[variable]
    """
    output(python(program))


WRONG = {
    "soc=''": "soc must be a SoC's name such as 'Ascend910B3', got ''",
    "soc=3": "soc must be a str, got int 3",
    "memory=0": "memory must be in [1, 9223372036854775807], got 0",
    "memory=2**64 + 5": "memory must be in [1, 9223372036854775807], got 18446744073709551621",
    "memory='2G'": "memory must be an int, got str '2G'",
    "memory=True": "memory must be an int, got bool True",
    "stream_mode='hasty'": "stream_mode must be one of normal, delayed, lazy or delayed:MILLISECONDS",
    "stream_mode='lazy:3'": "stream_mode must be one of",
    "stream_mode='delayed:'": "stream_mode must be one of",
    "stream_mode='delayed:60001'": "stream_mode must be one of",
    "stream_mode=3": "stream_mode must be a str, got int 3",
    "cann_version=''": "cann_version must be a version such as '9.0.0', got ''",
    "cann_version=9": "cann_version must be a str, got int 9",
    "without=['aclNoSuchThing']": "without must name symbols that hostcann's libraries export, got ['aclNoSuchThing']",
}


WRONG_AFTERWARDS = {
    "inject('mallok')": "site must be one of malloc, workspace",
    "inject(1)": "site must be a str, got int 1.",
    "inject('task', None)": "name must be a str, got NoneType None.",
    "inject('malloc', nth=0)": "nth must be in [1, 2147483647], got 0",
    "inject('malloc', count=2**31)": "count must be in [1, 2147483647], got",
    "inject('malloc', code=0)": "code must be in [1, 2147483647], got 0",
    "inject('task', message=b'x')": "message must be a str, got bytes",
    "set_stream_mode('hasty')": "mode must be 'normal'",
    "set_stream_mode(None)": "mode must be a str, got NoneType None.",
    "set_stream_mode('delayed', -1)": "delay_ms must be in [0, 60000], got -1",
    "set_memory_capacity(0)": "capacity must be in [1, 9223372036854775807], got 0",
    "set_memory_capacity(2**64 + 5)": "capacity must be in [1, 9223372036854775807]",
    "activate(soc='Ascend910B1')": "hostcann.activate: hostcann is active in this process already",
}


def test_what_is_refused_before_and_after_activation() -> None:
    """By name; a refused activation leaves the environment as it was."""
    program = f"""
        import os, sys, types
        import hostcann
        def error(call):
            try:
                eval(f"hostcann.{{call}}")
            except (RuntimeError, TypeError, ValueError) as raised:
                return str(raised)
            raise AssertionError(call)
        assert "hostcann must be active in this process" in error("violations()")
        sys.modules["torch_npu"] = types.ModuleType("torch_npu")
        assert "hostcann.activate: torch_npu must not be loaded yet" in error("activate()")
        del sys.modules["torch_npu"]
        before = dict(os.environ)
        for arguments, message in {WRONG!r}.items():
            owner = "hostcann: " if "without" in arguments else "hostcann.activate: "
            assert error(f"activate({{arguments}})").startswith(owner + message), arguments
            assert os.environ == before
        hostcann.activate()
        for call, message in {WRONG_AFTERWARDS!r}.items():
            assert message in error(call), call
        with hostcann.null_kernels(), hostcann.profile() as counted:
            pass
        print(hostcann.violations(), counted.launches, hostcann.live()["tensor"])
    """
    assert output(python(program)) == "[] {} 0"


# ---- the command line ----


def test_the_command_line_hands_on_the_exit_status_and_shows_what_there_is() -> None:
    assert command("run", "--", "sh", "-c", "exit 8").returncode == 8
    shown = output(command("info", "--symbols"))
    assert "libascendcl.so" in shown
    assert "\n  aclrtMalloc\n" in shown


def test_settings_that_hostcann_would_refuse_are_refused_first(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    for action in (["run", "--memory", "5X", "true"], ["profile", "--memory", "5X", "true"], ["env", "--memory", "5X"]):
        finished = command(*action, HOSTCANN_REPORT=str(report))
        assert (finished.returncode, finished.stdout) == (2, "")
        assert finished.stderr.startswith("hostcann: HOSTCANN_MEMORY must be a number of bytes")
        assert not report.exists()
    program = "import hostcann; hostcann.activate()"
    finished = python(program, HOSTCANN_DEVICES="none", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.stderr.endswith("HOSTCANN_DEVICES must be a number of devices, 1 to 64, got 'none'\n")


def test_strict_turns_a_violation_into_status_97_and_reports_it_where_the_command_was_started(tmp_path: Path) -> None:
    program = """
        import ctypes, os
        acl = ctypes.CDLL("libascendcl.so")
        acl.aclInit(None); acl.aclrtSetDevice(0)
        acl.aclrtSynchronizeStream(ctypes.c_void_p(8))
        os.chdir("/")
    """
    report = tmp_path / "report.json"
    assert run(program, "--strict", "--report", os.path.relpath(report)).returncode == 97
    assert json.loads(report.read_text())["violations"][0]["kind"] == "dead_stream"


# ---- an older CANN, and a package that cannot be written ----


@pytest.mark.long
def test_activating_brings_no_hidden_symbol_back() -> None:
    program = """
        import ctypes
        import hostcann
        hostcann.activate()
        acl = ctypes.CDLL("libascendcl.so")
        print([hasattr(acl, name) for name in ("aclrtStreamQuery", "aclrtMemset")])
    """
    assert output(run(program, "--without", "aclrtStreamQuery", TORCH_DEVICE_BACKEND_AUTOLOAD="0")) == "[False, True]"


def test_a_home_with_hidden_symbols_is_made_once_and_whole_and_belongs_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = prepare_home(["aclrtStreamQuery"])
    hidden = exported_symbols(LIBRARY) - exported_symbols(home / "lib64" / "libascendcl.so")
    assert hidden == {"aclrtStreamQuery"}
    assert (home / "lib64" / "libhccl.so").resolve() == PACKAGE_HOME / "lib64" / "libhccl.so"
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    whole = sorted(home.rglob("*"))
    for removed in (None, home / "opp", home / "lib64"):
        if removed is not None:
            shutil.rmtree(removed)
        assert prepare_home(["aclrtStreamQuery", "aclrtStreamQuery"]) == home
        assert sorted(home.rglob("*")) == whole
    assert list(home.parent.iterdir()) == [home]
    assert prepare_home(["aclrtMemset"]) != home
    home.parent.chmod(0o777)
    for make in (None, lambda: home.parent.touch(0o600), lambda: home.parent.symlink_to(tmp_path / "missing")):
        if make is not None:
            make()
        with pytest.raises(RuntimeError, match="must be a folder that only this user can write to"):
            prepare_home(["aclrtStreamQuery"])
        shutil.rmtree(home.parent) if make is None else home.parent.unlink()


def test_a_package_that_cannot_be_written_gets_a_temporary_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    monkeypatch.setattr("hostcann._home.PACKAGE_HOME", package)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"was not built\. Install hostcann again"):
        prepare_home()
    (package / "lib64").mkdir(parents=True)
    shutil.copy(LIBRARY, package / "lib64")
    with monkeypatch.context() as context:
        context.setattr("hostcann._home._make_folders", lambda home: False)
        home = prepare_home()
    assert home.parent.name.startswith("hostcann-")
    assert (home / "runtime").is_dir()
    assert (home / "lib64" / "libascendcl.so").resolve() == package / "lib64" / "libascendcl.so"
    assert prepare_home() == package
