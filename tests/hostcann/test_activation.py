"""How hostcann gets into CANN's place, and the real torch_npu on top of it. Each test starts programs of its own."""

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from activation_programs import (
    LAST_MESSAGES,
    LIBRARY,
    execute,
    needs_hostcann,
    needs_torch_npu,
    output,
    python,
    run,
    variables_of_run,
    warm,
)

from ascend_sample.hostcann._elf import exported_symbols, hide_symbols
from ascend_sample.hostcann._home import PACKAGE_HOME, prepare_home

pytestmark = needs_hostcann


def stand_in_for_real_cann(folder: Path) -> Path:
    library = folder / "lib64" / "libascendcl.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF some other libascendcl")
    return folder


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
    assert output(execute(sys.executable, "-c", textwrap.dedent(program))) == f"Ascend910_9391 {1 << 30}"


@needs_torch_npu
def test_run_gives_a_plain_import_torch_its_npu():
    program = "import torch; print(torch.npu.is_available(), torch.ones(3).npu().cpu().sum().item())"
    assert output(run(program)) == "True 3.0"
    assert output(run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) == "True 3.0"


@needs_torch_npu
def test_env_prints_what_a_shell_needs():
    lines = output(warm("-m", "ascend_sample.hostcann", "env", "--soc", "Ascend910B1"))
    program = "import torch; print(torch.npu.get_device_name())"
    assert output(execute("sh", "-c", f"{lines}\n{sys.executable} -c '{program}'")) == "Ascend910B1"


@needs_torch_npu
def test_importing_torch_npu_prints_nothing():
    program = "import torch, torch_npu; torch.npu.get_device_properties(0)"
    program += "; torch.npu.current_stream().record_event().synchronize()"  # the thread of torch_npu's queue has begun
    done = execute(sys.executable, "-c", program, **variables_of_run(), HOSTCANN_STRICT="1")
    assert output(done, LAST_MESSAGES) == ""


def test_settings_cannot_change_once_it_is_active():
    done = python("""
        from ascend_sample import hostcann
        hostcann.activate()
        hostcann.activate(soc="Ascend910B1")
    """)
    assert "RuntimeError: hostcann.activate: hostcann is active in this process already" in done.stderr


@needs_torch_npu
def test_torch_npu_must_not_be_loaded_before():
    done = python("""
        from ascend_sample import hostcann
        import sys, types
        sys.modules["torch_npu"] = types.ModuleType("torch_npu")
        hostcann.activate()
    """)
    assert "RuntimeError: hostcann.activate: torch_npu must not be loaded yet" in done.stderr


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"])
def test_a_real_cann_in_reach_is_refused(variable, tmp_path):
    home = stand_in_for_real_cann(tmp_path / "Ascend")
    value = str(home / "lib64") if variable == "LD_LIBRARY_PATH" else str(home)
    program = (
        f"import os; from ascend_sample import hostcann; os.environ['{variable}'] = {value!r}; hostcann.activate()"
    )
    done = python(program)
    assert f"there must be no real CANN in reach, found {home / 'lib64' / 'libascendcl.so'} ({variable})" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("soc=''", "soc must be a SoC's name such as 'Ascend910B3', got ''"),
        ("memory=0", "memory must be in [1, 9223372036854775807], got 0"),
        ("memory=2**64 + 5", "memory must be in [1, 9223372036854775807], got 18446744073709551621"),
        ("stream_mode='hasty'", "stream_mode must be one of normal, delayed, lazy or delayed:MILLISECONDS"),
        ("stream_mode='lazy:3'", "stream_mode must be one of"),
        ("stream_mode='delayed:'", "stream_mode must be one of"),
        ("stream_mode='delayed:60001'", "stream_mode must be one of"),
        ("cann_version=''", "cann_version must be a version such as '9.0.0', got ''"),
        (
            "without=['aclNoSuchThing']",
            "without must name symbols that hostcann's libraries export, got ['aclNoSuchThing']",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    done = python(f"from ascend_sample import hostcann; hostcann.activate({arguments})")
    assert f"ValueError: hostcann{'' if 'without' in arguments else '.activate'}: {message}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("soc=3", "soc must be a str, got int 3"),
        ("memory='2G'", "memory must be an int, got str '2G'"),
        ("memory=True", "memory must be an int, got bool True"),
        ("stream_mode=3", "stream_mode must be a str, got int 3"),
        ("cann_version=9", "cann_version must be a str, got int 9"),
    ],
)
def test_arguments_of_a_wrong_type_leave_the_environment_as_it_was(arguments, message):
    program = f"""
        import os
        from ascend_sample import hostcann
        before = dict(os.environ)
        try:
            hostcann.activate({arguments})
        except TypeError as error:
            print(os.environ == before, error)
    """
    assert f"True hostcann.activate: {message}" in output(python(program))


def test_control_needs_an_active_hostcann():
    done = python("from ascend_sample import hostcann; hostcann.violations()")
    assert "RuntimeError: hostcann must be active in this process" in done.stderr


