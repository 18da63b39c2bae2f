"""The examples, as a user runs them: each in a process of its own, with its output looked at."""

from __future__ import annotations

import ast
import json
import re
import sys

import pytest

from tests.support.user_process import EXAMPLES, run_as_user, run_python_warm, skip_beside_a_real_cann


def run_example(name: str) -> str:
    return run_as_user(str(EXAMPLES / name))


def test_quickstart() -> None:
    printed = {
        name.strip(): ast.literal_eval(ids)
        for name, ids in re.findall(r"(.+):\s+(\[.+\])", run_example("quickstart.py"))
    }
    assert set(printed) == {"drawn ids", "kept of 32000", "best ids"}
    assert all(len(values) == 4 for values in printed.values())
    assert all(1 <= count <= 50 for count in printed["kept of 32000"])
    assert all(0 <= token < 32000 for token in printed["drawn ids"] + printed["best ids"])


@pytest.mark.long
def test_mixed_batch() -> None:
    lines = run_example("mixed_batch.py").splitlines()
    kept = [int(re.search(r"keeps +(\d+) tokens", line)[1]) for line in lines]
    different = [int(re.search(r"draws +(\d+) are different", line)[1]) for line in lines]
    highest = [int(re.search(r"highest id is (\d+)", line)[1]) for line in lines]
    assert kept == [1, 40, 5, 151936]  # greedy; top-k; top-k and top-p; no filter
    assert different[0] == 1
    assert all(most <= count for most, count in zip(different, kept, strict=True))
    assert all(
        token < count for token, count in zip(highest, kept, strict=True)
    )  # the ids are in the order of the logits


@pytest.mark.long
def test_trace_row() -> None:
    output = run_example("trace_row.py")
    assert re.findall(r"branch (\w): .*; (\d) of 5 ids", output) == [("A", "3"), ("B", "4"), ("C", "5")]
    drawn = re.findall(r"id (\d): .* weight ([\d.]+), .* score ([\d.]+)  <- drawn", output)
    # The flattened weights of branch B let the same noise draw another id than in A.
    assert drawn == [("1", "0.588", "0.588"), ("4", "0.226", "0.452"), ("1", "0.500", "0.833")]
    assert "softmaxed a second time" in output


@pytest.mark.long
def test_npu_emulated(npu: str) -> None:
    skip_beside_a_real_cann()
    output = run_example("npu_emulated.py")
    assert "by aclnn: aclnnTopKTopPSample was found" in output
    assert "npu:0 is EMULATED by hostcann" in output
    assert "the same ids: True; the same kept logits, bit for bit: True" in output
    assert "kernels launched: 1 x aclnnTopKTopPSample" in output


@pytest.mark.long
def test_data_parallel(npu: str) -> None:
    """The gradients' means are those of two summands in either order: the bits are the same."""
    skip_beside_a_real_cann()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(EXAMPLES / "data_parallel.py"))
    printed = run_as_user("-m", "hostcann", "run", sys.executable, *torchrun)
    on_npu, on_cpu = re.findall(r"loss (\S+) -> (\S+)", printed)
    assert on_npu == on_cpu
    assert float(on_npu[1]) < float(on_npu[0]) - 1
    assert "largest difference of a parameter: 0.0e+00" in printed
    sent = re.search(r"HcclAllReduce: (\S+) a step, (\S+) KiB", printed)
    assert sent is not None
    assert float(sent[1]) == 2.0  # the gradients in one bucket, and the loss


@pytest.mark.long
def test_tensor_parallel() -> None:
    """Four processes write the texts of one; each of them has written its own alone as well."""
    printed = run_example("tensor_parallel.py")
    assert "The texts of one process: True" in printed
    texts = re.findall(r"^ *(?:greedy|top-k|top-p|min-p, penalty): The function returns", printed, re.MULTILINE)
    assert len(texts) == 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "option", "value", "rule"),
    [
        ("valid_json", "--rows", "0", "at least 1"),
        ("serve", "--tokens", "1", "must be >= 2, got 1"),
        ("serve", "--device", "foo", "must be one that torch can use here, got foo: "),  # 1 would say: devices differ
        ("demo", "--seed", "-1", "must be in [0, 18446744073709551615]"),
        ("flattening", "--json", "no/such/folder/file", "must name a file in a folder that exists, got 'no/such/fo"),
        ("translate_onnx", "--directory", "/dev/null/graphs", "must be a folder, or be made one"),
        ("strategies", "--tokens", "300", "must fit the context of 256 tokens"),
    ],
)
def test_a_value_that_cannot_be_is_refused(example: str, option: str, value: str, rule: str) -> None:
    pytest.importorskip("tokenizers", reason="their language model needs it")
    finished = run_python_warm(str(EXAMPLES / f"{example}.py"), option, value, PYTHONPATH=str(EXAMPLES.parent))
    assert finished.returncode == 2
    assert any(option in line and rule in line for line in finished.stderr.splitlines()), finished.stderr


@pytest.mark.long
@pytest.mark.parametrize("seed", ["1", "-3"])  # from -3 on, rows have seeds of both signs
def test_valid_json(seed: str) -> None:
    lines = run_as_user(str(EXAMPLES / "valid_json.py"), "--seed", seed).splitlines()
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(objects) == 6
    for value in objects:
        assert set(value) == {"function", "returns", "arguments", "since", "deprecated"}
        assert re.fullmatch("[a-z_]{3,12}", value["function"])
        assert value["returns"] in ("int", "str", "list", "None")
        assert len(value["arguments"]) <= 3
        assert 2 <= value["since"] <= 4
        assert isinstance(value["deprecated"], bool)
