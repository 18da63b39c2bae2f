"""How hostcann gets into CANN's place, and the real torch_npu on top of it. Each test starts programs of its own."""

import json
import os
import shutil
import stat
import sys
import textwrap
from pathlib import Path

import pytest
from activation_programs import (
    LAST_MESSAGES,
    LIBRARY,
    needs_hostcann,
    needs_torch_npu,
    output,
    python,
    run,
    variables_of_run,
)

from ascend_sample.hostcann._elf import exported_symbols, hide_symbols
from ascend_sample.hostcann._home import PACKAGE_HOME, prepare_home
from tests.support.user_process import run_command, run_python_warm

pytestmark = needs_hostcann


# ---- activation ----


@needs_torch_npu
def test_activate_then_import_torch_npu():
    program = """
        from ascend_sample import hostcann
        assert not hostcann.is_active()
        hostcann.activate(soc="Ascend910_9391", memory=1 << 30)
        assert hostcann.is_active()
        hostcann.activate()
        import torch, torch_npu
        hostcann.activate()
        assert torch.arange(6.).npu().cpu().tolist() == [0, 1, 2, 3, 4, 5]
        print(torch.npu.get_device_name(), torch.npu.mem_get_info()[1])
    """
    assert output(run_command(sys.executable, "-c", textwrap.dedent(program))) == f"Ascend910_9391 {1 << 30}"


@needs_torch_npu
def test_run_gives_a_plain_import_torch_its_npu():
    program = "import torch; print(torch.npu.is_available(), torch.ones(3).npu().cpu().sum().item())"
    assert output(run(program)) == "True 3.0"
    assert output(run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) == "True 3.0"


@pytest.mark.long
@needs_torch_npu
def test_env_prints_what_a_shell_needs():
    lines = output(run_python_warm("-m", "ascend_sample.hostcann", "env", "--soc", "Ascend910B1"))
    program = "import torch; print(torch.npu.get_device_name())"
    assert output(run_command("sh", "-c", f"{lines}\n{sys.executable} -c '{program}'")) == "Ascend910B1"


@pytest.mark.long
@needs_torch_npu
def test_importing_torch_npu_prints_nothing():
    program = "import torch, torch_npu; torch.npu.get_device_properties(0)"
    program += "; torch.npu.current_stream().record_event().synchronize()"  # the thread of torch_npu's queue has begun
    done = run_command(sys.executable, "-c", program, **variables_of_run(), HOSTCANN_STRICT="1")
    assert output(done, LAST_MESSAGES) == ""


def test_what_hostcann_needs_and_cannot_do_twice():
    program = """
        import sys, types
        from ascend_sample import hostcann
        def error(call, **arguments):
            try:
                call(**arguments)
            except RuntimeError as raised:
                return str(raised)
        assert "hostcann must be active in this process" in error(hostcann.violations)
        sys.modules["torch_npu"] = types.ModuleType("torch_npu")
        assert "hostcann.activate: torch_npu must not be loaded yet" in error(hostcann.activate)
        del sys.modules["torch_npu"]
        hostcann.activate()
        expected = "hostcann.activate: hostcann is active in this process already"
        assert expected in error(hostcann.activate, soc="Ascend910B1")
    """
    output(python(program))


