"""What is written in C++ and in Python is the same: numbers, names and results of the operators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ascend_sample import _contract
from ascend_sample.npu.operators import OPERATORS
from tests.operators.bad_inputs import good_arguments

HEADER = Path(__file__).parents[2] / "csrc" / "contract.h"
each_operator = pytest.mark.parametrize("operator", OPERATORS)


def test_the_numbers_are_those_of_the_header() -> None:
    constants = dict(re.findall(r"constexpr int64_t (\w+) =\s*([^;]+);", HEADER.read_text()))
    numbers: dict[str, int] = {}
    for name, value in constants.items():
        numbers[name] = eval(value.replace("int64_t{1}", "1"), {}, numbers)
    assert numbers["kMaxVocabSize"] == _contract.MAX_VOCAB_SIZE
    assert numbers["kMaxTopK"] == _contract.MAX_TOP_K
    assert numbers["kSkipTopK"] == _contract.SKIP_TOP_K


@each_operator
def test_the_results_are_those_of_the_kernels(operator: str) -> None:
    arguments = good_arguments("meta", operator)
    arguments |= {"q": None} if "q" in arguments else {}
    options = {name for result in OPERATORS[operator].results if (name := result.option) is not None}
    function = getattr(torch.ops.ascend_sample, operator)
    described = OPERATORS[operator].results
    assert [returned.name for returned in function.default._schema.returns] == [result.name for result in described]
    for wanted in (options, *({option} for option in options), set[str]()):
        returned = function(**arguments | {option: option in wanted for option in options})
        tensors = (returned,) if isinstance(returned, torch.Tensor) else returned
        for result, tensor in zip(described, tensors, strict=True):
            is_there = result.option is None or result.option in wanted
            shape = ((4,) if result.is_per_row else (4, 10)) if is_there else (0,)
            assert tensor.dtype == (arguments["logits"].dtype if result.dtype is None else getattr(torch, result.dtype))
            assert tuple(tensor.shape) == shape
