"""The planted faults of tests/mutation fit the sources: a change that leaves one without its text fails here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.mutants import EVERY, Mutant, read_faults
from tests.mutation.planted_copy import ROOT, MutationError, Outcome, PlantedCopy
from tests.mutation.run import check_texts, keep_outcome, known_outcomes


def test_every_text_occurs_once() -> None:
    """Those of the oracles too, which no other run of pytest plants."""
    of_oracles = [fault for path in (ROOT / "tests/decoding_oracles").glob("*.toml") for fault in read_faults(path)]
    assert len(of_oracles) > 0
    check_texts([*EVERY, *of_oracles])


def test_names_are_distinct() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in EVERY).items() if count > 1] == []


def test_the_tests_that_are_tried_first_exist() -> None:
    files = {argument.split("::")[0] for mutant in EVERY for argument in mutant.tests if argument.startswith("tests/")}
    assert sorted(file for file in files if not (ROOT / file).exists()) == []


def test_an_outcome_is_known_until_what_it_is_of_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "OUTCOMES", tmp_path / "outcomes.json")
    caught, survived, untried = EVERY[:3]
    assert known_outcomes(EVERY) == []
    keep_outcome(Outcome(caught, "tests/a.py::test_b", 7))
    keep_outcome(Outcome(survived, None, 8))
    assert known_outcomes([caught, survived, untried]) == [Outcome(caught, "tests/a.py::test_b", 7)]
    assert known_outcomes([replace(caught, new="another fault")]) == []
    assert known_outcomes([replace(caught, tests=("tests/cpu",))]) == []


def test_a_fault_that_cannot_be_tried_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(_copy: PlantedCopy, mutant: Mutant) -> Outcome:
        if mutant is EVERY[0]:
            raise MutationError("does not compile")
        return Outcome(mutant, "tests/a.py::test_b", 1)

    monkeypatch.setattr(run, "OUTCOMES", tmp_path / "outcomes.json")
    monkeypatch.setattr(run, "prepared_copies", lambda number: [PlantedCopy(tmp_path)] * number)
    monkeypatch.setattr(PlantedCopy, "try_mutant", tried)
    with pytest.raises(MutationError, match=f"^1 could not be tried:\n{EVERY[0].name}: does not compile$"):
        run.run(EVERY[:3], is_anew=False, copies=2)
    assert [outcome.mutant for outcome in known_outcomes(EVERY)] == list(EVERY[1:3])


def test_tests_that_fail_by_themselves_catch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlantedCopy, "first_failure", lambda _copy, tests: "tests/a.py::test_b")
    with pytest.raises(MutationError, match=r"^without any fault, pytest .* must pass, got tests/a\.py::test_b$"):
        PlantedCopy(tmp_path).try_mutant(EVERY[0])