def test_wrong_arguments_of_the_control_functions_are_named():
    assert (
        output(
            python("""
            from ascend_sample import hostcann
            hostcann.activate()
            def error(call, *arguments):
                try:
                    call(*arguments)
                except ValueError as raised:
                    return str(raised)
            assert "site must be one of malloc, workspace" in error(hostcann.inject, "mallok")
            assert "nth must be in [1, 2147483647], got 0" in error(hostcann.inject, "malloc", "", 0)
            assert "count must be in [1, 2147483647], got" in error(hostcann.inject, "malloc", "", 1, None, None, 2**31)
            assert "code must be in [1, 2147483647], got 0" in error(hostcann.inject, "malloc", "", 1, 0)
            assert "mode must be 'normal'" in error(hostcann.set_stream_mode, "hasty")
            assert "delay_ms must be in [0, 60000], got -1" in error(hostcann.set_stream_mode, "delayed", -1)
            assert "delay_ms must be in [0, 60000], got" in error(hostcann.set_stream_mode, "delayed", 2**32)
            assert "capacity must be in [1, 9223372036854775807], got 0" in error(hostcann.set_memory_capacity, 0)
            assert "capacity must be in [1, 9223372036854775807]" in error(hostcann.set_memory_capacity, 2**64 + 5)
            with hostcann.null_kernels():
                pass
            with hostcann.profile() as counted:
                pass
            print(hostcann.violations(), counted.launches, hostcann.live()["tensor"])
        """)
        )
        == "[] {} 0"
    )


# ---- the command line ----


def test_the_command_line_hands_on_the_exit_status_and_says_what_is_wrong():
    def module(*arguments: str) -> subprocess.CompletedProcess[str]:
        return warm("-m", "ascend_sample.hostcann", *arguments)

    assert module("run", "sh", "-c", "exit 7").returncode == 7
    assert module("run", "--", "sh", "-c", "exit 8").returncode == 8
    nothing = module("run")
    assert (nothing.returncode, nothing.stderr[:41]) == (2, "hostcann run: a command must follow, got ")
    missing = module("run", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command must be a command on PATH" in missing.stderr
    assert "libascendcl.so" in output(module("info"))
    assert "\n  aclrtMalloc\n" in module("info", "--symbols").stdout


@pytest.mark.parametrize("action", ["run", "profile", "env"])
def test_the_command_line_refuses_settings_that_hostcann_would_refuse(action, tmp_path):
    words = [] if action == "env" else ["true"]
    report = tmp_path / "report.json"
    finished = warm("-m", "ascend_sample.hostcann", action, "--memory", "5X", *words, HOSTCANN_REPORT=str(report))
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("hostcann: HOSTCANN_MEMORY must be a number of bytes")
    assert not report.exists()


def test_activating_refuses_settings_of_the_environment():
    program = "from ascend_sample import hostcann; hostcann.activate()"
    finished = warm("-c", program, HOSTCANN_DEVICES="none", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.stderr.endswith("HOSTCANN_DEVICES must be a number of devices, 1 to 64, got 'none'\n")


def test_strict_turns_a_violation_into_status_97(tmp_path):
    program = """
        import ctypes
        acl = ctypes.CDLL("libascendcl.so")
        acl.aclInit(None); acl.aclrtSetDevice(0)
        acl.aclrtSynchronizeStream(ctypes.c_void_p(8))
    """
    report = tmp_path / "report.json"
    assert run(program, "--strict", "--report", str(report)).returncode == 97
    assert json.loads(report.read_text())["violations"][0]["kind"] == "dead_stream"


def test_a_report_is_written_where_the_command_was_started(tmp_path):
    program = "import ctypes, os; ctypes.CDLL('libascendcl.so').aclInit(None); os.chdir('/')"
    report = tmp_path / "report.json"
    output(run(program, "--report", os.path.relpath(report)))
    assert json.loads(report.read_text())["exit_status"] == 0


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
    assert output(warm("-c", textwrap.dedent(program), str(target))) == "[False, False, True]"


@needs_torch_npu
def test_torch_npu_notices_a_hidden_symbol():
    program = """
        import torch
        try:
            torch.npu.Stream().query()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
    """
    assert "aclrtStreamQuery" in output(run(program, "--without", "aclrtStreamQuery"))


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
    with pytest.raises(RuntimeError, match="must be a folder that only this user can write to"):
        prepare_home(["aclrtStreamQuery"])


def test_what_is_no_folder_is_in_the_place_of_temporary_homes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parent = tmp_path / f"hostcann-{os.getuid()}"
    for make in (lambda: parent.touch(0o600), lambda: parent.symlink_to(tmp_path / "missing")):
        make()
        with pytest.raises(RuntimeError, match="must be a folder that only this user can write to"):
            prepare_home(["aclrtStreamQuery"])
        parent.unlink()


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
