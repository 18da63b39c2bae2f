"""Where CANN lacks the operator or its kernel: the composite serves and says so once, or a forced binding fails."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

import ascend_sample
from ascend_sample import info
from ascend_sample.npu import aclnn_cffi
from ascend_sample.npu.operators import OPERATORS
from tests.support.isolation import Finished, run_isolated

from .batches import SAMPLE, SAMPLE_V2, SAMPLERS, check_equal, make_batch, use_variant
from .conftest import ROUTES

pytestmark = pytest.mark.usefixtures("emulated")


def use_what_there_is(*operators: str) -> dict[str, dict[str, object]]:
    """Samples by every way there is; returns what is told of each operator."""
    for operator in operators:
        with use_variant(operator):
            batch = make_batch()
            expected = batch.expected()
            batch = batch.to("npu")
            check_equal(batch.sample(), expected)
            check_equal(batch.sample(is_need_logits=False), expected)
            ids, *_ = getattr(torch.ops.ascend_sample, operator)(*batch.tensors)
            assert ids.tolist() == expected.logits_select_idx.tolist()
            torch.npu.synchronize()
    npu = info.collect()["npu"]
    return {
        operator: told | {"info": npu[OPERATORS[operator].name]}
        for operator, told in ask_for_routes(*operators).items()
    }


def ask_for_routes(*operators: str) -> dict[str, dict[str, object]]:
    """Returns what is told of each operator."""
    return {operator: ask_for_route(operator) for operator in operators}


def ask_for_route(operator: str) -> dict[str, object]:
    """The route of 16-bit logits, and the errors of the bindings when they are forced, cffi's when called directly."""
    logits = torch.empty(1, 4, dtype=torch.bfloat16, device="npu")
    errors = {}
    for route in ROUTES:
        with ascend_sample.use_backend(route):
            try:
                ascend_sample.which_backend(logits, operator)
            except RuntimeError as error:
                errors[route] = str(error)
            else:
                continue
            assert error_of_call(getattr(ascend_sample, operator), logits) == errors[route]
    if "cffi" in errors:
        errors["direct"] = error_of_call(functools.partial(aclnn_cffi.launch, operator), logits)
    backend, reason = ascend_sample.which_backend(logits, operator)
    return {"backend": backend, "reason": reason, "errors": errors}


def error_of_call(sample: Callable[..., object], logits: torch.Tensor) -> str:
    k, p = logits.new_empty(1, dtype=torch.int32), logits.new_empty(1)  # no operator is run for them
    with pytest.raises(RuntimeError) as caught:
        sample(logits, k, p)
    return str(caught.value)


def check_reasons(told: dict[str, object], operator: str, *words: str) -> None:
    """The composite serves, for a reason with these words; each binding that is forced gives the same one."""
    assert told["backend"] == "composite"
    reason = told["reason"]
    assert isinstance(reason, str)
    for word in words:
        assert word in reason
    remedy = f"Unset ASCEND_SAMPLE_BACKEND, or name another of {', '.join(ascend_sample.backend.BACKENDS)}."
    forced = {
        route: f"{operator}: the forced backend {route} cannot serve torch.bfloat16 on npu:0: {reason}. {remedy}"
        for route in ROUTES
    }
    assert told["errors"] == forced | {"direct": f"{operator}: {reason}."}


def check_fallback(finished: Finished, operator: str, *words: str) -> None:
    """Right results by the composite, which has said so once, and never the operator."""
    finished.check_clean()
    check_reasons(finished.result[operator], operator, *words)
    said = [line for line in finished.stderr.splitlines() if f"{operator}: served by the composite" in line]
    assert len(said) == 1, finished.stderr
    assert all(word in said[0] for word in words), said
    assert OPERATORS[operator].name not in finished.launches


