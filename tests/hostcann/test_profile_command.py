"""`python -m ascend_sample.hostcann profile`: its table and its JSON, and how it ends."""

import json
import signal
import subprocess
import sys

import pytest
from activation_programs import needs_hostcann, needs_torch_npu
from test_profile import PROGRAM, profile_of, profiled

from ascend_sample.hostcann import __main__ as hostcann_cli
from ascend_sample.hostcann._profile import show_bytes
from tests.support.user_process import clean_environment

pytestmark = needs_hostcann


@needs_torch_npu
def test_the_table_says_what_the_json_says(tmp_path):
    done = profiled(
        tmp_path, PROGRAM, "--json", str(tmp_path / "profile.json"), "--launch-us", "5", "--bandwidth-gbs", "2"
    )
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["model"] == {"launch_us": 5, "bandwidth_gbs": 2}
    shown = {}
    for line in done.stderr.splitlines():
        *name, _ = line.partition("  ")
        shown[name[0]] = " ".join(line.split())
    for rows in (found["by_operator"], found["by_line"]):
        for name, row in rows.items():
            cells = (
                row["launches"],
                show_bytes(row["read"]),
                show_bytes(row["written"]),
                row["copies"],
                show_bytes(row["copied"]),
                row["waits"],
                show_bytes(row["peak_memory"]),
                f"{row['modelled_us']:.1f}",
            )
            shown_cells = " ".join("-" if cell in (0, "0 B") else str(cell) for cell in cells)
            assert shown[name].startswith(f"{name} {shown_cells}"), name
    totals = found["totals"]
    assert totals["modelled_us"] == 6 * 5 + (totals["read"] + totals["written"]) / 2e3
    assert shown["launches"] == "launches 6"
    assert shown["modelled time"].startswith(
        f"modelled time {totals['modelled_us']:.1f} us = 6 x 5 us + 44.0 KiB / 2 GB/s"
    )
    assert "a model of the two numbers given, not a measurement of any hardware" in done.stderr
    assert shown[f"{tmp_path / 'program.py'}:5"].endswith(" y = x + x")


@needs_torch_npu
@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        # Not KeyboardInterrupt alone: what is started in the background has interrupts ignored.
        (
            "from signal import *; signal(SIGINT, default_int_handler); raise_signal(SIGINT)",
            130,
            "KeyboardInterrupt",
        ),
    ],
)
def test_the_end_of_the_program_is_handed_on(tmp_path, ending, status, said):
    done = profiled(tmp_path, f"import torch\nx = torch.ones(4, device='npu')\nprint(x.tolist())\n{ending}\n")
    assert done.returncode == status
    printed = [line for line in done.stdout.splitlines() if not line.startswith("[ERROR]")]  # torch_npu, if it raises
    assert printed == ["[1.0, 1.0, 1.0, 1.0]"], "the program's output stays its own"
    assert said in done.stderr
    assert ("aclnnInplaceOne  " in done.stderr) == (status != 137)
    assert ("ended without saying what" in done.stderr) == (status == 137)


@needs_torch_npu
def test_all_processes_of_a_program_are_counted(tmp_path):
    """A fork does not count again what its parent has asked for."""
    program = """\
        import os, subprocess, sys, torch
        torch.ones(4, device="npu")
        if len(sys.argv) == 1:
            if (child := os.fork()) == 0:
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            for _ in range(2):
                subprocess.run([sys.executable, __file__, "child"], check=True)
    """
    assert profile_of(tmp_path, program)["by_line"][2]["launches"] == 3


@pytest.mark.long
@needs_torch_npu
def test_workers_that_multiprocessing_forks_are_counted(tmp_path):
    """They end by os._exit."""
    program = """\
        import multiprocessing
        def work(n):
            import torch
            return torch.ones(n, device="npu").tolist()
        if __name__ == "__main__":
            for method in ("fork", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(work, [3]))
                    pool.close()
                    pool.join()
    """
    assert profile_of(tmp_path, program)["by_line"][4]["launches"] == 2


