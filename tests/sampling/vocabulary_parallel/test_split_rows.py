"""Every kind of row, split over any number of ranks: the bits of the step that is not split."""

from __future__ import annotations

import pytest
from mixed_rows import differences, random_case, same, split, whole


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_a_split_step_is_the_step(size: int) -> None:
    for number in range(12):
        case = random_case(1000 * size + number, size)
        expected = whole(case)
        for rank, found in enumerate(split(case)):
            for output, wanted in zip(found.outputs, expected, strict=True):
                where = f"case {number}, rank {rank}"
                assert not differences(case, output, wanted), where
                assert same(output, wanted), where
