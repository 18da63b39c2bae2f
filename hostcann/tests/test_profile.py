"""What a program asks of the device: exact counts, and the lines that they belong to."""

from __future__ import annotations

import gc
import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import hostcann
from hostcann._lines import is_of_a_library
from hostcann._profile import NO_LINE, Activity, Profile, Totals
from tests.support.isolation import run_isolated

HERE = f"{__file__}:"


@contextmanager
def lines_of_this_file() -> Iterator[dict[int | str, Totals]]:
    """What is asked for inside, by the lines of this file from the first one inside; other files by their names."""
    found: dict[int | str, Totals] = {}
    torch.npu.synchronize()
    gc.collect()
    with hostcann.profile() as counted:
        yield found
    rows = counted.by_line
    numbers = sorted(int(name.removeprefix(HERE)) for name in rows if name.startswith(HERE))
    for name, row in rows.items():
        found[int(name.removeprefix(HERE)) - numbers[0] if name.startswith(HERE) else name] = row


# ---- lines ----


def test_a_library_that_is_installed_has_no_lines_and_others_have(npu: str, tmp_path: Path) -> None:
    modules = []
    for path in (tmp_path / "site-packages" / "installed.py", tmp_path / "own.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("def double(x):\n    return x + x\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    installed, own = modules
    x = torch.ones(2, device=npu)
    with lines_of_this_file() as found:
        installed.double(
            x,
        )
        own.double(x)
        torch.nn.functional.linear(x, x)
    assert found.keys() == {0, 4, f"{tmp_path / 'own.py'}:2"}


def test_whose_file_it_is() -> None:
    installed = ["/home/me/lib/python3.11/site-packages/vllm/worker.py", "/usr/lib/python3/dist-packages/tool.py"]
    for file in ("<frozen importlib._bootstrap>", "<eval_with_key>.3", json.__file__, *installed):
        assert is_of_a_library(file), file
    for file in ("<string>", "<stdin>", "/home/me/program.py", __file__):
        assert not is_of_a_library(file), file


def test_threads_have_their_lines_and_those_of_autograd_none(npu: str) -> None:
    x = torch.ones(4, device=npu, requires_grad=True)
    with lines_of_this_file() as found:

        def work() -> None:
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
    assert found[0].launches == 60
    assert found[7].launches == 2
    assert found[8].waits == 1
    assert found[NO_LINE].launches >= 1
    assert found.keys() == {0, 7, 8, 9, NO_LINE}


def empty_the_cache_beside_threads() -> int:
    done = threading.Event()

    def allocate() -> None:
        while not done.is_set():
            torch.empty(1 << 16, device="npu")

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    with hostcann.profile() as counted:
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
    return counted.synchronizations["event"]


@pytest.mark.long
def test_threads_that_wait_under_torchs_mutex_do_not_hang(npu: str) -> None:
    """empty_cache() waits for events with the allocator's mutex, which a thread with the GIL may want."""
    assert run_isolated(empty_the_cache_beside_threads).result >= 1, "others may see to some of them first"


def test_a_replay_is_one_launch_of_what_was_captured(npu: str) -> None:
    x, y, graph = torch.ones(256, device=npu), torch.empty(256, device=npu), torch.npu.NPUGraph()
    with hostcann.profile() as captured, torch.npu.graph(graph):
        y.copy_(x)
        y += x
    assert captured.launches == {}, "what is captured has not run yet"
    with hostcann.profile() as counted:
        for _ in range(5):
            graph.replay()
    graph.reset()
    (found,) = (row for row in counted.by_line.values() if row.replays)
    assert (found.replays, found.launches) == (5, 0)
    assert (found.read, found.written) == (5 * 3 * 1024, 5 * 2 * 1024)
    assert found.modelled_us() == pytest.approx(5 * 8 + 5 * 5 * 1024 / 1.2e6)


def test_bytes_are_those_that_an_operator_touches(npu: str) -> None:
    a, b = torch.ones(256, device=npu), torch.ones(64, 256, device=npu)
    i, m = torch.zeros(64, 2, dtype=torch.int64, device=npu), torch.zeros(64, 256, dtype=torch.bool, device=npu)
    for call, expected in (
        (lambda: a.expand(64, 256).add(b), (1024 + 65536, 65536)),
        (lambda: b.gather(1, i), (64 * 2 * (8 + 4), 64 * 2 * 4)),
        (lambda: b.scatter_(1, i, 0.0), (64 * 2 * 8, 64 * 2 * 4)),
        (lambda: b.index_select(0, i[0]), (2 * 8 + 2 * 1024, 2 * 1024)),
        (lambda: b.masked_fill_(m, 0.0), (65536 + 64 * 256, 65536)),
        (lambda: b[:, ::2].neg(), (65536 // 2, 65536 // 2)),
        (lambda: b.sub_(a), (65536 + 1024, 65536)),
    ):
        with hostcann.profile() as counted:
            call()
        (name,) = counted.launches
        totals = counted.by_operator[name]
        assert (totals.launches, totals.read, totals.written) == (1, *expected), name


def test_profiles_inside_one_another_and_blocks_that_raise(npu: str) -> None:
    x = torch.ones(4, 256, device=npu)
    with suppress(KeyError), hostcann.profile() as outer:
        y = x + x
        with hostcann.profile() as inner:
            y.mul_(2)
            y.cpu()
        torch.ones(3).pin_memory().npu(non_blocking=True)
        for _ in range(20):
            y = x + 1
        raise KeyError
    assert outer.launches == {"aclnnAdd": 1, "aclnnInplaceMuls": 1, "aclnnAdds": 20}
    assert inner.launches == {"aclnnInplaceMuls": 1}
    assert inner.synchronizations == {"memcpy": 1, "stream": 1}
    assert outer.copied_bytes == {"d2h": 4096, "h2d": 12}


# ---- sums and the model ----


def activity(kind: str, name: str, **values: Any) -> Activity:
    zeros: dict[str, Any] = {"file": "", "line": 0, "count": 1, "read": 0, "written": 0, "copied": 0, "memory": 0}
    return Activity(**(zeros | {"kind": kind, "name": name} | values))


def test_a_relative_and_an_absolute_name_of_a_file_are_two_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = ["made.py", str(tmp_path / "made.py"), str(tmp_path / "other.py")]
    launches = [activity("launch", "aclnnAdd", file=file, line=1, count=1 + n) for n, file in enumerate(files)]
    _, _, by_line = Profile(lambda: launches).table().partition("by line")
    rows = {words[0]: words[1] for words in map(str.split, by_line.splitlines()[1:])}
    assert rows == {"made.py:1": "1", f"{tmp_path / 'made.py'}:1": "2", "other.py:1": "3"}


def test_sums() -> None:
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


def test_the_model_is_launches_and_bytes() -> None:
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
