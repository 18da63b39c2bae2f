"""Every bad argument is refused before anything is launched, with its name, the rule, the value and a remedy."""

from __future__ import annotations

import pytest
import torch

import ascend_sample
import hostcann
from ascend_sample.npu.operators import OPERATORS
from tests.operators.bad_inputs import bad_inputs, good_arguments

EACH_OPERATOR = pytest.mark.parametrize("operator", OPERATORS)


def first_of(results: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return results if isinstance(results, torch.Tensor) else results[0]


@EACH_OPERATOR
@pytest.mark.parametrize("backend", [None, "reference"])
def test_function_refuses(operator: str, backend: str | None, device: str, subtests: pytest.Subtests) -> None:
    """And a batch goes on after a refused call."""
    good = good_arguments(device, operator)
    sample = getattr(ascend_sample, operator)
    with ascend_sample.use_backend(backend):
        expected = first_of(sample(**good))
        for bad in bad_inputs(device, operator):
            with subtests.test(f"{bad.argument} {bad.what}"):
                with pytest.raises(bad.error, match=bad.message) as caught:
                    sample(**bad.arguments(good))
                assert str(caught.value).startswith(f"{operator}: ")
        assert torch.equal(first_of(sample(**good)), expected)


@EACH_OPERATOR
@pytest.mark.parametrize("suffix", ["", "_composite"])
def test_operator_refuses(operator: str, suffix: str, device: str, subtests: pytest.Subtests) -> None:
    good = good_arguments(device, operator)
    sample = getattr(torch.ops.ascend_sample, operator + suffix)
    expected = first_of(sample(**good))
    for bad in bad_inputs(device, operator):
        error, message = bad.operator_error or bad.error, bad.operator_message or bad.message
        with subtests.test(f"{bad.argument} {bad.what}"), pytest.raises(error, match=message):
            sample(**bad.arguments(good))
    assert torch.equal(first_of(sample(**good)), expected)


@EACH_OPERATOR
def test_nothing_is_launched_by_a_refused_call(counting: None, npu: str, operator: str) -> None:
    """The conversions of k, p and min_p may run; the sampler must not."""
    good = good_arguments(npu, operator)
    for bad in bad_inputs(npu, operator):
        with hostcann.profile() as counted, pytest.raises((TypeError, ValueError)):
            getattr(ascend_sample, operator)(**bad.arguments(good))
        assert OPERATORS[operator].name not in counted.launches, bad