def check_binding(finished: Finished, operator: str) -> None:
    """The compiled binding serves, and both can be forced."""
    finished.check_clean()
    assert (finished.result[operator]["backend"], finished.result[operator]["errors"]) == ("aclnn", {})
    assert f"{operator}: served by the composite" not in finished.stderr
    assert finished.launches[OPERATORS[operator].name] == 3


@pytest.mark.parametrize(("operator", "phase"), [(SAMPLE, "phase_1"), (SAMPLE_V2, "phase_2")])
def test_missing_symbol(operator: str, phase: str) -> None:
    """An older CANN. The error names the one that has the operator, and the other operator is served."""
    symbol = getattr(OPERATORS[operator], phase)
    finished = run_isolated(use_what_there_is, *SAMPLERS, without=[symbol])
    version = "CANN 8.3 and later" if operator == SAMPLE else "CANN 9.0 or later"
    check_fallback(finished, operator, symbol, "libopapi.so", "set_env.sh", version)
    assert finished.result[operator]["info"].startswith("not found")
    assert OPERATORS[operator].found_in in finished.result[operator]["info"]
    (other,) = set(SAMPLERS) - {operator}
    check_binding(finished, other)
    assert finished.result[other]["info"].endswith(".so")


def fall_back_twice() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16):
        ascend_sample.top_k_top_p_sample(torch.zeros(1, 4, dtype=dtype, device="npu"))


def test_each_reason_is_told_once() -> None:
    finished = run_isolated(fall_back_twice, HOSTCANN_SOC="Ascend310P3")
    said = [line for line in finished.stderr.splitlines() if "served by the composite" in line]
    assert len(said) == 2, finished.stderr
    assert "takes float16 and bfloat16" in said[0]
    assert "not on SoC Ascend310P3" in said[1]


@pytest.mark.parametrize("soc", ["Ascend310P3", pytest.param("Ascend910B", marks=pytest.mark.long)])
def test_unsupported_soc(soc: str) -> None:
    """The latter, of the first training series, begins as A2's names do; torch_npu runs it without aclnn."""
    use = use_what_there_is if soc == "Ascend310P3" else ask_for_routes
    finished = run_isolated(use, *SAMPLERS, HOSTCANN_SOC=soc)
    for operator in SAMPLERS:
        check_reasons(finished.result[operator], operator, f"SoC {soc}", "Atlas A2")
        if soc == "Ascend310P3":
            check_fallback(finished, operator, f"SoC {soc}", "Atlas A2")


@pytest.mark.long
def test_supported_socs_of_other_series() -> None:
    """Atlas A3 has both operators, Ascend 950 the second alone."""
    finished = run_isolated(use_what_there_is, *SAMPLERS, HOSTCANN_SOC="Ascend910_9391")
    for operator in SAMPLERS:
        check_binding(finished, operator)
    environment = {"HOSTCANN_SOC": "Ascend950PR_9599", "HOSTCANN_CANN_VERSION": "9.1.0"}
    told = run_isolated(ask_for_routes, *SAMPLERS, **environment).result
    check_reasons(told[SAMPLE], SAMPLE, "SoC Ascend950PR_9599", "Atlas A2")
    assert (told[SAMPLE_V2]["backend"], told[SAMPLE_V2]["errors"]) == ("aclnn", {})


def sample_on_the_second_device(route: str) -> list[str]:
    torch.npu.set_device(1)
    batch = make_batch()
    with ascend_sample.use_backend(route):
        sampled = batch.to("npu").sample()
    check_equal(sampled, batch.expected())
    return [str(result.device) for result in sampled]


@pytest.mark.parametrize("route", ROUTES)
def test_a_rank_uses_no_device_but_its_own(route: str) -> None:
    """The emulated CANN refuses a process a second one; a real CANN would take memory of it, in silence."""
    finished = run_isolated(sample_on_the_second_device, route, HOSTCANN_DEVICES="2")
    finished.check_clean()
    assert set(finished.result) == {"npu:1"}
