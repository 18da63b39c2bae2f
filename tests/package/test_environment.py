"""A torch_npu that is installed beside no CANN: what can be imported, in which order. Each test starts programs."""

from __future__ import annotations

import doctest
import sys

import pytest
from documents import DOCUMENTS, code_blocks
from hostcann_programs import variables_of_run

from tests.support.user_process import run_as_user, run_command, run_python_warm, skip_beside_a_real_cann

TRANSFORMERS = "from transformers import GPT2Config, GPT2LMHeadModel"
TRANSFORMERS_FIRST = f"""
try:
    {TRANSFORMERS}
except ImportError as error:
    assert "libhccl.so" in str(error)
import ascend_sample
{TRANSFORMERS}
import torch
from ascend_sample.decoding import CausalModel, greedy_search
model = CausalModel(GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16)).eval())
print(greedy_search(model, torch.tensor([[1, 2]]), max_new_tokens=3).lengths.tolist())
"""


@pytest.fixture(autouse=True)
def _without_cann(npu: str) -> None:
    skip_beside_a_real_cann()


@pytest.mark.long
def test_documented_models_of_transformers() -> None:
    """What the documents show of them, in a process where nothing was imported before it."""
    sessions = [
        block
        for document in DOCUMENTS
        for block in code_blocks(document, "python")
        if block.startswith(">>>") and "from transformers import" in block
    ]
    examples = doctest.DocTestParser().get_examples("".join(sessions))
    assert len(examples) > 6
    run_as_user("-c", "".join(example.source for example in examples))


@pytest.mark.long
def test_what_comes_before_ascend_sample() -> None:
    """Models cannot be imported before; the error does not stay when ascend_sample comes after all. torch warns."""
    finished = run_command(sys.executable, "-c", TRANSFORMERS_FIRST, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (finished.returncode, finished.stdout) == (0, "[3]\n"), finished.stderr
    finished = run_command(sys.executable, "-c", "import torch, ascend_sample")
    assert "Failed to load the backend extension: torch_npu" in finished.stderr


def test_a_plain_import_leaves_torch_npu_alone() -> None:
    code = (
        "import ascend_sample.sampling, ascend_sample.decoding, sys, os, torch; "
        "assert 'torch._dynamo' not in sys.modules; "  # large, and most programs never compile
        "assert 'torch_npu' not in sys.modules; assert 'TORCH_DEVICE_BACKEND_AUTOLOAD' not in os.environ; "
        "print(ascend_sample.top_k_top_p_sample(torch.tensor([[0., 1.]]), 1, None).logits_select_idx.tolist())"
    )
    finished = run_command(sys.executable, "-c", code)
    assert (finished.stdout.strip(), finished.stderr) == ("[1]", "")


def test_importing_torch_npu_says_what_to_do_until_hostcann_is_activated() -> None:
    """In a process that has imported torch alone."""
    code = """
import ascend_sample, importlib.util, sys
try:
    import torch_npu.npu
except ModuleNotFoundError as error:
    assert error.name == "torch_npu"
    print(error)
else:
    raise SystemExit("torch_npu was imported without CANN")
assert importlib.util.find_spec("torch_npu") is None and "torch_npu" not in sys.modules
assert importlib.util.find_spec("torch") is not None
assert ascend_sample._environment.torch_npu_is_installed()
import hostcann
hostcann.activate()
assert importlib.util.find_spec("torch_npu").name == "torch_npu"
import torch, torch_npu
logits = torch.tensor([[0.0, 2.0, 1.0]]).half().npu()
print(ascend_sample.which_backend(logits).backend)
print(ascend_sample.top_k_top_p_sample(logits, 1).logits_select_idx.tolist())
"""
    finished = run_python_warm("-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.returncode == 0, finished.stderr
    message, *rest = finished.stdout.splitlines()
    assert message.startswith("import torch_npu: CANN's libraries must load for it, got lib")
    assert (
        "Source CANN's set_env.sh before Python starts, or install hostcann and emulate CANN: hostcann run" in message
    )
    assert rest == ["aclnn", "[1]"]


@pytest.mark.long
def test_nothing_is_guarded_where_torch_npu_loads() -> None:
    code = (
        "import importlib.util, sys; find_spec = importlib.util.find_spec\n"
        "import ascend_sample\n"
        "assert 'torch_npu' in sys.modules and find_spec is importlib.util.find_spec\n"
        "assert not [finder for finder in sys.meta_path if 'ascend_sample' in type(finder).__module__]"
    )
    finished = run_command(sys.executable, "-c", code, **variables_of_run())
    assert finished.returncode == 0, finished.stderr
