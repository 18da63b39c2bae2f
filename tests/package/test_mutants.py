"""The planted faults of tests/mutation fit the sources: a change that leaves one without its text fails here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.mutants import EVERY
from tests.mutation.planted_copy import ROOT, MutationError, PlantedCopy
from tests.mutation.run import check_texts


def test_every_text_occurs_once() -> None:
    check_texts(EVERY)


def test_names_are_distinct() -> None:
    assert len({mutant.name for mutant in EVERY}) == len(EVERY)


def test_the_tests_that_are_tried_first_exist() -> None:
    files = {argument.split("::")[0] for mutant in EVERY for argument in mutant.tests if argument.startswith("tests/")}
    assert sorted(file for file in files if not (ROOT / file).exists()) == []


def test_tests_that_fail_by_themselves_catch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlantedCopy, "first_failure", lambda _copy, tests: "tests/a.py::test_b")
    with pytest.raises(MutationError, match=r"^without any fault, pytest .* must pass, got tests/a\.py::test_b$"):
        PlantedCopy(tmp_path).try_mutant(EVERY[0])
