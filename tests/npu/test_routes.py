"""Where CANN lacks the operator or the SoC has no kernel of it: the composite serves, says so once, or the call fails."""

from __future__ import annotations

import warnings

import pytest
import torch

import ascend_sample

from .batches import check_equal, make_batch
from .conftest import ROUTES
from .isolation import run_isolated

PHASE_1 = "aclnnTopKTopPSampleGetWorkspaceSize"
PHASE_2 = "aclnnTopKTopPSample"

pytestmark = pytest.mark.usefixtures("emulated")


def use_what_there_is() -> dict[str, object]:
    """Samples by every way there is; returns what was said on the way."""
    batch = make_batch()
    expected = batch.expected()
    batch = batch.to("npu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_equal(batch.sample(), expected)
        check_equal(batch.sample(is_need_logits=False), expected)
        ids, _ = torch.ops.ascend_sample.top_k_top_p_sample(batch.logits, batch.k, batch.p, batch.q)
        assert ids.tolist() == expected.logits_select_idx.tolist()
    errors = {}
    for route in ROUTES:
        with ascend_sample.use_backend(route):
            try:
                batch.sample()
            except RuntimeError as error:
                errors[route] = str(error)
    said = [str(warning.message) for warning in caught if "top_k_top_p_sample" in str(warning.message)]
    backend, reason = ascend_sample.which_backend(batch.logits)
    torch.npu.synchronize()
    return {"backend": backend, "reason": reason, "warnings": said, "errors": errors}


def check_fallback(options: tuple[str, ...], *words: str, **environment: str) -> None:
    """One warning, a reason, right results; and an error of each binding that is forced."""
    finished = run_isolated(use_what_there_is, options=options, **environment)
    finished.check_clean()
    told = finished.result
    assert told["backend"] == "composite"
    (warning,) = told["warnings"]
    assert "composite" in warning
    assert set(told["errors"]) == set(ROUTES)
    for text in (warning, told["reason"], *told["errors"].values()):
        for word in words:
            assert word in text, text
    for route, text in told["errors"].items():
        assert f"the forced backend {route} cannot serve" in text
        assert "Unset ASCEND_SAMPLE_BACKEND" in text
    assert PHASE_2 not in finished.report["counters"]["launches"]


@pytest.mark.parametrize("symbol", [PHASE_1, PHASE_2])
def test_missing_symbol(symbol: str) -> None:
    check_fallback(("--without", symbol), symbol, "libopapi.so", "set_env.sh")


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910B"])
def test_unsupported_soc(soc: str) -> None:
    """Ascend910B without a number is a chip of the first training series."""
    check_fallback(("--soc", soc), f"SoC {soc}", "Atlas A2")


def test_supported_soc_of_the_other_series() -> None:
    finished = run_isolated(use_what_there_is, options=("--soc", "Ascend910_9391"))
    finished.check_clean()
    assert (finished.result["backend"], finished.result["warnings"], finished.result["errors"]) == ("aclnn", [], {})


def sample_as_the_environment_says() -> str:
    batch = make_batch()
    check_equal(batch.to("npu").sample(), batch.expected())
    return ascend_sample.which_backend(batch.to("npu").logits).reason


def test_forced_by_the_environment() -> None:
    finished = run_isolated(sample_as_the_environment_says, ASCEND_SAMPLE_BACKEND="cffi")
    finished.check_clean()
    assert finished.result == "forced"
