"""vllm_ascend's own classes with the plugin installed, on the emulated NPU.

`nox -s integrations` runs this in an environment that has vLLM, vllm_ascend and torch_npu; there is no NPU in it,
and none of vllm_ascend's compiled kernels.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.integrations.emulated_npu import NPU  # isort: skip  before torch
from tests.integrations import plugin_first  # noqa: F401  # isort: skip  before vLLM

import pytest
import torch
import torch_npu  # noqa: F401
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.sample import rejection_sampler as vllm_rejection
from vllm.v1.sample import sampler as vllm_sampler
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm_ascend import ascend_config
from vllm_ascend._310p.sample.sampler import AscendTopKTopPSampler310
from vllm_ascend.ops.vocab_parallel_embedding import AscendLogitsProcessor
from vllm_ascend.sample import rejection_sampler, sampler
from vllm_ascend.worker import block_table
from vllm_ascend.worker.npu_input_batch import NPUInputBatch

import hostcann
from ascend_sample.integrations import vllm_shards
from ascend_sample.integrations.vllm_served import draws_here, served
from tests.integrations.drafting_checks import DraftChecks
from tests.integrations.vllm_batches import asked_of
from tests.integrations.vllm_sources import check_ascend

ROWS, VOCAB_SIZE = 40, 1000
MOST_LAUNCHES, ENGINES_OWN = 15, 8
"""Of a step with greedy rows, and rows with top-k and top-p: all, and those of vLLM and vllm_ascend among them."""
OF_DRAW = r"ascend_sample/(integrations|sampling)/[\w/]+\.py:"
"""A line of this package."""
HAS_REDUCED = hasattr(sampler.AscendSampler, "prepare_sampling")
"""It can sample from each rank's part of the vocabulary: not in 0.18, and not since 0.30."""
IS_0_18 = not hasattr(rejection_sampler, "AscendRejectionSampler")
"""It has no processed logprobs, and vLLM's own rejection sampler."""
Configure = Callable[..., Any]


def skip_unless_reported(mode: str) -> None:
    if IS_0_18 and mode.startswith("processed"):
        pytest.skip("its sampler does not pass this mode on, with the plugin or without")


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Makes the configuration of vllm_ascend with additional entries."""

    def make(**additional: Any) -> Any:
        return ascend_config.init_ascend_config(VllmConfig(additional_config=additional))

    yield make
    ascend_config.clear_ascend_config()


def columns(device: str) -> dict[str, Tensor]:
    """Filters and temperatures of all kinds, of `ROWS` requests."""
    row = torch.arange(ROWS)
    found = {
        "temperature": torch.tensor([0.0, 0.5, 1.0, 1.0, 1.3])[row % 5],
        "top_k": torch.tensor([VOCAB_SIZE, 1, 7, 50], dtype=torch.int32)[row % 4],
        "top_p": torch.tensor([1.0, 0.3, 0.9])[row % 3],
    }
    return {name: values.to(device) for name, values in found.items()}


def metadata(rows: int, device: str, generators: dict[int, torch.Generator], **changes: Any) -> SamplingMetadata:
    """What vLLM's batch says of requests."""
    values: dict[str, Any] = {"generators": generators, "logitsprocs": LogitsProcessors()}
    return asked_of(SamplingMetadata, rows, device, **(values | changes))  # type: ignore[no-any-return]


def seeds(rows: list[int], device: str) -> dict[int, torch.Generator]:
    """The generators of requests, by their places in a batch."""
    return {place: torch.Generator(device).manual_seed(100 + row) for place, row in enumerate(rows)}


def logits() -> Tensor:
    return torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(8)) * 3


def tokens(
    asked: Any, device: str, steps: int = 3, rows: list[int] | None = None, dtype: torch.dtype = torch.float32
) -> list[list[int]]:
    """Lets some of the requests draw, a few times."""
    chosen = list(range(ROWS)) if rows is None else rows
    filters = {name: values[chosen] for name, values in columns(device).items()}
    step = metadata(len(chosen), device, seeds(chosen, device), **filters)
    of_rows = logits()[chosen].to(dtype).to(device)
    return [asked(of_rows.clone(), step).sampled_token_ids.flatten().tolist() for _ in range(steps)]


