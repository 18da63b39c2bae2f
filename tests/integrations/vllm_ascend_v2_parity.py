"""vllm_ascend's V2 runner with the plugin installed, on the emulated NPU: its samplers, and the kernels around them.

`nox -s integrations` runs this in environments that have vLLM, vllm_ascend and torch_npu. Triton's interpreter runs the
kernels. There is no model and no runner: `vllm_v2_engine` does what the runner does around its samplers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ["TRITON_INTERPRET"] = "1"
from tests.integrations.emulated_npu import NPU  # isort: skip  before torch
from tests.integrations.interpreted_triton import admit_any_range, interpret_triton  # isort: skip

interpret_triton("npu")
admit_any_range()
from tests.integrations import plugin_first  # noqa: E402, F401  # isort: skip  before what vllm_ascend changes in vLLM
import pytest  # noqa: E402
import triton.language.extra  # noqa: E402
import vllm_ascend  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler  # noqa: E402

if not hasattr(RejectionSampler, "_verify"):  # 0.18 and 0.23, with which vllm_ascend falls back to V1
    pytest.skip("the plugin leaves this V2 runner alone", allow_module_level=True)

# What Triton for NPUs has beside Triton's own; and the packages, without what they change in vLLM's models.
_cann = triton.language.extra.cann = MagicMock()
sys.modules |= {f"triton.language.extra.cann{name}": _cann for name in ("", ".extension", ".libdevice")}
for _folder in ("patch", "patch/worker"):
    _package = types.ModuleType(f"vllm_ascend.{_folder.replace('/', '.')}")
    _package.__path__ = [str(Path(vllm_ascend.__file__).parent / _folder)]
    sys.modules[_package.__name__] = _package

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401
from triton.runtime.errors import InterpreterError  # noqa: E402
from triton.runtime.interpreter import GridExecutor  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm_ascend.ascend_config import init_ascend_config  # noqa: E402
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton  # noqa: E402
from vllm_ascend.patch.worker.patch_v2 import patch_triton, patch_uva  # noqa: E402, F401
from vllm_ascend.worker.v2.utils import torch_cuda_wrapper  # noqa: E402

import hostcann  # noqa: E402
from ascend_sample.integrations.vllm_served import served  # noqa: E402
from ascend_sample.sampling import sample_rows  # noqa: E402
from tests.integrations.vllm_sources import Source  # noqa: E402
from tests.integrations.vllm_v2_engine import (  # noqa: E402
    ROOM,
    VOCAB_SIZE,
    Asked,
    Engine,
    model,
    vllm_rejection,
    vllm_sampler,
)

init_device_properties_triton()
with torch_cuda_wrapper():  # what vllm_ascend's runner does first
    pass

LENGTH, DRAFTS = 4, 3
WITHOUT_V2 = "aclnnTopKTopPSampleV2GetWorkspaceSize"
OWN = [(vllm_sampler.Sampler, "sample"), (RejectionSampler, "_verify")]
"""What the plugin replaces, and what vLLM and vllm_ascend do themselves without it."""
KINDS: tuple[dict[str, Any], ...] = (
    dict(temperature=0.0),
    dict(top_k=7, top_p=0.9),
    dict(top_k=50),
    dict(temperature=0.6),
    dict(top_p=0.8, logprobs=5),
    dict(min_p=0.1),
    dict(min_p=0.05, top_p=0.9, temperature=1.3),
    dict(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3, top_k=40),
    dict(temperature=0.0, repetition_penalty=1.2, logprobs=0),
    dict(logit_bias={5: 12.0, 7: 11.5}),
    dict(allowed_token_ids=[3, 4, 5, 900]),
    dict(bad_words=["never"], top_k=20),
    dict(min_tokens=3, stop_token_ids=[*range(1, VOCAB_SIZE, 8)]),
    dict(mask=torch.arange(VOCAB_SIZE) % 3 == 0, top_k=30, logprobs=2),
)
"""What requests ask for."""


PLAIN = (0, 1, 2, 3)
"""Those that have temperatures, top-k and top-p alone, and no logprobs."""


def requests(count: int = len(KINDS)) -> list[Asked]:
    return [Asked(number, seed=100 + number, **KINDS[number % len(KINDS)]) for number in range(count)]


def engine_of(asked: list[Asked], **named: Any) -> Engine:
    made = Engine(NPU, **named)
    made.sampler.has_lengths = True  # as where the runner waits for them, which it does with speculation
    for request in asked:
        made.add(request)
    return made


@pytest.fixture(scope="module")
def together() -> list[Asked]:
    """Requests of all kinds that were decoded together, without drafts."""
    asked = requests(ROOM)
    engine_of(asked).decode(LENGTH)
    return asked


def test_the_plugin_is_in_place_whatever_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm_ascend puts functions of its own in the place of those that vLLM's methods call; they are not called."""
    draws = [(vllm_sampler, "gumbel_sample"), (vllm_sampler, "apply_top_k_top_p"), (vllm_rejection, "rejection_sample")]
    for owner, name in (draws[0], draws[2]):
        assert getattr(owner, name).__module__.startswith("vllm_ascend.")
    for owner, name in draws:
        monkeypatch.setattr(owner, name, lambda *arguments, **named: pytest.fail("the engine draws"))
    for kind, name in OWN:
        assert getattr(kind, name).replaced.__module__ == kind.__module__
    engine = engine_of(requests(), drafts=DRAFTS)
    for drafts in ([], [5, 6]):
        engine.step([drafts for _ in engine.requests])


