"""The planted faults of tests/mutation fit the sources: a change that leaves one without its text fails here."""

from __future__ import annotations

from collections import Counter

from tests.mutation.run import EVERY, ROOT, check_texts


def test_every_text_occurs_once() -> None:
    check_texts(EVERY)


def test_names_are_distinct() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in EVERY).items() if count > 1] == []


def test_the_tests_that_are_tried_first_exist() -> None:
    files = {argument.split("::")[0] for mutant in EVERY for argument in mutant.tests if argument.startswith("tests/")}
    assert sorted(file for file in files if not (ROOT / file).exists()) == []