class TestSampler:
    def test_it_draws_here(self, configure: Configure) -> None:
        configure()
        made = sampler.AscendSampler().topk_topp_sampler
        assert type(made).replaced.__module__ == "vllm_ascend.sample.sampler"
        assert draws_here(made)
        before = served()
        tokens(sampler.AscendSampler(), NPU, steps=1)
        assert (served().steps - before.steps, served().rows - before.rows) == (1, ROWS)

    def test_tokens_are_those_of_a_cpu(self, configure: Configure) -> None:
        configure()
        for dtype in (torch.float32, torch.bfloat16):
            expected = tokens(vllm_sampler.Sampler(), "cpu", dtype=dtype)
            assert tokens(sampler.AscendSampler(), NPU, dtype=dtype) == expected
            assert expected[0] != expected[1]
        together = tokens(sampler.AscendSampler(), NPU)
        for row in range(0, ROWS, 7):  # in any batch
            assert tokens(sampler.AscendSampler(), NPU, rows=[row]) == [[step[row]] for step in together]

    @pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
    def test_logprobs(self, configure: Configure, mode: str) -> None:
        skip_unless_reported(mode)
        configure()
        found = []
        for kind, device in ((sampler.AscendSampler, NPU), (vllm_sampler.Sampler, "cpu")):
            step = metadata(ROWS, device, seeds(list(range(ROWS)), device), max_num_logprobs=4, **columns(device))
            found.append(kind(logprobs_mode=mode)(logits().to(device), step).logprobs_tensors)
        torch.testing.assert_close(found[0].logprobs.cpu(), found[1].logprobs, atol=1e-5, rtol=0)
        assert torch.equal(found[0].selected_token_ranks.cpu(), found[1].selected_token_ranks)

    @pytest.mark.skipif(
        not hasattr(sampler.AscendSampler, "do_async_exponential"), reason="it makes no noise beside the model"
    )
    def test_no_noise_is_made_beside_the_model(self, configure: Configure) -> None:
        """A step of a request is one step of its generator, whatever vllm_ascend is configured for."""
        assert configure(enable_async_exponential=True).enable_async_exponential
        asked, generators = sampler.AscendSampler(), seeds(list(range(ROWS)), NPU)
        step = metadata(ROWS, NPU, generators, **columns(NPU))
        found = []
        for _ in range(3):
            with hostcann.profile() as counted:
                asked.do_async_exponential(b_s=ROWS, head_dim=VOCAB_SIZE, generators=generators)
            assert not counted.launches
            found.append(asked(logits().to(NPU), step).sampled_token_ids.flatten().tolist())
        assert found == tokens(vllm_sampler.Sampler(), "cpu")

    @pytest.mark.skipif(not HAS_REDUCED, reason="it has no reduced sampling")
    def test_parts_of_the_vocabulary_stay_with_vllm_ascend(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = sampler.AscendSampler().topk_topp_sampler
        monkeypatch.setattr(type(asked).replaced, "forward_native", lambda *arguments: "its own")
        configure(enable_reduce_sample=True)
        assert asked(logits().to(NPU), {}, None, None) == "its own"
        configure()
        assert asked(logits().to(NPU), {}, None, None)[0].shape == (ROWS,)

    def test_a_class_that_draws_itself(self, configure: Configure) -> None:
        configure()
        assert not draws_here(AscendTopKTopPSampler310())


ASKED: tuple[dict[str, Any], ...] = (
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
    dict(bad_words=["never"]),
    dict(min_tokens=3, stop_token_ids=[*range(1, VOCAB_SIZE, 2)]),
)
"""What requests ask for."""
PLAIN_REQUESTS = 3
"""The first so many have temperatures and filters of top-k and top-p alone."""


def filled(kind: Any, device: str, count: int) -> Any:
    """A batch of vLLM's or vllm_ascend's with the first of these requests, each of which has a seed."""
    parts = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    config = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_seqs=len(ASKED)))
    values: dict[str, Any] = {
        "max_num_reqs": len(ASKED),
        "max_model_len": 32,
        "max_num_batched_tokens": 64,
        "device": torch.device(device),
        "pin_memory": device == NPU,
        "vocab_size": VOCAB_SIZE,
        "block_sizes": [16],
        "kernel_block_sizes": [[16]] if kind is NPUInputBatch else [16],
        "max_num_blocks_per_req": [2],
        "logitsprocs": LogitsProcessors(part(config, torch.device(device), device == NPU) for part in parts),
        "logitsprocs_need_output_token_ids": True,
    }
    names = inspect.signature(kind.__init__).parameters
    made = kind(**{name: value for name, value in values.items() if name in names})
    for number, asked in enumerate(ASKED[:count]):
        params = SamplingParams(**asked)
        params._bad_words_token_ids = [[12], [13, 14]] if params.bad_words else None  # a tokenizer's
        made.add_request(
            CachedRequestState(
                req_id=str(number),
                prompt_token_ids=[1, 2],
                mm_features=[],
                sampling_params=params,
                generator=torch.Generator(device).manual_seed(number),
                block_ids=([0],),
                num_computed_tokens=0,
                output_token_ids=[],
            )
        )
    made.refresh_metadata()
    return made


