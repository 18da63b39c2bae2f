"""`python -m ascend_sample.hostcann profile`: its table and its JSON, and how it ends."""

import json
import sys

import pytest
from activation_programs import LIBRARY, needs_torch_npu
from test_profile import PROGRAM, profile_of, profiled

from ascend_sample.hostcann import __main__ as hostcann_cli
from ascend_sample.hostcann._profile import show_bytes

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="hostcann was not built")


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
    program = """\
        import subprocess, sys, torch
        torch.ones(4, device="npu")
        if len(sys.argv) == 1:
            for _ in range(2):
                subprocess.run([sys.executable, __file__, "child"], check=True)
    """
    assert profile_of(tmp_path, program)["by_line"][2]["launches"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--launch-us", "-1"],
            "--launch-us must be a number of microseconds of at least 0, got '-1'. Leave it out for 8.",
        ),
        (["--launch-us", "slow"], "--launch-us must be a number of microseconds of at least 0, got 'slow'."),
        (["--launch-us", "nan"], "--launch-us must be a number of microseconds of at least 0, got 'nan'."),
        (
            ["--bandwidth-gbs", "0"],
            "--bandwidth-gbs must be a number of gigabytes a second above 0, got '0'. Leave it out for 1200.",
        ),
        (["--bandwidth-gbs", "inf"], "--bandwidth-gbs must be a number of gigabytes a second above 0, got 'inf'."),
        (
            ["--json", "no/such/folder/file"],
            "--json must name a file in a folder that exists, got 'no/such/folder/file'.",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_the_program_runs(options, message, capfd):
    assert hostcann_cli.main(["profile", *options, sys.executable, "-c", "print('it runs')"]) == 2
    printed, said = capfd.readouterr()
    assert printed == ""
    assert said.startswith(f"hostcann profile: {message}")


def test_a_program_must_follow_and_exist(capfd):
    assert hostcann_cli.main(["profile"]) == 2
    assert "hostcann profile: a command must follow, got none." in capfd.readouterr().err
    assert hostcann_cli.main(["profile", "no-such-command"]) == 127
    assert "no-such-command must be a command on PATH" in capfd.readouterr().err
