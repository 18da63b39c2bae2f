"""Every bad argument is refused before anything is launched, with its name, the rule, the value and a remedy."""

from __future__ import annotations

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu.operators import OPERATORS
from tests.operators.bad_inputs import BadInput, bad_inputs, good_arguments

EACH = pytest.mark.parametrize(
    ("operator", "on", "bad"),
    [(operator, on, bad) for operator in OPERATORS for on in ("cpu", "npu") for bad in bad_inputs(on, operator)],
    ids=lambda value: getattr(value, "name", value),
)
EACH_OPERATOR = pytest.mark.parametrize("operator", OPERATORS)


def use(device: str, request: pytest.FixtureRequest) -> str:
    """The device, skipped where there is none."""
    return str(request.getfixturevalue("npu")) if device == "npu" else device


def _bad_arguments(bad: BadInput, device: str, operator: str) -> dict[str, object]:
    arguments = good_arguments(device, operator)
    for name, replace in bad.replace.items():
        arguments[name] = replace(arguments[name])
    return arguments


@EACH_OPERATOR
def test_table_is_large_enough(device: str, operator: str) -> None:
    table = bad_inputs(device, operator)
    assert len(table) >= 40
    assert len({bad.name for bad in table}) == len(table)


@EACH
def test_function_refuses(operator: str, bad: BadInput, on: str, request: pytest.FixtureRequest) -> None:
    device = use(on, request)
    arguments = _bad_arguments(bad, device, operator)
    with pytest.raises(bad.error, match=bad.message) as caught:
        getattr(ascend_sample, operator)(**arguments)
    assert str(caught.value).startswith(f"{operator}: ")


@EACH
@pytest.mark.parametrize("suffix", ["", "_composite"])
def test_operator_refuses(operator: str, bad: BadInput, suffix: str, on: str, request: pytest.FixtureRequest) -> None:
    device = use(on, request)
    arguments = _bad_arguments(bad, device, operator)
    with pytest.raises(bad.operator_error or bad.error, match=bad.operator_message or bad.message):
        getattr(torch.ops.ascend_sample, operator + suffix)(**arguments)


@pytest.mark.parametrize(
    ("operator", "bad"),
    [(operator, bad) for operator in OPERATORS for bad in bad_inputs("cpu", operator)],
    ids=lambda value: getattr(value, "name", value),
)
def test_reference_refuses(operator: str, bad: BadInput) -> None:
    arguments = _bad_arguments(bad, "cpu", operator)
    with ascend_sample.use_backend("reference"), pytest.raises(bad.error, match=bad.message):
        getattr(ascend_sample, operator)(**arguments)


@EACH_OPERATOR
def test_good_arguments_are_good(device: str, operator: str) -> None:
    arguments = good_arguments(device, operator)
    expected = getattr(ascend_sample, operator)(**arguments).logits_select_idx
    assert torch.equal(getattr(torch.ops.ascend_sample, operator)(**arguments)[0], expected)


@EACH_OPERATOR
def test_nothing_is_launched_by_a_refused_call(npu: str, operator: str) -> None:
    """The conversions of k, p and min_p may run; the sampler must not."""
    launched = OPERATORS[operator].name
    for bad in bad_inputs(npu, operator):
        arguments = _bad_arguments(bad, npu, operator)
        with hostcann.profile() as counted, pytest.raises((TypeError, ValueError)):
            getattr(ascend_sample, operator)(**arguments)
        assert launched not in counted.launches, bad.name


@EACH_OPERATOR
def test_batch_goes_on_after_a_refused_call(device: str, operator: str) -> None:
    arguments = good_arguments(device, operator)
    sample = getattr(ascend_sample, operator)
    expected = sample(**arguments).logits_select_idx
    for bad in bad_inputs(device, operator):
        with pytest.raises((TypeError, ValueError)):
            sample(**_bad_arguments(bad, device, operator))
    assert torch.equal(sample(**arguments).logits_select_idx, expected)