def test_tokens_are_those_of_sample_rows(together: list[Asked]) -> None:
    for request in (together[row] for row in PLAIN):
        params, text = request.params, request.prompt + request.output
        places = range(len(request.prompt), len(text))
        rows = len(places)
        found = sample_rows(
            torch.stack([model(text[:place]) for place in places]),
            temperature=torch.full((rows,), params.temperature),
            top_k=torch.full((rows,), params.top_k if params.top_k > 0 else VOCAB_SIZE, dtype=torch.int32),
            top_p=torch.full((rows,), params.top_p),
            seed=torch.full((rows,), params.seed),
            position=torch.tensor([place - 1 for place in places]),
        )
        assert found.token_ids.tolist() == request.output


@pytest.mark.parametrize("drafts", [0, DRAFTS])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_request_alone_gets_what_it_gets_among_others(together: list[Asked], kind: int, drafts: int) -> None:
    request, expected = requests()[kind], together[kind]
    right = iter([[], expected.output[1:3], [7, 8]])
    engine_of([request], drafts=drafts).decode(LENGTH, (lambda text, number: next(right)) if drafts else None)
    assert request.output[:LENGTH] == expected.output[:LENGTH]
    for found, wanted in zip(request.logprobs, expected.logprobs, strict=False):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted)[: len(found)], atol=1e-5, rtol=0)


def test_500_requests_are_drawn_here() -> None:
    """All steps are counted, of requests of all kinds that come and go, with drafts and without."""
    waiting, before = requests(500), served()
    engine, step = Engine(NPU, drafts=2), 0
    while waiting or engine.requests:
        while waiting and len(engine.requests) < ROOM:
            engine.add(waiting.pop())
        step += 1
        engine.step([[5, 6][: (each.number + step) % 3] if step % 2 else [] for each in engine.requests])
        for request in [each for each in engine.requests if len(each.output) >= 1 + each.number % 3]:
            engine.remove(request)
    assert (served().steps - before.steps, served().rows - before.rows) == (engine.steps, engine.rows)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drafts_that_the_target_would_draw_are_accepted(temperature: float) -> None:
    """p / q is 1 then: so it is, if what vLLM keeps of the drafter is read at the temperature that it is kept at."""
    asked = [Asked(number, seed=number, temperature=temperature) for number in range(ROOM)]
    engine = engine_of(asked, drafts=1)
    drafts = [[int(model(each.prompt).topk(1 + each.number).indices[-1])] for each in asked]
    kept = torch.zeros(ROOM, 1, VOCAB_SIZE)
    for each in asked:
        kept[each.place, 0] = model(each.prompt) / (temperature or 1 if engine.sampler.drafts_have_temperature else 1)
    output = engine.step(drafts, kept.to(NPU))
    if temperature:
        assert output.num_sampled.tolist() == [2] * ROOM
    else:
        assert output.num_sampled.tolist() == [1 + (each.number == 0) for each in asked]


