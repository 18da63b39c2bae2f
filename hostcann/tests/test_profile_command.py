"""`python -m hostcann profile`: its table and its JSON, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hostcann_programs import command, needs_torch_npu

from hostcann import __main__ as hostcann_cli
from hostcann._profile import show_bytes
from tests.support.user_process import clean_environment

PROGRAM = """\
import torch

torch.manual_seed(0)
x = torch.ones(4, 256, device="npu")
y = x + x
for _ in range(3):
    y.mul_(2)
total = y.sum().item()
row = torch.arange(6, dtype=torch.int32).npu()
print(row.cpu().tolist())
torch.npu.synchronize()
raise SystemExit(7)
"""
TENSOR = 4 * 256 * 4
BLOCK = 512  # torch_npu's allocator adds 32 bytes and rounds up to it
HELD = TENSOR + BLOCK
MODEL = {"launch_us": 5, "bandwidth_gbs": 2}

START = """\
import ctypes, os, subprocess, sys
def use():
    acl = ctypes.CDLL("libascendcl.so")
    acl.aclInit(None), acl.aclrtSetDevice(0)
    acl.aclrtSynchronizeDevice()
"""
"""The beginning of programs without torch, each of whose calls of `use` waits in line 5."""
LINE_OF_USE = 5


def profiled(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return command("profile", *options, sys.executable, str(path))


def row(**values: int) -> dict[str, int]:
    """The counts of a row of the table, without the peak and the model."""
    return dict.fromkeys(("launches", "replays", "read", "written", "copies", "copied", "waits"), 0) | values


def counts(rows: dict[Any, dict[str, int]]) -> dict[Any, dict[str, int]]:
    return {
        name: {key: row[key] for key in row if key not in ("peak_memory", "modelled_us")} for name, row in rows.items()
    }


@needs_torch_npu
def test_counts_and_lines_of_a_program_by_hand(tmp_path: Path) -> None:
    """In JSON and, the same, in the table. The program's output and its exit status stay its own."""
    options = ("--json", str(tmp_path / "profile.json"), "--launch-us", "5", "--bandwidth-gbs", "2")
    done = profiled(tmp_path, PROGRAM, *options)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "[0, 1, 2, 3, 4, 5]\n"
    found: dict[str, Any] = json.loads((tmp_path / "profile.json").read_text())
    check_table(done.stderr, found)
    assert found["launches"] == {"aclnnAdd": 1, "aclnnInplaceMuls": 3, "aclnnInplaceOne": 1, "aclnnReduceSum": 1}
    assert found["copies"] == {"d2h": 2, "h2d": 1}
    assert found["copied_bytes"] == {"d2h": 4 + 24, "h2d": 24}
    assert found["synchronizations"] == {"device": 1, "memcpy": 3, "stream": 3}
    assert counts(found["by_operator"]) == {
        "aclnnInplaceOne": row(launches=1, written=TENSOR),
        "aclnnAdd": row(launches=1, read=2 * TENSOR, written=TENSOR),
        "aclnnInplaceMuls": row(launches=3, read=3 * TENSOR, written=3 * TENSOR),
        "aclnnReduceSum": row(launches=1, read=TENSOR, written=4),
        "copy d2h": row(copies=2, copied=28),
        "copy h2d": row(copies=1, copied=24),
        "wait for device": row(waits=1),
        "wait for memcpy": row(waits=3),
        "wait for stream": row(waits=3),
    }
    by_line = {int(name.removeprefix(f"{tmp_path / 'program.py'}:")): row for name, row in found["by_line"].items()}
    assert counts(by_line) == {
        4: row(launches=1, written=TENSOR),
        5: row(launches=1, read=2 * TENSOR, written=TENSOR),
        7: row(launches=3, read=3 * TENSOR, written=3 * TENSOR),
        8: row(launches=1, read=TENSOR, written=4, copies=1, copied=4, waits=2),
        9: row(copies=1, copied=24, waits=2),
        10: row(copies=1, copied=24, waits=2),
        11: row(waits=1),
    }
    peaks = {line: values["peak_memory"] for line, values in by_line.items()}
    later = 2 * HELD + BLOCK
    assert peaks == {4: HELD, 5: 2 * HELD, 7: 2 * HELD, 8: later, 9: later, 10: later, 11: 0}
    assert found["totals"]["peak_memory"] == later
    assert counts({"": found["totals"]}) == {
        "": row(launches=6, read=6 * TENSOR, written=5 * TENSOR + 4, copies=3, copied=52, waits=7)
    }


def check_table(text: str, found: dict[str, Any]) -> None:
    """The printed table says what the JSON says."""
    shown = {line.partition("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    for name, row in (found["by_operator"] | found["by_line"]).items():
        cells = (
            *(row["launches"], show_bytes(row["read"]), show_bytes(row["written"]), row["copies"]),
            *(show_bytes(row["copied"]), row["waits"], show_bytes(row["peak_memory"]), f"{row['modelled_us']:.1f}"),
        )
        shown_cells = " ".join("-" if cell in (0, "0 B") else str(cell) for cell in cells)
        assert shown[name].startswith(f"{name} {shown_cells}"), name
    totals = found["totals"]
    assert found["model"] == MODEL
    assert totals["modelled_us"] == 6 * 5 + (totals["read"] + totals["written"]) / 2e3
    model = f"modelled time {totals['modelled_us']:.1f} us = 6 x 5 us + 44.0 KiB / 2 GB/s"
    assert shown["modelled time"].startswith(model)
    assert "a model of the two numbers given, not a measurement of any hardware" in text
    assert any(name.endswith("program.py:5") and line.endswith(" y = x + x") for name, line in shown.items())


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("1 / 0", 1, "ZeroDivisionError"),
        ("os.kill(os.getpid(), 9)", 137, "ended without saying what"),
        # Not KeyboardInterrupt alone: what is started in the background has interrupts ignored.
        ("from signal import *; signal(SIGINT, default_int_handler); raise_signal(SIGINT)", 130, "KeyboardInterrupt"),
    ],
)
def test_the_end_of_the_program_is_handed_on(tmp_path: Path, ending: str, status: int, said: str) -> None:
    done = profiled(tmp_path, f"{START}use()\n{ending}\n")
    assert done.returncode == status
    assert said in done.stderr
    assert ("wait for device  " in done.stderr) == (status != 137)