class TestBatch:
    """vllm_ascend's batch, whose parameters the host knows."""

    @pytest.fixture
    def batch(self, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> Any:
        configure()
        alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
        for name in ("get_pcp_group", "get_dcp_group"):
            monkeypatch.setattr(block_table, name, lambda: alone, raising=False)  # 0.26 asks for the second alone
        return filled(NPUInputBatch, NPU, PLAIN_REQUESTS)

    @pytest.mark.usefixtures("batch")
    def test_requests_of_all_kinds_draw_what_they_draw_on_a_cpu(self) -> None:
        found = []
        for device, kind, made in (
            (NPU, NPUInputBatch, sampler.AscendSampler),
            ("cpu", InputBatch, vllm_sampler.Sampler),
        ):
            step, asked = filled(kind, device, len(ASKED)), made()
            for number in range(4):
                of_rows = logits()[number : number + len(ASKED)].to(device)
                output = asked(of_rows, step.sampling_metadata)
                ids, reported = output.sampled_token_ids.flatten().tolist(), output.logprobs_tensors
                for text, token in zip(step.req_output_token_ids, ids, strict=True):
                    text.append(token)
                step.refresh_metadata()
                found.append((ids, reported.logprobs.cpu(), reported.selected_token_ranks.tolist()))
        for (ids, logprobs, ranks), (expected, of_cpu, ranks_of_cpu) in zip(found[:4], found[4:], strict=True):
            assert (ids, ranks) == (expected, ranks_of_cpu)
            torch.testing.assert_close(logprobs, of_cpu, atol=1e-5, rtol=0)

    def test_ranks_draw_from_parts_of_the_vocabulary_where_that_is_asked_for(
        self, batch: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """vllm_ascend's batch is made, and changed, without a call of what makes vLLM's."""
        for owner, name in (
            (vllm_sampler.Sampler, "forward"),
            (LogitsProcessor, "forward"),
            (LogitsProcessor, "_gather_logits"),
        ):
            monkeypatch.setattr(owner, name, getattr(owner, name))
        before = sampler.AscendSampler.forward
        monkeypatch.setenv(vllm_shards.SWITCH, "1")
        batch._make_sampling_metadata()
        assert sampler.AscendSampler.forward.replaced is before
        assert hasattr(AscendLogitsProcessor.forward, "replaced")

    def test_a_step_takes_few_launches_and_waits_for_nothing(self, batch: Any) -> None:
        asked, of_rows = sampler.AscendSampler(), logits()[:3].to(NPU)
        drawn = asked(of_rows.clone(), batch.sampling_metadata)
        assert drawn.sampled_token_ids[0, 0] == of_rows[0].argmax()
        with hostcann.profile() as counted:
            asked(of_rows, batch.sampling_metadata)
        assert not counted.synchronizations
        assert counted.totals.launches <= MOST_LAUNCHES
        of_draw = [count.launches for line, count in counted.by_line.items() if re.search(OF_DRAW, line)]
        assert counted.totals.launches - sum(of_draw) == ENGINES_OWN


class TestDrafts(DraftChecks):
    """All that must hold of drafts, of vllm_ascend's rejection sampler."""

    @pytest.fixture
    def classes(self, configure: Configure, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
        configure()
        skip_unless_reported(getattr(request.node, "callspec", types.SimpleNamespace(params={})).params.get("mode", ""))
        kind = getattr(rejection_sampler, "AscendRejectionSampler", vllm_rejection.RejectionSampler)
        # Its own is a Triton kernel; what it does without Triton takes the requests for the places.
        own = staticmethod(vllm_rejection.RejectionSampler.apply_penalties)
        monkeypatch.setattr(kind, "apply_penalties", own)
        return types.SimpleNamespace(
            Sampler=sampler.AscendSampler,
            RejectionSampler=kind,
            SamplingMetadata=SamplingMetadata,
            SpecDecodeMetadata=SpecDecodeMetadata,
            LogitsProcessors=LogitsProcessors,
            MinTokensLogitsProcessor=MinTokensLogitsProcessor,
            BatchUpdate=BatchUpdate,
            device=NPU,
        )


def test_what_the_adapter_looks_for_is_in_the_source() -> None:
    check_ascend(Path(sampler.__file__).parents[1])