def test_the_runner_waits_for_lengths() -> None:
    """Its attention needs them; the plugin looks whether this event is waited for."""
    body = Source(Path(vllm_ascend.__file__).parent, "worker/v2/model_runner.py").method(
        "NPUModelRunner", "_update_seq_lens_cpu"
    )[1]
    assert body.index("self.num_computed_tokens_event.synchronize()") < body.index(
        "self.input_buffers.seq_lens_cpu[i] ="
    )


STEPS: dict[str, tuple[dict[str, Any], int]] = {
    "greedy": ({"temperature": 0.0}, 0),
    "temperature 0.7": ({"temperature": 0.7}, 0),
    "top-k 50, top-p 0.9": ({"top_k": 50, "top_p": 0.9}, 0),
    "top-p 0.9": ({"top_p": 0.9}, 0),
    "top-k 50, top-p 0.9, penalties, 5 logprobs": (
        {"top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.1, "logprobs": 5},
        0,
    ),
    "top-k 50, top-p 0.9, 3 drafts a request": ({"top_k": 50, "top_p": 0.9}, 3),
}
"""What 16 requests ask for, and how many drafts each of them has."""


def counts_of(asked: dict[str, Any], drafts: int) -> dict[str, int]:
    """Counts a step's launches, copies and waits; one launch for a kernel of Triton, whatever its interpreter does."""
    engine = engine_of([Asked(number, seed=number, **asked) for number in range(ROOM)], drafts=drafts)
    ids = [[5, 6, 7][:drafts] for _ in engine.requests]
    engine.step(ids)
    batch = engine.prepared(ids)
    logits = torch.stack([model(text) for text in engine.places(ids)]).to(NPU)
    kernels: list[Any] = []
    own = GridExecutor.__call__

    def call(self: Any, *arguments: Any, **named: Any) -> None:
        with hostcann.profile() as inside:
            own(self, *arguments, **named)
        kernels.append(inside.totals)

    with pytest.MonkeyPatch.context() as patch, hostcann.profile() as counted:
        patch.setattr(GridExecutor, "__call__", call)
        engine.sampled(batch, logits)
    names = ("launches", "copies", "waits")
    found = {name: getattr(counted.totals, name) - sum(getattr(each, name) for each in kernels) for name in names}
    return found | {"launches": found["launches"] + len(kernels)}


def counts_of_steps() -> dict[str, dict[str, int]]:
    return {name: counts_of(*step) for name, step in STEPS.items()}


def own_cell(step: tuple[dict[str, Any], int]) -> str:
    """Returns what a step asks for without the plugin; of 0.30 the interpreter cannot run the kernel that draws."""
    try:
        return cell(counts_of(*step))
    except InterpreterError:
        return "not interpreted"


def cell(counts: dict[str, int]) -> str:
    return ", ".join(map(str, counts.values()))


def test_what_a_step_asks_of_the_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the rows of docs/integrations.md: without the plugin, with it, and on a CANN without the operator's V2."""
    program = (sys.executable, __file__)
    command = (sys.executable, "-m", "hostcann", "run", "--without", WITHOUT_V2, *program)
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1000)
    assert finished.returncode == 0, finished.stderr
    without_v2, ours = json.loads(finished.stdout.splitlines()[-1]), counts_of_steps()
    init_ascend_config(VllmConfig())
    for kind, name in OWN:
        monkeypatch.setattr(kind, name, getattr(kind, name).replaced)
    rows = [
        f"| {name} | {own_cell(step)} | {cell(ours[name])} | {cell(without_v2[name])} |" for name, step in STEPS.items()
    ]
    with capsys.disabled():
        print("", *rows, sep="\n")
    for counts in (ours, without_v2):
        assert {each["waits"] for each in counts.values()} == {0}


if __name__ == "__main__":
    print(json.dumps(counts_of_steps()))
