"""`python -m ascend_sample bench` measures what it says: time by known clocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hostcann
from ascend_sample import cli, use_backend
from ascend_sample.bench import run as user_bench
from ascend_sample.bench.timing import Budget, Statistics, measure

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

    def test_a_noisy_fast_subject_is_measured_for_longer_and_a_slow_one_is_not(self) -> None:
        budget = Budget(seconds=1.0, fewest_rounds=4, most_rounds=4)
        noisy = Clock("noisy", [1e-4, 5e-4, 1e-4, 9e-4, 2e-4, 7e-4, 3e-4], [])
        found = measure(
            {"noisy": noisy, "slow": Clock("slow", [0.1, 0.9], []), "calm": Clock("calm", 1e-4, [])}, budget
        )
        assert (found["noisy"].rounds, found["slow"].rounds, found["calm"].rounds) == (8, 4, 4)


class TestUserCommand:
    def run(self, *words: str) -> int:
        return cli.main(["bench", "--vocab-size", "64", *words])

    def test_shows_and_keeps_every_shape(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(user_bench, "COLD_BYTES", 1000)
        path = tmp_path / "figures.json"
        assert self.run("--batch", "1", "3", "--dtype", "float16", "--cold", "--k", "0", "--json", str(path)) == 0
        printed = capsys.readouterr().out
        assert all(
            said in printed for said in ("[1, 64] float16", "[3, 64] float16", "no top-k", "other logits in every")
        )
        for name in (user_bench.OPERATOR, user_bench.READ, "torch.topk", "composite", "reference"):
            assert printed.count(name) >= 2
        assert "EMULATED" not in printed
        figures = json.loads(path.read_text())
        assert (figures["options"]["vocab_size"], figures["options"]["emulated"]) == (64, False)
        assert figures["seconds"]["3"][user_bench.OPERATOR]["median"] > 0

    def test_emulation_is_called_so(self, npu: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run("--batch", "2", "--device", npu) == 0
        assert ("say nothing about any hardware" in capsys.readouterr().out) == hostcann.is_active()

    def test_what_cannot_be_measured_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        for device in ("xpu", "cpu:x"):
            assert self.run("--device", device) == 2
            said = f"bench: --device must be one that torch can use here, got {device}: "
            assert said in capsys.readouterr().out
        with use_backend("aclnn"):
            assert self.run() == 2
        assert capsys.readouterr().out.startswith("bench: top_k_top_p_sample: the forced backend aclnn cannot serve")
        for words in (("--vocab-size", "2000000"), ("--batch", "0"), ("--json", "no/such/folder/file")):
            with pytest.raises(SystemExit):
                self.run(*words)
            assert f"error: argument {words[0]}: must " in capsys.readouterr().err
