"""What a program asks of the device: exact counts, and the lines that they belong to."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from activation_programs import needs_hostcann, needs_torch_npu, output, python, variables_of_run

from ascend_sample.hostcann._lines import is_of_a_library
from ascend_sample.hostcann._profile import NO_LINE, Activity, Profile, Totals
from tests.support.user_process import run_python_warm

pytestmark = needs_hostcann

PROGRAM = """\
import torch

torch.manual_seed(0)
x = torch.ones(4, 256, device="npu")
y = x + x
for _ in range(3):
    y.mul_(2)
total = y.sum().item()
row = torch.arange(6, dtype=torch.int32).npu()
assert row.cpu().tolist() == [0, 1, 2, 3, 4, 5]
torch.npu.synchronize()
"""
TENSOR = 4 * 256 * 4
BLOCK = 512  # torch_npu's allocator adds 32 bytes and rounds up to it
HELD = TENSOR + BLOCK


def profiled(folder: Path, program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under `python -m ascend_sample.hostcann profile`."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return run_python_warm("-m", "ascend_sample.hostcann", "profile", *options, sys.executable, str(path), **variables)


def profile_of(folder: Path, program: str, *options: str, status: int = 0, **variables: str) -> dict[str, Any]:
    """What the command writes as JSON; the numbers that show whether lines of the program are right."""
    done = profiled(folder, program, "--json", str(folder / "profile.json"), *options, **variables)
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    prefix = f"{folder / 'program.py'}:"
    found["by_line"] = {
        int(name.removeprefix(prefix)) if name.startswith(prefix) else name: row
        for name, row in found["by_line"].items()
    }
    return found


def row(**values: int) -> dict[str, int]:
    """The counts of a row of the table, without the peak and the model."""
    return dict.fromkeys(("launches", "replays", "read", "written", "copies", "copied", "waits"), 0) | values


def counts(rows: dict[Any, dict[str, int]]) -> dict[Any, dict[str, int]]:
    return {
        name: {key: row[key] for key in row if key not in ("peak_memory", "modelled_us")} for name, row in rows.items()
    }


# ---- counts and lines ----


@needs_torch_npu
def test_counts_and_lines_of_a_program_by_hand(tmp_path):
    found = profile_of(tmp_path, PROGRAM)
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
    assert counts(found["by_line"]) == {
        4: row(launches=1, written=TENSOR),
        5: row(launches=1, read=2 * TENSOR, written=TENSOR),
        7: row(launches=3, read=3 * TENSOR, written=3 * TENSOR),
        8: row(launches=1, read=TENSOR, written=4, copies=1, copied=4, waits=2),
        9: row(copies=1, copied=24, waits=2),
        10: row(copies=1, copied=24, waits=2),
        11: row(waits=1),
    }
    peaks = {line: values["peak_memory"] for line, values in found["by_line"].items()}
    later = 2 * HELD + BLOCK
    assert peaks == {4: HELD, 5: 2 * HELD, 7: 2 * HELD, 8: later, 9: later, 10: later, 11: 0}
    assert found["totals"]["peak_memory"] == later
    assert counts({"": found["totals"]}) == {
        "": row(launches=6, read=6 * TENSOR, written=5 * TENSOR + 4, copies=3, copied=52, waits=7)
    }


@pytest.mark.long
@needs_torch_npu
def test_a_library_that_is_installed_has_no_lines_and_others_have(tmp_path):
    installed = tmp_path / "site-packages" / "installed.py"
    installed.parent.mkdir()
    for path in (installed, tmp_path / "own.py"):
        path.write_text("def double(x):\n    return x + x\n")
    program = """\
        import sys
        sys.path.append(sys.path[0] + "/site-packages")
        import installed, own, torch
        x = torch.ones(2, device="npu")
        installed.double(
            x
        )
        own.double(x)
        torch.nn.Linear(2, 2, bias=False, device="npu")(x)
    """
    found = profile_of(tmp_path, program)["by_line"]
    assert found.keys() == {4, 5, 9, f"{tmp_path / 'own.py'}:2"}


def test_whose_file_it_is():
    installed = ["/home/me/lib/python3.11/site-packages/vllm/worker.py", "/usr/lib/python3/dist-packages/tool.py"]
    for file in ("<frozen importlib._bootstrap>", "<eval_with_key>.3", json.__file__, *installed):
        assert is_of_a_library(file), file
    for file in ("<string>", "<stdin>", "/home/me/program.py", __file__):
        assert not is_of_a_library(file), file


@needs_torch_npu
def test_threads_have_their_lines_and_those_of_autograd_none(tmp_path):
    program = """\
        import threading
        import torch
        x = torch.ones(4, device="npu", requires_grad=True)
        def work():
            for _ in range(20):
                x.detach() + 1
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        loss = (x * 3).sum()
        torch.npu.synchronize()
        loss.backward()
    """
    found = profile_of(tmp_path, program)["by_line"]
    assert found[6]["launches"] == 60
    assert found[12]["launches"] == 2
    assert found[13]["waits"] == 1
    assert found[NO_LINE]["launches"] >= 1
    assert found.keys() == {3, 6, 12, 13, 14, NO_LINE}


@pytest.mark.long
@needs_torch_npu
def test_threads_that_wait_under_torchs_mutex_do_not_hang(tmp_path):
    """empty_cache() waits for events with the allocator's mutex, which a thread with the GIL may want."""
    program = """\
        import threading
        import torch
        done = threading.Event()
        def allocate():
            while not done.is_set():
                torch.empty(1 << 16, device="npu")
        threads = [threading.Thread(target=allocate) for _ in range(2)]
        for thread in threads:
            thread.start()
        side = torch.npu.Stream()
        for _ in range(20):
            x = torch.empty(1 << 16, device="npu")
            x.record_stream(side)
            del x
            torch.npu.empty_cache()
        done.set()
        for thread in threads:
            thread.join()
    """
    assert profile_of(tmp_path, program)["synchronizations"]["event"] >= 1, "others may see to some of them first"