def test_a_real_cann_in_reach_is_refused(tmp_path):
    library = tmp_path / "lib64" / "libascendcl.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF some other libascendcl")
    program = f"""
        import os
        from ascend_sample import hostcann
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


def test_wrong_arguments_are_named_and_leave_the_environment_as_it_was():
    program = f"""
        import os
        from ascend_sample import hostcann
        before = dict(os.environ)
        for arguments, message in {WRONG!r}.items():
            try:
                eval(f"hostcann.activate({{arguments}})")
            except (TypeError if "must be a str" in message or "must be an int" in message else ValueError) as error:
                owner = "hostcann: " if "without" in arguments else "hostcann.activate: "
                assert str(error).startswith(owner + message), error
            else:
                raise AssertionError(arguments)
            assert os.environ == before
    """
    output(python(program))


def test_wrong_arguments_of_the_control_functions_are_named():
    program = """
        from ascend_sample import hostcann
        hostcann.activate()
        for message, call, *arguments in (
            ("site must be one of malloc, workspace", hostcann.inject, "mallok"),
            ("site must be a str, got int 1.", hostcann.inject, 1),
            ("name must be a str, got NoneType None.", hostcann.inject, "task", None),
            ("nth must be in [1, 2147483647], got 0", hostcann.inject, "malloc", "", 0),
            ("count must be in [1, 2147483647], got", hostcann.inject, "malloc", "", 1, None, None, 2**31),
            ("code must be in [1, 2147483647], got 0", hostcann.inject, "malloc", "", 1, 0),
            ("message must be a str, got bytes", hostcann.inject, "task", "", 1, None, b"x"),
            ("mode must be 'normal'", hostcann.set_stream_mode, "hasty"),
            ("mode must be a str, got NoneType None.", hostcann.set_stream_mode, None),
            ("delay_ms must be in [0, 60000], got -1", hostcann.set_stream_mode, "delayed", -1),
            ("delay_ms must be in [0, 60000], got", hostcann.set_stream_mode, "delayed", 2**32),
            ("capacity must be in [1, 9223372036854775807], got 0", hostcann.set_memory_capacity, 0),
            ("capacity must be in [1, 9223372036854775807]", hostcann.set_memory_capacity, 2**64 + 5),
        ):
            try:
                call(*arguments)
            except (TypeError, ValueError) as error:
                assert message in str(error), error
            else:
                raise AssertionError(message)
        with hostcann.null_kernels(), hostcann.profile() as counted:
            pass
        print(hostcann.violations(), counted.launches, hostcann.live()["tensor"])
    """
    assert output(python(program)) == "[] {} 0"


# ---- the command line ----


def test_the_command_line_hands_on_the_exit_status_and_shows_what_there_is():
    assert run_python_warm("-m", "ascend_sample.hostcann", "run", "sh", "-c", "exit 7").returncode == 7
    assert run_python_warm("-m", "ascend_sample.hostcann", "run", "--", "sh", "-c", "exit 8").returncode == 8
    shown = output(run_python_warm("-m", "ascend_sample.hostcann", "info", "--symbols"))
    assert "libascendcl.so" in shown
    assert "\n  aclrtMalloc\n" in shown


def test_the_command_line_refuses_settings_that_hostcann_would_refuse(tmp_path):
    report = tmp_path / "report.json"
    for action in (["run", "--memory", "5X", "true"], ["profile", "--memory", "5X", "true"], ["env", "--memory", "5X"]):
        finished = run_python_warm("-m", "ascend_sample.hostcann", *action, HOSTCANN_REPORT=str(report))
        assert (finished.returncode, finished.stdout) == (2, "")
        assert finished.stderr.startswith("hostcann: HOSTCANN_MEMORY must be a number of bytes")
        assert not report.exists()


def test_activating_refuses_settings_of_the_environment():
    program = "from ascend_sample import hostcann; hostcann.activate()"
    finished = run_python_warm("-c", program, HOSTCANN_DEVICES="none", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.stderr.endswith("HOSTCANN_DEVICES must be a number of devices, 1 to 64, got 'none'\n")


def test_strict_turns_a_violation_into_status_97_and_reports_it_where_the_command_was_started(tmp_path):
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


def test_hiding_a_symbol_hides_it_alone(tmp_path):
    target = tmp_path / "libascendcl.so"
    hide_symbols(LIBRARY, ["aclrtStreamQuery", "aclrtMemset"], target)
    before, after = exported_symbols(LIBRARY), exported_symbols(target)
    assert before - after == {"aclrtStreamQuery", "aclrtMemset"}
    assert "aclrtMemsetAsync" in after
    program = """
        import ctypes, sys
        acl = ctypes.CDLL(sys.argv[1])
        print([hasattr(acl, name) for name in ("aclrtStreamQuery", "aclrtMemset", "aclrtMemsetAsync")])
    """
    assert output(run_python_warm("-c", textwrap.dedent(program), str(target))) == "[False, False, True]"


def test_activating_brings_no_hidden_symbol_back():
    program = """
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # torch would load CANN first
        import ctypes
        from ascend_sample import hostcann
        hostcann.activate()
        acl = ctypes.CDLL("libascendcl.so")
        print([hasattr(acl, name) for name in ("aclrtStreamQuery", "aclrtMemset")])
    """
    assert output(run(program, "--without", "aclrtStreamQuery")) == "[False, True]"


def test_a_home_with_hidden_symbols_is_made_once_and_belongs_to_its_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = prepare_home(["aclrtStreamQuery"])
    again = prepare_home(["aclrtStreamQuery", "aclrtStreamQuery"])
    other = prepare_home(["aclrtMemset"])
    assert home == again != other
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    assert not (home / "lib64" / "libascendcl.so").is_symlink()
    assert (home / "lib64" / "libhccl.so").resolve() == PACKAGE_HOME / "lib64" / "libhccl.so"
    home.parent.chmod(0o777)
    for make in (None, lambda: home.parent.touch(0o600), lambda: home.parent.symlink_to(tmp_path / "missing")):
        if make is not None:
            make()
        with pytest.raises(RuntimeError, match="must be a folder that only this user can write to"):
            prepare_home(["aclrtStreamQuery"])
        shutil.rmtree(home.parent) if make is None else home.parent.unlink()


def test_a_temporary_home_that_lost_a_part_is_made_whole_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = prepare_home(["aclrtStreamQuery"])
    whole = sorted(home.rglob("*"))
    for removed in (home / "opp", home / "lib64"):
        shutil.rmtree(removed)
        assert prepare_home(["aclrtStreamQuery"]) == home
        assert sorted(home.rglob("*")) == whole
    (home / "lib64" / "libascendcl.so").unlink()
    prepare_home(["aclrtStreamQuery"])
    assert "aclrtStreamQuery" not in exported_symbols(home / "lib64" / "libascendcl.so")
    assert sorted(home.rglob("*")) == whole
    assert list(home.parent.iterdir()) == [home]


def test_a_package_that_cannot_be_written_gets_a_temporary_home(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "lib64").mkdir(parents=True)
    shutil.copy(LIBRARY, package / "lib64")
    monkeypatch.setattr("ascend_sample.hostcann._home.PACKAGE_HOME", package)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as context:
        context.setattr("ascend_sample.hostcann._home._make_folders", lambda home: False)
        home = prepare_home()
    assert home.parent.name.startswith("hostcann-")
    assert (home / "runtime").is_dir()
    assert (home / "lib64" / "libascendcl.so").resolve() == package / "lib64" / "libascendcl.so"
    with monkeypatch.context() as context:
        context.setattr(Path, "mkdir", refuse)
        with pytest.raises(PermissionError):
            prepare_home()
    assert prepare_home() == package


def test_an_unbuilt_hostcann_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr("ascend_sample.hostcann._home.PACKAGE_HOME", tmp_path)
    with pytest.raises(RuntimeError, match=r"was not built\. The wheel has none .*build_ext --inplace"):
        prepare_home()
