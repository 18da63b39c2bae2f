"""Where CANN lacks the operator or its kernel: the composite serves and says so once, or a forced binding fails."""

from __future__ import annotations

import pytest
import torch

import ascend_sample

from .batches import check_equal, make_batch
from .conftest import ROUTES
from .isolation import Finished, run_isolated

PHASE_1 = "aclnnTopKTopPSampleGetWorkspaceSize"
PHASE_2 = "aclnnTopKTopPSample"

pytestmark = pytest.mark.usefixtures("emulated")


def use_what_there_is() -> dict[str, object]:
    """Samples by every way there is; returns the route, and the errors of the bindings when they are forced."""
    batch = make_batch()
    expected = batch.expected()
    batch = batch.to("npu")
    check_equal(batch.sample(), expected)
    check_equal(batch.sample(is_need_logits=False), expected)
    ids, _ = torch.ops.ascend_sample.top_k_top_p_sample(batch.logits, batch.k, batch.p, batch.q)
    assert ids.tolist() == expected.logits_select_idx.tolist()
    torch.npu.synchronize()
    return ask_for_routes()


def ask_for_routes() -> dict[str, object]:
    """The route of 16-bit logits, and the errors of the bindings when they are forced."""
    logits = torch.empty(1, 4, dtype=torch.bfloat16, device="npu")
    errors = {}
    for route in ROUTES:
        with ascend_sample.use_backend(route):
            try:
                ascend_sample.which_backend(logits)
            except RuntimeError as error:
                errors[route] = str(error)
            else:
                continue
            assert error_of_call(logits) == errors[route]
    backend, reason = ascend_sample.which_backend(logits)
    return {"backend": backend, "reason": reason, "errors": errors}


def error_of_call(logits: torch.Tensor) -> str:
    k, p = logits.new_empty(1, dtype=torch.int32), logits.new_empty(1)  # no operator is run for them
    with pytest.raises(RuntimeError) as caught:
        ascend_sample.top_k_top_p_sample(logits, k, p)
    return str(caught.value)


def check_reasons(told: dict[str, object], *words: str) -> None:
    """The composite serves, for a reason with these words; each binding that is forced fails with them."""
    assert told["backend"] == "composite"
    errors = told["errors"]
    assert isinstance(errors, dict)
    assert set(errors) == set(ROUTES)
    for text in (told["reason"], *errors.values()):
        for word in words:
            assert word in text, text
    for route, text in errors.items():
        assert f"the forced backend {route} cannot serve" in text
        assert "Unset ASCEND_SAMPLE_BACKEND" in text


def check_fallback(finished: Finished, *words: str) -> None:
    """Right results by the composite, which has said so once, and never the operator."""
    finished.check_clean()
    check_reasons(finished.result, *words)
    said = [line for line in finished.stderr.splitlines() if "served by the composite" in line]
    assert len(said) == 1, finished.stderr
    assert all(word in said[0] for word in words), said
    assert PHASE_2 not in finished.report["counters"]["launches"]


@pytest.mark.parametrize("symbol", [PHASE_1, PHASE_2])
def test_missing_symbol(symbol: str) -> None:
    finished = run_isolated(use_what_there_is, without=[symbol])
    check_fallback(finished, symbol, "libopapi.so", "set_env.sh")


def test_unsupported_soc() -> None:
    check_fallback(run_isolated(use_what_there_is, HOSTCANN_SOC="Ascend310P3"), "SoC Ascend310P3", "Atlas A2")


def test_soc_of_the_first_training_series() -> None:
    """Its name is the beginning of A2's names. torch_npu runs it without aclnn, so only the route can be asked for."""
    check_reasons(run_isolated(ask_for_routes, HOSTCANN_SOC="Ascend910B").result, "SoC Ascend910B", "Atlas A2")


def test_supported_soc_of_the_other_series() -> None:
    finished = run_isolated(use_what_there_is, HOSTCANN_SOC="Ascend910_9391")
    finished.check_clean()
    assert (finished.result["backend"], finished.result["errors"]) == ("aclnn", {})
    assert "served by the composite" not in finished.stderr


def sample_as_the_environment_says() -> str:
    batch = make_batch()
    check_equal(batch.to("npu").sample(), batch.expected())
    return ascend_sample.which_backend(batch.to("npu").logits).reason


def test_forced_by_the_environment() -> None:
    finished = run_isolated(sample_as_the_environment_says, ASCEND_SAMPLE_BACKEND="cffi")
    finished.check_clean()
    assert finished.result == "forced"
