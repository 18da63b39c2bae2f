"""The adapter inside vLLM: beside vLLM's own sampler, and installed by vLLM's own plugin loader.

`nox -s integrations` runs this in environments that have vLLM; there is no accelerator in them.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm
from torch import Tensor
from vllm.v1.sample import sampler as vllm_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops import penalties as vllm_penalties
from vllm.v1.sample.ops import topk_topp_sampler as vllm_ops

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_shards
from ascend_sample.integrations._host_values import facts_of, note
from ascend_sample.integrations._late_tensors import LateGather, LateLogprobs
from ascend_sample.integrations.vllm import TopKTopPSampler
from tests.integrations.vllm_batches import asked_of
from tests.integrations.vllm_sources import check_shards, check_steps
from tests.integrations.vllm_split_engine import Ranks, here
from tests.integrations.without_pinning import do_without_pinning
from tests.sampling.vocabulary_parallel.shard_ranks import Exchange, on_threads

ROWS, COLUMNS, BLOCK = 10_000, 200, 1000
NAMED = "gather_specific_token_logprobs"
"""What looks up the ids that requests name; 0.18 has none."""


def blocks(kind: str) -> Any:
    """10,000 rows in blocks, with the filters of vLLM's batches: tensors, or None where no row has the filter."""
    generator = torch.Generator().manual_seed(17)
    for _ in range(ROWS // BLOCK):
        logits = torch.randn(BLOCK, COLUMNS, generator=generator) * 3
        k = torch.randint(1, COLUMNS + 1, (BLOCK,), generator=generator, dtype=torch.int32)
        p = torch.rand(BLOCK, generator=generator) * 0.98 + 0.01
        k[::5], p[1::5] = COLUMNS, 1.0
        yield logits, k if "k" in kind else None, p if "p" in kind else None


def is_near_a_boundary(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """Rows in which rounding decides what top-p keeps, or two logits are equal."""
    ranked = logits.double().sort(dim=1, descending=True).values
    near = (ranked[:, 1:] == ranked[:, :-1]).any(1)
    if p is None:
        return near
    if k is not None:
        ranked.masked_fill_(torch.arange(COLUMNS) >= k[:, None], -torch.inf)
    is_close = ((ranked.softmax(1).cumsum(1) - p[:, None]).abs() < 2e-6).any(1)
    return near | (is_close & (p < 1))


metadata = partial(asked_of, SamplingMetadata, logitsprocs=LogitsProcessors())


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin, installed for one test."""
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu_input_batch import InputBatch

    monkeypatch.setattr(InputBatch, "_make_sampling_metadata", InputBatch._make_sampling_metadata)
    monkeypatch.setattr(RejectionSampler, "forward", RejectionSampler.forward)
    for name in ("gather_logprobs", "compute_logprobs"):
        monkeypatch.setattr(vllm_sampler.Sampler, name, staticmethod(getattr(vllm_sampler.Sampler, name)))
    for name in ("forward", "sample", *({NAMED} & vars(vllm_sampler.Sampler).keys())):
        monkeypatch.setattr(vllm_sampler.Sampler, name, getattr(vllm_sampler.Sampler, name))
    monkeypatch.setattr(vllm_penalties, "apply_penalties", vllm_penalties.apply_penalties)
    for module in (vllm_sampler, vllm_ops):
        monkeypatch.setattr(module, "TopKTopPSampler", module.TopKTopPSampler)
    adapter.register()


class TestBesideVllm:
    @pytest.mark.parametrize("kind", ["k", "p", "kp"])
    def test_kept_sets_and_logprobs(self, kind: str) -> None:
        different = near = 0
        for logits, k, p in blocks(kind):
            own = vllm_ops.apply_top_k_top_p_pytorch(logits.clone(), k, p)
            found = TopKTopPSampler("processed_logits")(logits.clone(), {}, k, p)[1]
            logprobs = TopKTopPSampler("processed_logprobs")(logits.clone(), {}, k, p)[1]
            assert found is not None
            assert logprobs is not None
            boundary = is_near_a_boundary(logits, k, p)
            is_other = ((own > -torch.inf) != (found > -torch.inf)).any(1)
            different += int((is_other & ~boundary).sum())
            near += int(boundary.sum())
            same = ~is_other
            assert torch.equal(own[same], found[same])
            torch.testing.assert_close(logprobs[same], own[same].log_softmax(1, dtype=torch.float32), atol=1e-5, rtol=0)
        assert different == 0
        assert near < ROWS // 20

    @pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
    def test_same_interface(self, mode: str) -> None:
        logits, k, p = next(blocks("kp"))
        own = vllm_ops.TopKTopPSampler(logprobs_mode=mode)
        theirs, ours = (sampler.forward_native(logits.clone(), {}, k, p) for sampler in (own, TopKTopPSampler(mode)))
        assert theirs[0].dtype == ours[0].dtype
        assert theirs[0].shape == ours[0].shape
        assert (theirs[1] is None) == (ours[1] is None)
        names = [list(inspect.signature(c.forward_native).parameters) for c in (type(own), TopKTopPSampler)]
        assert names[0] == names[1]


@pytest.mark.usefixtures("plugin")
class TestInstalled:
    def test_sampler_of_vllm_uses_it(self) -> None:
        sampler = vllm_sampler.Sampler()
        assert type(sampler.topk_topp_sampler).replaced is not None
        again = vllm_sampler.TopKTopPSampler
        adapter.register()
        assert vllm_sampler.TopKTopPSampler is again

    @pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
    def test_logprobs_are_those_of_vllm(self, mode: str) -> None:
        logits, k, p = next(blocks("kp"))
        sampler = vllm_sampler.Sampler(logprobs_mode=mode)
        own = sampler.gather_logprobs.replaced
        given: list[tuple[Tensor, int, Tensor]] = []

        def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
            is_late = isinstance(logprobs, LateLogprobs)
            assert is_late == (mode == "raw_logprobs")
            given.append((logits.log_softmax(1) if is_late else logprobs.clone(), num_logprobs, token_ids))
            return vllm_sampler.Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)

        sampler.gather_logprobs = gather_logprobs
        found = sampler(logits.clone(), metadata(BLOCK, top_k=k, top_p=p, max_num_logprobs=5)).logprobs_tensors
        ((of_rows, count, drawn),) = given
        expected = own(of_rows, count, drawn)
        torch.testing.assert_close(
            found.logprobs, expected.logprobs, atol=2e-6 if mode == "raw_logprobs" else 0, rtol=0
        )
        assert torch.equal(found.selected_token_ranks, expected.selected_token_ranks)
        assert found.logprob_token_ids.dtype == expected.logprob_token_ids.dtype
        no_ties = (found.logprobs[:, 1:].diff(dim=1) != 0).all(1) & (found.logprobs[:, -1] > -torch.inf)
        assert no_ties.sum() > BLOCK // 4
        assert torch.equal(found.logprob_token_ids[no_ties], expected.logprob_token_ids[no_ties])

    @pytest.mark.parametrize("count", [None, 5])
    @pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
    def test_logprobs_of_named_ids_are_those_of_vllm(
        self, mode: str, count: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        do_without_pinning(monkeypatch)
        sampler = vllm_sampler.Sampler(logprobs_mode=mode)
        own = getattr(getattr(sampler, NAMED, None), "replaced", None)
        if own is None:
            pytest.skip("requests of this vLLM name no ids")
        logits, k, p = next(blocks("kp"))
        named = {row: [row % COLUMNS, 3, 3, 199][: 1 + row % 4] for row in range(0, BLOCK, 3)}
        asked = metadata(BLOCK, top_k=k, top_p=p, max_num_logprobs=count, logprob_token_ids=named)
        given: list[tuple[Any, ...]] = []

        def look_up(logprobs: Tensor, *arguments: Any) -> Any:
            is_late = isinstance(logprobs, LateLogprobs)
            assert is_late == (mode == "raw_logprobs")
            given.append((logits.log_softmax(1) if is_late else logprobs.clone(), *arguments))
            return getattr(vllm_sampler.Sampler, NAMED)(sampler, logprobs, *arguments)

        setattr(sampler, NAMED, look_up)
        output = sampler(logits.clone(), asked)
        found, expected = output.logprobs_tensors, own(sampler, *given[0])
        assert torch.equal(found.logprob_token_ids, expected.logprob_token_ids)
        assert found.logprob_token_ids.dtype == expected.logprob_token_ids.dtype
        assert torch.equal(found.logprob_token_ids[:, :1], output.sampled_token_ids)
        torch.testing.assert_close(
            found.logprobs, expected.logprobs, atol=2e-6 if mode == "raw_logprobs" else 0, rtol=0
        )
        assert torch.equal(found.selected_token_ranks, expected.selected_token_ranks)

    @pytest.mark.parametrize("tokens", [0, 1, 100])
    def test_penalties_are_those_of_vllm_bit_for_bit(self, tokens: int) -> None:
        generator = torch.Generator().manual_seed(tokens)
        logits = torch.randn(BLOCK, COLUMNS, generator=generator) * 4
        prompt = torch.randint(0, COLUMNS + 1, (BLOCK, 20), generator=generator)
        outputs = torch.randint(0, COLUMNS, (BLOCK, tokens), generator=generator)
        outputs[torch.arange(tokens) >= torch.randint(0, 1 + tokens, (BLOCK, 1), generator=generator)] = COLUMNS
        presence, frequency, repetition = torch.rand(3, BLOCK, generator=generator) * 2
        presence[::3], frequency[::4], repetition[::5] = 0, 0, 1
        options = (prompt, outputs, presence, frequency, repetition + 0.5)
        found = vllm_penalties.apply_penalties(logits.clone(), *options)
        assert torch.equal(found, vllm_penalties.apply_penalties.replaced(logits.clone(), *options))
        assert not torch.equal(found, logits)

    @pytest.mark.parametrize("has_top_p", [False, True])
    def test_a_step_draws_what_vllms_own_steps_lead_to(self, has_top_p: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        # torch's argmax stands for the kernel of vLLM's CPU build.
        monkeypatch.setattr(vllm_sampler.Sampler, "greedy_sample", staticmethod(lambda logits: logits.argmax(1)))
        config: Any = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_seqs=BLOCK))
        processor = MinPLogitsProcessor(config, torch.device("cpu"), False)
        generator = torch.Generator().manual_seed(1)
        processor.min_p = torch.rand(BLOCK, 1, generator=generator) * 0.5
        processor.min_p[::3] = 0
        processor.min_p_count = int((processor.min_p > 0).sum())
        temperature = torch.rand(BLOCK, generator=generator) + 0.3
        temperature[::7] = 0
        sampler, near = vllm_sampler.Sampler(), 0
        for logits, k, p in blocks("kp"):
            asked = {"temperature": temperature, "all_random": False, "top_k": k, "top_p": p if has_top_p else None}
            asked |= {"logitsprocs": LogitsProcessors([processor])}
            seeds = {row: torch.Generator().manual_seed(row) for row in range(BLOCK)}
            found, _ = sampler.sample(logits.clone(), metadata(BLOCK, **asked, generators=seeds))
            seeds = {row: torch.Generator().manual_seed(row) for row in range(BLOCK)}
            scaled = vllm_sampler.Sampler.apply_temperature(logits.clone(), temperature, False)
            own, _ = type(sampler).sample.replaced(sampler, logits.clone(), metadata(BLOCK, **asked, generators=seeds))
            bounds = scaled.amax(1, keepdim=True) + processor.min_p.log()
            is_near = ((scaled - bounds).abs() < 1e-5).any(1)
            masked = processor.apply(scaled)
            masked = torch.where(masked > -torch.inf, masked, -1000.0 - torch.arange(COLUMNS))  # no two are equal
            is_near |= is_near_a_boundary(masked, k, p)
            assert torch.equal(found[~is_near], own[~is_near])
            near += int(is_near.sum())
        assert near < ROWS // 10


class TestHostValues:
    """The batch notes what it copies to the device; requests come, go and change places as vLLM does it."""

    VOCAB_SIZE = 1000

    @pytest.fixture
    def batch(self, plugin: None, monkeypatch: pytest.MonkeyPatch) -> Any:
        from vllm.v1.worker import gpu_input_batch

        do_without_pinning(monkeypatch)
        values: dict[str, Any] = {
            "max_num_reqs": 8,
            "max_model_len": 32,
            "max_num_batched_tokens": 64,
            "device": torch.device("cpu"),
            "pin_memory": False,
            "vocab_size": self.VOCAB_SIZE,
            "block_sizes": [16],
            "kernel_block_sizes": [16],
            "max_num_blocks_per_req": [2],
        }
        names = inspect.signature(gpu_input_batch.InputBatch.__init__).parameters
        return gpu_input_batch.InputBatch(**{name: value for name, value in values.items() if name in names})

    def add(self, batch: Any, name: str, **parameters: Any) -> None:
        from vllm import SamplingParams
        from vllm.v1.worker.gpu_input_batch import CachedRequestState

        batch.add_request(
            CachedRequestState(
                req_id=name,
                prompt_token_ids=[1, 2],
                mm_features=[],
                sampling_params=SamplingParams(**parameters),
                generator=None,
                block_ids=([0],),
                num_computed_tokens=0,
                output_token_ids=[],
            )
        )

    def check(self, metadata: SamplingMetadata, rows: int) -> None:
        """Facts are there, and say what the tensors hold."""
        facts = facts_of(rows, metadata.top_k, metadata.top_p)
        assert facts is not None
        if metadata.top_k is not None:
            assert facts["top_k"].tolist() == metadata.top_k.tolist()
        if metadata.top_p is not None:
            assert facts["top_p"].tolist() == metadata.top_p.tolist()
        if metadata.temperature is not None:
            assert facts["temperature"].tolist() == (metadata.temperature > 0).float().tolist()

    def test_through_the_life_of_a_batch(self, batch: Any) -> None:
        with torch.inference_mode():
            self.add(batch, "a", temperature=0.7, top_k=50)
            self.add(batch, "b", temperature=0.0)
            self.add(batch, "c", temperature=1.0, top_k=7, top_p=0.9)
            batch.refresh_metadata()
            first = batch.sampling_metadata
            self.check(first, 3)
            assert first.top_k.tolist() == [50, self.VOCAB_SIZE, 7]
            batch.swap_states(0, 2)
            self.check(first, 3)  # the device has what it had
            batch.refresh_metadata()
            second = batch.sampling_metadata
            self.check(second, 3)
            assert second.top_k.tolist() == [7, self.VOCAB_SIZE, 50]
            assert facts_of(3, first.top_k, first.top_p) is None
            assert batch.remove_request("c") == 0
            batch.condense()
            batch.refresh_metadata()
            third = batch.sampling_metadata
            self.check(third, 2)
            assert third.top_k.tolist() == [50, self.VOCAB_SIZE]
            assert third.top_p is None
            assert facts_of(3, second.top_k, second.top_p) is None


class TestPlugin:
    """Each in a process of its own, through vLLM's loader and the entry point of the package."""

    CODE = """
import vllm.plugins, vllm.v1.sample.sampler as own
vllm.plugins.load_general_plugins()
vllm.plugins.plugins_loaded = False  # as in a process that loads them twice
vllm.plugins.load_general_plugins()
found = own.TopKTopPSampler
print("replaced", hasattr(found, "replaced"), hasattr(getattr(found, "replaced", None), "replaced"))
"""

    @pytest.mark.parametrize(
        ("variables", "found"),
        [
            ({}, "True False"),
            ({"ASCEND_SAMPLE_VLLM": "0"}, "False False"),
            ({"VLLM_PLUGINS": "another"}, "False False"),
        ],
    )
    def test_it_is_installed_once_unless_it_is_switched_off(self, variables: dict[str, str], found: str) -> None:
        command = (sys.executable, "-c", self.CODE)
        finished = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip().splitlines()[-1] == f"replaced {found}"


class TestShards:
    """Ranks that draw from their parts: in vLLM's own sampler, and as far as its runners can be looked at."""

    PROCESSORS = ("LogitBiasLogitsProcessor", "MinPLogitsProcessor", "MinTokensLogitsProcessor")

    def test_what_the_adapter_relies_on_is_there(self) -> None:
        check_shards(Path(vllm.__file__).parent)
        check_steps(Path(vllm.__file__).parent)

    def idle_processors(self) -> LogitsProcessors:
        from vllm.v1.sample.logits_processor import builtin

        config = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_seqs=8))
        made = [getattr(builtin, name)(config, torch.device("cpu"), False) for name in self.PROCESSORS]
        return LogitsProcessors(made)

    def run(self, logits: Tensor, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
        """Takes steps of two ranks, and returns the tokens of each: from parts, or from whole rows."""
        from vllm.distributed import parallel_state

        monkeypatch.setattr(parallel_state, "get_tp_group", lambda: here.ranks)
        kind = type("Sampler", (vllm_sampler.Sampler,), {})
        vllm_shards.install_sampler(kind)
        rows, vocab_size = logits.shape

        def steps(exchange: Exchange) -> list[list[int]]:
            here.ranks = Ranks(exchange)
            sampler = kind()
            temperature = torch.tensor([0.0, 0.7, 1.0, 1.3])
            top_k = torch.tensor([vocab_size, 20, vocab_size, 5], dtype=torch.int32)
            note({"temperature": (temperature != 0).float().numpy(), "top_k": top_k.numpy()}, temperature, top_k)
            asked = metadata(
                rows,
                temperature=temperature,
                all_random=False,
                top_k=top_k,
                generators={row: torch.Generator().manual_seed(row) for row in range(1, rows)},
                logitsprocs=self.idle_processors(),
            )
            width = vocab_size // 2
            part = logits[:, exchange.rank * width :][:, :width]
            tokens = []
            for _ in range(4):
                late = LateGather(part, vocab_size, here.ranks.all_gather) if is_late else logits
                tokens.append(sampler(logits=late, sampling_metadata=asked).sampled_token_ids[:, 0].tolist())
            assert not here.ranks.gathered
            return tokens

        return on_threads(2, steps)

    def test_tokens_are_those_of_whole_rows(self, plugin: None, monkeypatch: pytest.MonkeyPatch) -> None:
        do_without_pinning(monkeypatch)
        logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(7)) * 2
        # torch's argmax stands for the kernel of vLLM's CPU build.
        monkeypatch.setattr(vllm_sampler.Sampler, "greedy_sample", staticmethod(lambda logits: logits.argmax(1)))
        split, whole = (self.run(logits, is_late, monkeypatch) for is_late in (True, False))
        assert split == whole
        assert split[0] == split[1]
