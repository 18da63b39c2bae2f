"""The planted faults of tests/mutation fit the sources: a change that leaves one without its text fails here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.run import EVERY, ROOT, Outcome, check_texts, keep_outcome, known_outcomes


def test_every_text_occurs_once() -> None:
    check_texts(EVERY)


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