WRONG = {
    ("--launch-us", "-1"): "must be a number of microseconds of at least 0, got '-1'. Leave it out for 8.",
    ("--launch-us", "slow"): "must be a number of microseconds of at least 0, got 'slow'.",
    ("--launch-us", "nan"): "must be a number of microseconds of at least 0, got 'nan'.",
    ("--bandwidth-gbs", "0"): "must be a number of gigabytes a second above 0, got '0'. Leave it out for 1200.",
    ("--bandwidth-gbs", "inf"): "must be a number of gigabytes a second above 0, got 'inf'.",
    ("--json", "no/such/folder/file"): "must name a file in a folder that exists, got 'no/such/folder/file'.",
    ("--json", "x" * 300): "must name a file that can be written (File name too long), got 'xxx",
}


def test_wrong_arguments_are_refused_before_the_program_runs(capfd):
    for (option, value), message in WRONG.items():
        assert hostcann_cli.main(["profile", option, value, sys.executable, "-c", "print('it runs')"]) == 2
        printed, said = capfd.readouterr()
        assert printed == ""
        assert said.startswith(f"hostcann profile: {option} {message}")


@pytest.mark.long
@needs_torch_npu
def test_a_process_that_was_killed_while_it_wrote_is_left_out_by_name(tmp_path):
    program = """\
        import os, torch
        torch.ones(4, device="npu")
        folder = os.path.dirname(os.environ["HOSTCANN_REPORT"])
        for name, text in (("1.json.part", '{"exit'), ("2.json", "")):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        raise SystemExit(3)
    """
    done = profiled(tmp_path, program)
    assert done.returncode == 3
    assert "aclnnInplaceOne  " in done.stderr
    assert "hostcann profile: 1.json.part is left out, which cannot be read: its process was ended" in done.stderr
    assert "hostcann profile: 2.json is left out, which cannot be read: " in done.stderr


@pytest.mark.long
def test_the_name_of_a_file_need_not_be_text_of_the_locale(tmp_path):
    program = tmp_path / "gr\u00f6\u00dfe.py"
    program.write_text(
        "import ctypes\n"
        "acl = ctypes.CDLL('libascendcl.so')\n"
        "acl.aclInit(None), acl.aclrtSetDevice(0), acl.aclrtSynchronizeDevice()\n"
    )
    command = [sys.executable, "-m", "ascend_sample.hostcann", "profile", sys.executable, program]
    ascii_alone = clean_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    done = subprocess.run(command, env=ascii_alone, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert b"gr\\udcc3\\udcb6\\udcc3\\udc9fe.py:3  " in done.stderr


@pytest.mark.long
def test_a_program_may_remove_the_working_folder(tmp_path):
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-m", "ascend_sample.hostcann", "profile", "--json", "profile.json", "rmdir", "../here"]
    done = subprocess.run(command, cwd=tmp_path / "here", env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "The program asked nothing of the device" in done.stderr
    assert "hostcann profile: profile.json was not written: " in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_ends_the_program(number):
    code = (
        "import signal, sys, time; signal.signal(int(sys.argv[1]), lambda n, _: sys.exit(n)); print(); time.sleep(60)"
    )
    command = [sys.executable, "-m", "ascend_sample.hostcann", "profile", sys.executable, "-uc", code]
    command.append(str(int(number)))
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        started.send_signal(number)
        assert started.wait(timeout=30) == number


def test_a_command_must_follow_exist_and_be_one_that_can_be_run(tmp_path, capfd):
    (tmp_path / "no_program").touch(mode=0o644)
    for action in ("run", "profile"):
        assert hostcann_cli.main([action, str(tmp_path / "no_program")]) == 126
        rule = "must be a command that can be run, got Permission denied."
        assert capfd.readouterr().err == f"hostcann {action}: {tmp_path / 'no_program'} {rule}\n"
        assert hostcann_cli.main([action]) == 2
        assert f"hostcann {action}: a command must follow, got none." in capfd.readouterr().err
        assert hostcann_cli.main([action, "no-such-command"]) == 127
        assert "no-such-command must be a command on PATH" in capfd.readouterr().err