@needs_torch_npu
def test_a_replay_is_one_launch_of_what_was_captured(tmp_path):
    program = """\
        import torch
        x = torch.ones(256, device="npu")
        y = torch.empty(256, device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y.copy_(x)
            y += x
        for _ in range(5):
            graph.replay()
        torch.npu.synchronize()
    """
    found = profile_of(tmp_path, program)["by_line"]
    assert (found[9]["replays"], found[9]["launches"]) == (5, 0)
    assert (found[9]["read"], found[9]["written"]) == (5 * 3 * 1024, 5 * 2 * 1024)
    assert found[9]["modelled_us"] == pytest.approx(5 * 8 + 5 * 5 * 1024 / 1.2e6)
    assert not {6, 7} & found.keys(), "what is captured has not run yet"


@needs_torch_npu
def test_bytes_are_those_that_an_operator_touches(tmp_path):
    statements = {
        "a.expand(64, 256).add(b)": (1024 + 65536, 65536),
        "b.gather(1, i)": (64 * 2 * (8 + 4), 64 * 2 * 4),
        "b.scatter_(1, i, 0.)": (64 * 2 * 8, 64 * 2 * 4),
        "b.index_select(0, i[0])": (2 * 8 + 2 * 1024, 2 * 1024),
        "b.masked_fill_(m, 0.)": (65536 + 64 * 256, 65536),
        "b[:, ::2].neg()": (65536 // 2, 65536 // 2),
        "b.sub_(a)": (65536 + 1024, 65536),
    }
    setup = """\
        import torch
        a, b = torch.ones(256, device="npu"), torch.ones(64, 256, device="npu")
        i, m = torch.zeros(64, 2, dtype=torch.int64, device="npu"), torch.zeros(64, 256, dtype=torch.bool, device="npu")
    """
    found = profile_of(tmp_path, "\n".join([textwrap.dedent(setup).strip(), *statements]))["by_line"]
    touched = {line: (1, *expected) for line, expected in enumerate(statements.values(), start=4)}
    assert {line: (found[line]["launches"], found[line]["read"], found[line]["written"]) for line in touched} == touched


@pytest.mark.long
@needs_torch_npu
def test_nothing_changes_with_the_task_queue_but_lines_of_copies(tmp_path):
    """The command line switches it off; inside a program it may be on."""
    program = """\
        import torch
        from ascend_sample import hostcann
        x = torch.ones(4, 256, device="npu")
        with hostcann.profile() as outer:
            y = x + x
            with hostcann.profile() as inner:
                y.mul_(2)
                y.cpu()
            z = torch.ones(3).pin_memory().npu(non_blocking=True)
        z + z
        print([outer.launches, inner.launches, outer.copies, outer.copied_bytes, inner.synchronizations])
        print({place.rpartition(":")[2]: [row.launches, row.peak_memory] for place, row in outer.by_line.items()})
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    on, off = (
        run_python_warm(str(path), **variables_of_run(), TASK_QUEUE_ENABLE=mode).stdout.splitlines() for mode in "10"
    )
    assert on[0] == off[0]
    assert on[0] == str(
        [
            {"aclnnAdd": 1, "aclnnInplaceMuls": 1},
            {"aclnnInplaceMuls": 1},
            {"d2h": 1, "h2d": 1},
            {"d2h": TENSOR, "h2d": 12},
            {"memcpy": 1, "stream": 1},
        ]
    )
    assert off[1] == str({"5": [1, 2 * HELD], "7": [1, 2 * HELD], "8": [0, 2 * HELD], "9": [0, 2 * HELD + BLOCK]})
    assert f"'5': [1, {2 * HELD}]" in on[1]
    assert f"'7': [1, {2 * HELD}]" in on[1]


@needs_torch_npu
def test_a_block_that_raises_is_counted_whole():
    program = """
        from ascend_sample import hostcann
        hostcann.activate()
        import torch, torch_npu
        x = torch.zeros(2048, 2048, device="npu")
        torch.npu.synchronize()
        try:
            with hostcann.profile() as counted:
                for _ in range(20):
                    y = x + 1
                raise KeyError
        except KeyError:
            print(counted.launches)
    """
    assert output(python(program, TASK_QUEUE_ENABLE="1")) == "{'aclnnAdds': 20}"


# ---- sums and the model ----


def activity(kind: str, name: str, **values: Any) -> Activity:
    zeros: dict[str, Any] = {"file": "", "line": 0, "count": 1, "read": 0, "written": 0, "copied": 0, "memory": 0}
    return Activity(**(zeros | {"kind": kind, "name": name} | values))


def test_a_relative_and_an_absolute_name_of_a_file_are_two_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["made.py", str(tmp_path / "made.py"), str(tmp_path / "other.py")]
    launches = [activity("launch", "aclnnAdd", file=file, line=1, count=1 + n) for n, file in enumerate(files)]
    _, _, by_line = Profile(lambda: launches).table().partition("by line")
    rows = {words[0]: words[1] for words in map(str.split, by_line.splitlines()[1:])}
    assert rows == {"made.py:1": "1", f"{tmp_path / 'made.py'}:1": "2", "other.py:1": "3"}


def test_a_table_is_shown_where_the_working_folder_was_removed(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    profile = Profile(lambda: [activity("launch", "aclnnAdd", file=str(tmp_path / "made.py"), line=1)])
    assert f"\n{tmp_path / 'made.py'}:1 " in profile.table()


def test_sums():
    profile = Profile(
        lambda: [
            activity("launch", "aclnnAdd", file="/a.py", line=1, count=2, read=16, written=8, memory=70),
            activity("launch", "aclnnAdd", file="/a.py", line=2, read=10, written=10, memory=90),
            activity("replay", "aclmdlRIExecuteAsync"),
            activity("replayed", "aclnnAdd", count=9, read=1, written=1),
            activity("copy", "d2d", read=4, written=4, copied=4),
            activity("fill", "aclrtMemsetAsync", written=5),
            activity("wait", "event", count=3),
        ]
    )
    assert profile.launches == {"aclnnAdd": 3}
    assert (profile.replays, profile.copies, profile.copied_bytes) == (1, {"d2d": 1}, {"d2d": 4})
    assert profile.synchronizations == {"event": 3}
    assert profile.totals == Totals(3, 1, 31, 28, 1, 4, 3, 90)
    assert profile.by_operator["aclnnAdd"] == Totals(3, 0, 27, 19, 0, 0, 0, 90)
    assert profile.by_line["/a.py:1"] == Totals(2, 0, 16, 8, 0, 0, 0, 70)
    assert profile.by_line[NO_LINE] == Totals(0, 1, 5, 10, 1, 4, 3, 0)


def test_the_model_is_launches_and_bytes():
    totals = Totals(
        launches=3, replays=1, read=6_000_000, written=2_000_000, copies=5, copied=9, waits=7, peak_memory=1
    )
    for options in ({}, {"launch_us": 0, "bandwidth_gbs": 1}, {"launch_us": 2.5, "bandwidth_gbs": 800}):
        launch_us, bandwidth_gbs = options.get("launch_us", 8), options.get("bandwidth_gbs", 1200)
        assert totals.modelled_us(**options) == pytest.approx(4 * launch_us + 8_000_000 / (bandwidth_gbs * 1e9) * 1e6)
    for show in (Profile.table, Profile.as_json):
        for options, message in (
            ({"launch_us": -1}, r"launch_us must be a finite number of at least 0, got -1\."),
            ({"bandwidth_gbs": 0}, r"bandwidth_gbs must be a finite number above 0, got 0\."),
        ):
            with pytest.raises(ValueError, match=rf"^Profile.{show.__name__}: {message}"):
                show(Profile(lambda: []), **options)
