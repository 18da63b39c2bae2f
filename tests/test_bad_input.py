"""Every bad argument is refused before anything is launched, with its name, the rule, the value and a remedy."""

from __future__ import annotations

import pytest
import torch
from bad_inputs import BAD_INPUTS, BadInput, bad_inputs, good_arguments

import ascend_sample
from ascend_sample import hostcann

EACH = pytest.mark.parametrize(
    ("on", "bad"),
    [(on, bad) for on in ("cpu", "npu") for bad in bad_inputs(on)],
    ids=lambda value: getattr(value, "name", value),
)


def use(device: str, request: pytest.FixtureRequest) -> str:
    """The device, skipped where there is none."""
    return str(request.getfixturevalue("npu")) if device == "npu" else device


def _bad_arguments(bad: BadInput, device: str) -> dict[str, object]:
    arguments = good_arguments(device)
    for name, replace in bad.replace.items():
        arguments[name] = replace(arguments[name])
    return arguments


def test_table_is_large_enough(device: str) -> None:
    assert len(bad_inputs(device)) >= 40
    assert len({bad.name for bad in BAD_INPUTS}) == len(BAD_INPUTS)


@EACH
def test_function_refuses(bad: BadInput, on: str, request: pytest.FixtureRequest) -> None:
    device = use(on, request)
    arguments = _bad_arguments(bad, device)
    with pytest.raises(bad.error, match=bad.message) as caught:
        ascend_sample.top_k_top_p_sample(**arguments)
    assert str(caught.value).startswith("top_k_top_p_sample: ")


@EACH
@pytest.mark.parametrize("name", ["top_k_top_p_sample", "top_k_top_p_sample_composite"])
def test_operator_refuses(bad: BadInput, name: str, on: str, request: pytest.FixtureRequest) -> None:
    device = use(on, request)
    arguments = _bad_arguments(bad, device)
    with pytest.raises(bad.operator_error or bad.error, match=bad.operator_message or bad.message):
        getattr(torch.ops.ascend_sample, name)(**arguments)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_reference_refuses(bad: BadInput) -> None:
    arguments = _bad_arguments(bad, "cpu")
    with ascend_sample.use_backend("reference"), pytest.raises(bad.error, match=bad.message):
        ascend_sample.top_k_top_p_sample(**arguments)


def test_good_arguments_are_good(device: str) -> None:
    arguments = good_arguments(device)
    expected = ascend_sample.top_k_top_p_sample(**arguments).logits_select_idx
    assert torch.equal(torch.ops.ascend_sample.top_k_top_p_sample(**arguments)[0], expected)


def test_nothing_is_launched_by_a_refused_call(npu: str) -> None:
    """The conversions of k and p may run; the sampler must not."""
    for bad in bad_inputs(npu):
        arguments = _bad_arguments(bad, npu)
        before = hostcann.counters().launches.get("aclnnTopKTopPSample", 0)
        with pytest.raises((TypeError, ValueError)):
            ascend_sample.top_k_top_p_sample(**arguments)
        torch.npu.synchronize()
        assert hostcann.counters().launches.get("aclnnTopKTopPSample", 0) == before, bad.name


def test_batch_goes_on_after_a_refused_call(device: str) -> None:
    arguments = good_arguments(device)
    expected = ascend_sample.top_k_top_p_sample(**arguments).logits_select_idx
    for bad in bad_inputs(device):
        with pytest.raises((TypeError, ValueError)):
            ascend_sample.top_k_top_p_sample(**_bad_arguments(bad, device))
    assert torch.equal(ascend_sample.top_k_top_p_sample(**arguments).logits_select_idx, expected)