def test_all_processes_of_a_program_are_counted(tmp_path: Path) -> None:
    """A fork does not count again what its parent has asked for; workers of multiprocessing end by os._exit."""
    program = f"""{START}
if __name__ == "__main__":
    import multiprocessing
    for method in ("fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            pool.apply(use)
            pool.close()
            pool.join()
    use()
    if len(sys.argv) == 1:
        if (child := os.fork()) == 0:
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        subprocess.run([sys.executable, __file__, "child"], check=True)
"""
    done = profiled(tmp_path, program, "--json", str(tmp_path / "profile.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "profile.json").read_text())["by_line"]
    assert {name: row["waits"] for name, row in found.items()} == {f"{tmp_path / 'program.py'}:{LINE_OF_USE}": 6}


WRONG = {
    ("--launch-us", "-1"): "must be a number of microseconds of at least 0, got '-1'. Leave it out for 8.",
    ("--launch-us", "slow"): "must be a number of microseconds of at least 0, got 'slow'.",
    ("--launch-us", "nan"): "must be a number of microseconds of at least 0, got 'nan'.",
    ("--bandwidth-gbs", "0"): "must be a number of gigabytes a second above 0, got '0'. Leave it out for 1200.",
    ("--bandwidth-gbs", "inf"): "must be a number of gigabytes a second above 0, got 'inf'.",
    ("--json", "no/such/folder/file"): "must name a file in a folder that exists, got 'no/such/folder/file'.",
    ("--json", "x" * 300): "must name a file that can be written (File name too long), got 'xxx",
}


def test_wrong_arguments_are_refused_before_the_program_runs(capfd: pytest.CaptureFixture[str]) -> None:
    for (option, value), message in WRONG.items():
        assert hostcann_cli.main(["profile", option, value, sys.executable, "-c", "print('it runs')"]) == 2
        printed, said = capfd.readouterr()
        assert printed == ""
        assert said.startswith(f"hostcann profile: {option} {message}")


def test_a_process_that_was_killed_while_it_wrote_is_left_out_by_name(tmp_path: Path) -> None:
    program = """
        use()
        folder = os.path.dirname(os.environ["HOSTCANN_REPORT"])
        for name, text in (("1.json.part", '{"exit'), ("2.json", "")):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        raise SystemExit(3)
    """
    done = profiled(tmp_path, START + textwrap.dedent(program))
    assert done.returncode == 3
    assert "wait for device  " in done.stderr
    assert "hostcann profile: 1.json.part is left out, which cannot be read: its process was ended" in done.stderr
    assert "hostcann profile: 2.json is left out, which cannot be read: " in done.stderr


@pytest.mark.long
def test_the_name_of_a_file_need_not_be_text_of_the_locale(tmp_path: Path) -> None:
    program = tmp_path / "gr\u00f6\u00dfe.py"
    program.write_text(f"{START}use()\n")
    arguments = [sys.executable, "-m", "hostcann", "profile", sys.executable, program]
    ascii_alone = clean_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    done = subprocess.run(arguments, env=ascii_alone, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert rb"gr\udcc3\udcb6\udcc3\udc9fe.py:5  " in done.stderr


@pytest.mark.long
def test_a_program_may_remove_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    arguments = [
        sys.executable,
        "-m",
        "hostcann",
        "profile",
        "--json",
        "profile.json",
        "rmdir",
        "../here",
    ]
    done = subprocess.run(arguments, cwd=tmp_path / "here", env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "The program asked nothing of the device" in done.stderr
    assert "hostcann profile: profile.json was not written: " in done.stderr


@pytest.mark.long
def test_what_ends_the_command_ends_the_program() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda n, _: sys.exit(n)); print(); time.sleep(60)"
    arguments = [sys.executable, "-m", "hostcann", "profile", sys.executable, "-uc", code]
    with subprocess.Popen(arguments, env=clean_environment(), stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=30) == signal.SIGTERM


def test_a_command_must_follow_exist_and_be_one_that_can_be_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no_program").touch(mode=0o644)
    for action in ("run", "profile"):
        assert hostcann_cli.main([action, str(tmp_path / "no_program")]) == 126
        rule = "must be a command that can be run, got Permission denied."
        assert capfd.readouterr().err == f"hostcann {action}: {tmp_path / 'no_program'} {rule}\n"
        assert hostcann_cli.main([action]) == 2
        assert f"hostcann {action}: a command must follow, got none." in capfd.readouterr().err
        assert hostcann_cli.main([action, "no-such-command"]) == 127
        assert "no-such-command must be a command on PATH" in capfd.readouterr().err
