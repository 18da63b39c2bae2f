"""Two checkouts in turns: what is timed is what the function takes, and what is no built checkout is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascend_sample.sampling import SamplerOutput
from benchmarks import two_checkouts


def test_every_cell_is_a_call_that_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_checkouts, "BATCH_SIZE", 2)
    monkeypatch.setattr(two_checkouts, "VOCAB_SIZE", 3000)
    cells = list(two_checkouts.make_cells())
    assert len({name for name, _, _ in cells}) == len(cells) == 80
    for name, call, _ in cells:
        found = call()
        ids = found.token_ids if isinstance(found, SamplerOutput) else found[0]
        assert len(ids) == (1 if name.startswith("a call") else 2)
        assert torch.all((ids >= 0) & (ids < (two_checkouts.SMALL_VOCAB_SIZE if len(ids) == 1 else 3000)))


def test_a_folder_that_is_not_built_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["two_checkouts", str(tmp_path), str(tmp_path)])
    with pytest.raises(SystemExit):
        two_checkouts.main()
    assert f"checkouts must be built, got {tmp_path}" in capsys.readouterr().err


def test_no_rounds_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["two_checkouts", "a", "b", "--rounds", "0"])
    with pytest.raises(SystemExit):
        two_checkouts.main()
    assert "two_checkouts: error: --rounds must be at least 1, got 0." in capsys.readouterr().err


def test_sides_are_timed_in_alternating_order_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Side:
        names = ("small", "large", "small too")

        def __init__(self, checkout: Path, threads: int) -> None:
            self.checkout = checkout.name

        def seconds(self, cell: int) -> float:
            events.append(f"{self.checkout} {cell}")
            return {"before": 1.0, "after": 2.0}[self.checkout] * (cell + 1)

        def end(self) -> None:
            events.append(f"{self.checkout} ends")

    monkeypatch.setattr(two_checkouts, "Side", Side)
    found = dict(two_checkouts.times_of_pair([Path("before"), Path("after")], 1, rounds=3, only="small"))
    assert found == {"small": [(1.0, 2.0)] * 3, "small too": [(3.0, 6.0)] * 3}
    a_cell = ["after {}", "before {}", "before {}", "after {}", "after {}", "before {}"]
    assert events == [each.format(cell) for cell in (0, 2) for each in a_cell] + ["before ends", "after ends"]
    assert two_checkouts.median_ratio(found["small too"]) == 2


def test_cells_that_are_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ascend_sample").mkdir()
    (tmp_path / "ascend_sample" / "_C.so").touch()
    monkeypatch.setattr(two_checkouts, "times_of_pair", lambda *arguments: iter(()))
    monkeypatch.setattr("sys.argv", ["two_checkouts", str(tmp_path), str(tmp_path), "--only", "nothing"])
    with pytest.raises(SystemExit):
        two_checkouts.main()
    assert "--only must be part of a cell's description, got 'nothing'" in capsys.readouterr().err
