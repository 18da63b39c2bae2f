"""One result for a row: on every instruction set, for any number of threads, in any batch; and the right one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from batch_file import Call, read_results, write_batches
from rows import Recomposed
from run_driver import Driver
from run_operator import run_operator

from ascend_sample.parity import Kind, Result, compare
from ascend_sample.reference import top_k_top_p_sample_reference
from tests.support.warm_python import run_warm


def assert_same(actual: list[Result], expected: list[Result], calls: list[Call]) -> None:
    """Ids, and kept logits bit for bit."""
    for index, (one, other, call) in enumerate(zip(actual, expected, calls, strict=True)):
        rows = one.ids != other.ids
        if one.kept is not None and other.kept is not None:
            rows |= (one.kept.view(torch.int32) != other.kept.view(torch.int32)).any(dim=1)
        assert not rows.any(), (
            f"batch {index}, rows {rows.nonzero().flatten().tolist()}: ids {one.ids[rows].tolist()} against "
            f"{other.ids[rows].tolist()}; {list(call.logits.shape)} {call.logits.dtype}, k={call.k[rows].tolist()}, "
            f"p={call.p[rows].tolist()}, eps={call.eps}, q={'yes' if call.q is not None else 'no'}"
        )


def test_rows_are_many_and_of_every_kind(calls: list[Call]) -> None:
    assert sum(call.logits.shape[0] for call in calls) >= 20_000
    assert {call.logits.dtype for call in calls} == {torch.float32, torch.float16, torch.bfloat16}
    assert {call.is_need_logits for call in calls} == {True, False}
    strides = {(call.logits.stride(1) > 1, call.logits.stride(0) == 0) for call in calls}
    assert strides == {(False, False), (True, False), (False, True)}
    assert any(call.q is None for call in calls)
    assert any(call.q is not None and call.q.stride(1) > 1 for call in calls)
    assert any(call.eps == 0.0 and call.q is not None and (call.q == 0).any() for call in calls)


@pytest.mark.parametrize("threads", [1, 2])
def test_capabilities_agree(
    driver: Driver, capabilities: list[str], calls: list[Call], expected: list[Result], threads: int
) -> None:
    for capability in capabilities:
        assert_same(driver.run(capability, calls, threads), expected, calls)


def test_capabilities_touch_no_memory_outside_a_row(
    driver: Driver, capabilities: list[str], calls: list[Call], expected: list[Result]
) -> None:
    """Against guard pages; a read or write outside kills the driver."""
    for capability in capabilities:
        assert_same(driver.run(capability, calls, memory="guarded"), expected, calls)


def test_a_row_has_one_result_in_any_batch(
    driver: Driver, capabilities: list[str], calls: list[Call], expected: list[Result]
) -> None:
    other = Recomposed(calls)
    assert_same(other.put_back(driver.run(capabilities[-1], other.calls, threads=2), expected), expected, calls)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_operator_agrees(calls: list[Call], expected: list[Result], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(list(run_operator(calls)), expected, calls)
    finally:
        torch.set_num_threads(before)


def test_the_operator_agrees_where_a_capability_is_forced(
    calls: list[Call], expected: list[Result], tmp_path: Path
) -> None:
    write_batches(tmp_path / "batches", calls)
    here = Path(__file__).parent
    script = [str(here / "run_operator.py"), "2", str(tmp_path / "batches"), str(tmp_path / "results")]
    run_warm(script, os.environ | {"ASCEND_SAMPLE_CPU_CAPABILITY": "plain"}, here, seconds=300).check_returncode()
    assert_same(read_results(tmp_path / "results", calls), expected, calls)


def test_results_are_those_of_the_reference(calls: list[Call], expected: list[Result]) -> None:
    kinds = Counter[Kind]()
    for call, actual in zip(calls, expected, strict=True):
        reference = Result(*top_k_top_p_sample_reference(*call))
        comparison = compare(*call[:5], reference, actual)
        failed = {row: verdict for row, verdict in comparison.verdicts.items() if verdict.kind is Kind.FAILED}
        assert not failed, f"{list(call.logits.shape)} {call.logits.dtype}, eps={call.eps}: {failed}"
        kinds.update(comparison.kinds)
    assert kinds[Kind.TIE] == 0, "a tie goes to the lowest id, here as in the reference"
    assert kinds[Kind.EXACT] > 0.99 * kinds.total()


def test_the_oracle_agrees_with_the_reference(driver: Driver, calls: list[Call]) -> None:
    """The naive implementation in C++, which the fuzzer trusts."""
    some = [call for call in calls if call.logits.shape[1] <= 300][::8]
    for call, actual in zip(some, driver.run("oracle", some), strict=True):
        comparison = compare(*call[:5], Result(*top_k_top_p_sample_reference(*call)), actual)
        assert Kind.FAILED not in comparison.kinds, comparison.verdicts
