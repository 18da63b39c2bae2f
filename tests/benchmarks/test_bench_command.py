"""`python -m ascend_sample bench` measures what it says: time by known clocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_sample import cli, hostcann, use_backend
from ascend_sample.bench import run as user_bench
from ascend_sample.bench.timing import Budget, Statistics, measure, repeat, rotate

TINY = Budget(seconds=0.01, sample_seconds=1e-4, most_rounds=3)


class Clock:
    """A subject whose call takes a known time, without waiting for it."""

    def __init__(self, name: str, seconds: float | list[float], log: list[tuple[str, int]]) -> None:
        self.name, self.log = name, log
        self.seconds = [seconds] if isinstance(seconds, float) else seconds
        self.place = 0

    def __call__(self, calls: int) -> float:
        self.log.append((self.name, calls))
        self.place += 1
        return calls * self.seconds[self.place % len(self.seconds)]


class TestTiming:
    def test_statistics_of_known_samples(self) -> None:
        found = Statistics.of([5.0, 1.0, 2.0, 3.0, 4.0], calls_per_round=7)
        assert found == Statistics(3.0, 2.0, 4.0, 1.0, rounds=5, calls_per_round=7)
        assert found.spread == pytest.approx(2 / 3)

    def test_fast_subjects_loop_and_slow_ones_have_the_fewest_rounds(self) -> None:
        budget = Budget(seconds=1.0, sample_seconds=1e-3, fewest_rounds=3, most_rounds=40)
        found = measure({"fast": Clock("fast", 1e-5, []), "slow": Clock("slow", 2.0, [])}, budget)
        assert (found["fast"].calls_per_round, found["fast"].rounds) == (100, 40)
        assert (found["slow"].calls_per_round, found["slow"].rounds) == (1, 3)

    def test_rounds_interleave_and_begin_with_another_subject_each_time(self) -> None:
        log: list[tuple[str, int]] = []
        subjects = {name: Clock(name, 0.1, log) for name in "abc"}
        measure(subjects, Budget(seconds=0.9, fewest_rounds=3))
        assert "".join(name for name, _ in log) == "abc" + "abcbcacab"

    def test_a_subject_with_few_rounds_takes_part_in_evenly_spread_ones(self) -> None:
        log: list[tuple[str, int]] = []
        measure({"a": Clock("a", 0.1, log), "b": Clock("b", 0.3, log)}, Budget(seconds=1.8, fewest_rounds=1))
        rounds = "".join(name for name, _ in log)[2:]
        assert (rounds.count("a"), rounds.count("b")) == (9, 3)
        assert rounds.split("b")[0].count("a") <= 3

    def test_a_noisy_fast_subject_is_measured_for_longer_and_a_slow_one_is_not(self) -> None:
        budget = Budget(seconds=1.0, fewest_rounds=4, most_rounds=4)
        noisy = Clock("noisy", [1e-4, 5e-4, 1e-4, 9e-4, 2e-4, 7e-4, 3e-4], [])
        found = measure(
            {"noisy": noisy, "slow": Clock("slow", [0.1, 0.9], []), "calm": Clock("calm", 1e-4, [])}, budget
        )
        assert (found["noisy"].rounds, found["slow"].rounds, found["calm"].rounds) == (8, 4, 4)

    def test_repeat_calls_as_often_as_it_says_and_waits_for_the_device(self) -> None:
        log: list[str] = []
        assert repeat(lambda: log.append("call"), lambda: log.append("wait"))(2) >= 0
        assert log == ["wait", "call", "call", "wait"]

    def test_rotation_goes_round(self) -> None:
        call = rotate(lambda value: value, [(1,), (2,), (3,)])
        assert [call() for _ in range(5)] == [1, 2, 3, 1, 2]


class TestUserCommand:
    def run(self, *words: str) -> int:
        return cli.main(["bench", "--vocab-size", "64", *words])

    def test_shows_every_shape(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run("--batch", "1", "3", "--dtype", "float16") == 0
        printed = capsys.readouterr().out
        assert "[1, 64] float16" in printed
        assert "[3, 64] float16" in printed
        for name in (user_bench.OPERATOR, user_bench.READ, "torch.topk", "composite", "reference"):
            assert printed.count(name) >= 2
        assert "EMULATED" not in printed

    def test_filters_and_cold_data(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(user_bench, "COLD_BYTES", 1000)
        assert self.run("--batch", "2", "--k", "0", "--p", "1", "--cold") == 0
        printed = capsys.readouterr().out
        assert all(said in printed for said in ("no top-k", "no top-p", "other logits in every call"))

    def test_json(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.json"
        assert self.run("--batch", "2", "--json", str(path)) == 0
        figures = json.loads(path.read_text())
        assert figures["options"]["vocab_size"] == 64
        assert figures["options"]["emulated"] is False
        assert figures["seconds"]["2"][user_bench.OPERATOR]["median"] > 0

    def test_emulation_is_called_so(self, npu: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run("--batch", "2", "--device", npu) == 0
        assert ("say nothing about any hardware" in capsys.readouterr().out) == hostcann.is_active()

    def test_a_device_that_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        for device in ("xpu", "meta", "foo", "cpu:x"):
            assert self.run("--device", device) == 2
            (said,) = capsys.readouterr().out.splitlines()
            assert f"bench: --device must be one that torch can use here, got {device}: " in said

    def test_a_forced_backend_that_does_not_serve_the_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        with use_backend("aclnn"):
            assert self.run() == 2
        assert capsys.readouterr().out.startswith("bench: top_k_top_p_sample: the forced backend aclnn cannot serve")

    @pytest.mark.parametrize(
        "words", [("--vocab-size", "2000000"), ("--batch", "0"), ("--json", "no/such/folder/file")]
    )
    def test_bad_options(self, words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            self.run(*words)
        assert f"error: argument {words[0]}: must " in capsys.readouterr().err

    def test_large_shapes_leave_the_slow_out(self) -> None:
        results = dict.fromkeys((user_bench.OPERATOR, user_bench.READ), Statistics.of([1e-3]))
        lines = user_bench.table(results, 1_000_000).splitlines()
        assert [line.split()[0] for line in lines if "left out" in line] == ["composite", "reference"]
        assert lines[1].split()[-1] == "1.0"  # a megabyte in a millisecond is 1 GB/s
