"""What the operator is called with, seen from its side: a spy in a vendor's place records every argument."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ascend_sample
import hostcann
from tests.support.cann import library_path
from tests.support.isolation import run_isolated

from .batches import SAMPLE_V2, SAMPLERS, check_equal, make_batch, sample, use_variant
from .conftest import each_route

LARGEST_VOCAB_SIZE = 1 << 20  # a k above it skips top-k
FLOAT, FLOAT16, INT32, INT64, BFLOAT16 = 0, 1, 3, 9, 27
"""aclDataType."""
FORMAT_ND = 2
EPS = 1.2345678901234567e-3
GUESS = 77


def sample_under_the_spy(route: str, operator: str) -> dict[str, int]:
    """Three calls, and one with a sample result where there is one; returns the addresses of what torch gave."""
    with ascend_sample.use_backend(route), use_variant(operator):
        host = make_batch()
        batch = host.to("npu")
        view = torch.zeros(10, 2001, dtype=torch.bfloat16, device="npu")[1:9, 3:1503]
        view.copy_(batch.logits)
        side = torch.npu.Stream()
        check_equal(batch.sample(), host.expected())
        torch.npu.synchronize()
        with torch.npu.stream(side):
            result = replace(batch, logits=view).sample(eps=EPS, top_k_guess=GUESS)
        torch.npu.synchronize()
        sample(batch.logits.half(), batch.k, 0.5)
        torch.npu.synchronize()
        seen = vars(batch) | {"selected": result.logits_select_idx, "kept": result.logits_top_kp_select}
        if operator == SAMPLE_V2:
            options = {"ks_max": 40, "input_is_logits": False, "is_need_sample_result": True}
            dense = sample(batch.logits.softmax(1), batch.k, 0.5, **options)
            torch.npu.synchronize()
            seen |= {"selected of the result": dense.logits_select_idx}
            seen |= {"ids": dense.logits_idx, "weights": dense.logits_sort_masked}
        addresses = {name: tensor.data_ptr() for name, tensor in seen.items()}
        return addresses | {"storage": view.untyped_storage().data_ptr(), "stream": side.npu_stream}


@pytest.fixture(scope="module")
def spy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ASCEND_CUSTOM_OPP_PATH names it."""
    package = tmp_path_factory.mktemp("spy")
    library = package / "op_api" / "lib" / "libcust_opapi.so"
    library.parent.mkdir(parents=True)
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    source = Path(__file__).with_name("spy.cpp")
    subprocess.run([*compiler, "-std=c++17", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    return package


@pytest.fixture(scope="module", params=each_route(*SAMPLERS))
def seen(request: pytest.FixtureRequest, spy: Path) -> tuple[dict[str, Any], list[Any]]:
    """What torch knows, and what the spy wrote down."""
    if not hostcann.is_active():
        pytest.skip("the NPU is a real one, or there is none")
    route, operator = request.param
    log = spy / f"calls of {route} {operator}"
    environment = {"ASCEND_CUSTOM_OPP_PATH": str(spy), "SPY_LOG": str(log), "SPY_NEXT": library_path("cust_opapi")}
    finished = run_isolated(sample_under_the_spy, route, operator, **environment)
    finished.check_clean()
    return finished.result, [json.loads(line) for line in log.read_text().splitlines()]


def tensor(data_type: int, address: int, shape: list[int]) -> dict[str, Any]:
    """How a whole contiguous tensor is described, but for its storage's size."""
    strides = [shape[1], 1] if len(shape) == 2 else [1]
    return {
        "data_type": data_type,
        "address": address,
        "shape": shape,
        "strides": strides,
        "offset": 0,
        "format": FORMAT_ND,
    }


def check_tensor(actual: dict[str, Any], expected: dict[str, Any], storage: int) -> None:
    """The storage may be larger than the tensor, by what the allocator has added."""
    (elements,) = actual["storage"]
    assert storage <= elements < storage + 512
    assert {name: actual[name] for name in expected} == expected


def test_arguments(seen: tuple[dict[str, Any], list[Any]]) -> None:
    known, (first, second, third, *_) = seen
    vocab, whole = [8, 1500], 12000

    check_tensor(first["logits"], tensor(BFLOAT16, known["logits"], vocab), whole)
    check_tensor(first["p"], tensor(BFLOAT16, known["p"], [8]), 8)
    check_tensor(first["q"], tensor(FLOAT, known["q"], vocab), whole)
    assert (first["eps"], first["is_need_logits"], first["top_k_guess"]) == (1e-8, True, 32)
    assert (first["selected"]["data_type"], first["selected"]["shape"]) == (INT64, [8])
    assert (first["kept"]["data_type"], first["kept"]["shape"]) == (FLOAT, vocab)

    view = tensor(BFLOAT16, known["storage"], vocab) | {"strides": [2001, 1], "offset": 2004}
    check_tensor(second["logits"], view, 20010)
    check_tensor(second["selected"], tensor(INT64, known["selected"], [8]), 8)
    check_tensor(second["kept"], tensor(FLOAT, known["kept"], vocab), whole)
    assert (second["eps"], second["is_need_logits"], second["top_k_guess"]) == (EPS, True, GUESS)
    assert second["stream"] == known["stream"] != first["stream"]

    assert third["logits"]["data_type"] == third["p"]["data_type"] == FLOAT16
    assert third["q"] is None
    assert third["is_need_logits"] is False
    # The first operator checks this output's shape even when it writes nothing to it.
    assert (third["kept"]["data_type"], third["kept"]["shape"]) == (FLOAT, [1] if "min_p" in third else vocab)


def test_arguments_of_the_second_operator(seen: tuple[dict[str, Any], list[Any]]) -> None:
    known, calls = seen
    if "min_p" not in calls[0]:
        assert len(calls) == 3
        return
    first, _, third, fourth, fifth = calls
    vocab, whole = [8, 1500], 12000
    check_tensor(first["min_p"], tensor(BFLOAT16, known["min_p"], [8]), 8)
    assert (first["ks_max"], first["input_is_logits"], first["is_need_sample_result"]) == (1024, True, False)
    assert third["min_p"] is None
    assert (fourth["ks_max"], fourth["input_is_logits"], fourth["is_need_sample_result"]) == (40, False, True)
    check_tensor(fourth["ids"], tensor(INT64, known["ids"], vocab), whole)
    check_tensor(fourth["weights"], tensor(FLOAT, known["weights"], vocab), whole)
    check_tensor(first["k"], tensor(INT32, known["k"], [8]), 8)
    assert third["k"] == fourth["k"] == first["k"]
    behind_k = fifth["k"]["address"] + 4 * fifth["k"]["offset"] + 32
    assert addresses_of_one(third, {"kept": 4, "ids": 8, "weights": 4}) == {behind_k}
    assert addresses_of_one(fourth, {"kept": 4}) == {behind_k}


def addresses_of_one(call: dict[str, Any], sizes: dict[str, int]) -> set[int]:
    """Where results that nobody wants lie, each described as one element, of these sizes."""
    assert all(call[name]["shape"] == [1] for name in sizes)
    return {call[name]["address"] + size * call[name]["offset"] for name, size in sizes.items()}


def test_id_beside_a_sample_result(seen: tuple[dict[str, Any], list[Any]]) -> None:
    """A launch of its own: the best 1 of each row, and nothing else."""
    known, calls = seen
    results = [call for call in calls if call.get("is_need_sample_result")]
    assert len(results) == ("min_p" in calls[0])
    for result in results:
        (of_id,) = calls[calls.index(result) + 1 :]
        assert of_id["k_values"] == [1] * 8
        assert (of_id["is_need_logits"], of_id["is_need_sample_result"], of_id["q"]) == (False, False, None)
        assert all(of_id[name] == result[name] for name in ("logits", "p", "input_is_logits", "ks_max", "stream"))
        check_tensor(of_id["selected"], tensor(INT64, known["selected of the result"], [8]), 8)
        assert addresses_of_one(of_id, {"kept": 4, "ids": 8, "weights": 4}) == addresses_of_one(result, {"kept": 4})


def test_k_that_the_first_operator_cannot_take_never_reaches_it(seen: tuple[dict[str, Any], list[Any]]) -> None:
    _, calls = seen
    assert len(calls) == (5 if "min_p" in calls[0] else 3)
    for call in calls[:4]:
        assert (call["k"]["data_type"], call["k"]["shape"]) == (INT32, [8])
        values = [value if value <= LARGEST_VOCAB_SIZE else "skip" for value in call["k_values"]]
        expected: list[object] = ["skip", 5, "skip", 7, "skip", 1024, 3000, 40]
        if "min_p" in call:
            expected = make_batch().k.tolist()
        assert values == expected
