"""A small engine with the parts of vLLM's V1 runner that logits go through, of which each rank has a part.

A rank is a thread or a process: whatever has an exchange. What vLLM does is looked up in its source, and written anew.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ascend_sample.integrations import vllm, vllm_cpu, vllm_shards
from ascend_sample.sampling.vocabulary_parallel import Exchange
from tests.integrations import vllm_stand_ins
from tests.integrations.vllm_stand_ins import LogitsProcessors, SamplerOutput, SamplingMetadata
from tests.sampling.vocabulary_parallel.shard_ranks import Counted

PADDING = 1e4
"""The logits of padding would win every row."""


class Ranks:
    """vLLM's coordinator of a group; it counts what its gathers send."""

    def __init__(self, exchange: Exchange) -> None:
        self.cpu_group = self.device_group = Counted(exchange)
        self.rank_in_group, self.world_size = exchange.rank, exchange.size
        self.gathered: list[int] = []

    def all_gather(self, part: Tensor) -> Tensor:
        message = part.contiguous().view(torch.uint8)
        self.gathered.append(message.numel())
        told = self.cpu_group.all_gather(message.view(-1)).view(self.world_size, len(part), -1)
        return torch.cat([each.contiguous().view(part.dtype) for each in told], 1)


here = threading.local()
"""The group of the rank: `here.ranks`."""


@dataclass
class Head:
    """The output layer: a rank's part of the weights, padded so that all parts are as wide.

    With words that were added for LoRA each part has some of these behind its own.
    """

    weight: Tensor
    num_added_embeddings: int = 0

    @classmethod
    def of(cls, weight: Tensor, padded: int, added: int, device: str) -> Head:
        width = padded // here.ranks.world_size
        start = here.ranks.rank_in_group * width
        part = torch.full((width, weight.shape[1]), PADDING, dtype=weight.dtype)
        own = weight[start : start + width]
        part[: len(own)] = own
        return cls(part.to(device), added)


class LogitsProcessor(nn.Module):
    use_all_gather = True

    def __init__(self, vocab_size: int, scale: float = 1.0, soft_cap: float | None = None) -> None:
        super().__init__()
        self.org_vocab_size, self.scale, self.soft_cap = vocab_size, scale, soft_cap

    def forward(self, lm_head: Head, hidden: Tensor) -> Tensor:
        logits = self._get_logits(hidden, lm_head)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        if self.scale != 1.0:
            logits *= self.scale
        return logits

    def _get_logits(self, hidden: Tensor, lm_head: Head) -> Tensor:
        return self._gather_logits(hidden @ lm_head.weight.t())[..., : self.org_vocab_size]

    def _gather_logits(self, logits: Tensor) -> Tensor:
        gathered: Tensor = here.ranks.all_gather(logits)
        return gathered


class MinPLogitsProcessor:
    __module__ = "vllm.v1.sample.logits_processor.builtin"

    def __init__(self) -> None:
        self.min_p: Tensor | None = None
        self.min_p_count = 0

    def apply(self, logits: Tensor) -> Tensor:
        if not self.min_p_count:
            return logits
        assert self.min_p is not None
        probabilities = logits.softmax(1)
        least = probabilities.amax(1, keepdim=True) * self.min_p.unsqueeze(1)
        return logits.masked_fill_(probabilities < least, -torch.inf)


class LogitBiasLogitsProcessor:
    __module__ = "vllm.v1.sample.logits_processor.builtin"

    def __init__(self) -> None:
        self.biases: dict[int, dict[int, float]] = {}

    def apply(self, logits: Tensor) -> Tensor:
        for row, bias in self.biases.items():
            for token, more in bias.items():
                logits[row, token] += more
        return logits


class Foreign:
    """A processor of logits that somebody has written; it forbids the first id."""

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, 0] = -torch.inf
        return logits


@dataclass
class Request:
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence: float = 0.0
    logprobs: int | None = None
    bias: dict[int, float] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    allowed: list[int] | None = None
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)


class InputBatch:
    """The requests, whose numbers are copied to tensors whenever the batch changes."""

    def __init__(self, vocab_size: int, processors: LogitsProcessors | None = None, device: str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.requests: list[Request] = []
        self.min_p, self.bias = MinPLogitsProcessor(), LogitBiasLogitsProcessor()
        self.logitsprocs = processors or LogitsProcessors([self.min_p], [self.bias])
        self.tensors = {name: torch.zeros(64, device=device) for name in ("temperature", "top_p")}
        self.tensors["top_k"] = torch.zeros(64, dtype=torch.int32, device=device)

    @property
    def num_reqs(self) -> int:
        return len(self.requests)

    def refresh(self) -> None:
        columns = {
            "temperature": [each.temperature for each in self.requests],
            "top_p": [each.top_p for each in self.requests],
            "top_k": [each.top_k or self.vocab_size for each in self.requests],
        }
        for name, values in columns.items():
            dtype = np.int32 if name == "top_k" else np.float32
            setattr(self, f"{name}_cpu", np.array(values, dtype))
        self.min_p.min_p = torch.tensor([each.min_p for each in self.requests])
        self.min_p.min_p_count = sum(each.min_p > 0 for each in self.requests)
        self.bias.biases = {row: each.bias for row, each in enumerate(self.requests) if each.bias}
        self.metadata = self._make_sampling_metadata()

    def _make_sampling_metadata(self) -> SamplingMetadata:
        requests, count = self.requests, self.num_reqs

        def copied(name: str, is_there: bool) -> Tensor | None:
            return (
                self.tensors[name][:count].copy_(torch.from_numpy(getattr(self, f"{name}_cpu"))) if is_there else None
            )

        all_greedy = all(each.temperature == 0 for each in requests)
        masks = None
        if any(each.allowed is not None for each in requests):
            masks = torch.zeros(count, self.vocab_size, dtype=torch.bool)
            for row, each in enumerate(requests):
                if each.allowed is not None:
                    masks[row] = True
                    masks[row, each.allowed] = False
        asked = [each.logprobs for each in requests if each.logprobs is not None]
        return SamplingMetadata(
            temperature=copied("temperature", not all_greedy),
            all_greedy=all_greedy,
            all_random=all(each.temperature > 0 for each in requests),
            top_p=copied("top_p", any(each.top_p < 1 for each in requests)),
            top_k=copied("top_k", any(each.top_k is not None for each in requests)),
            generators={row: each.generator for row, each in enumerate(requests) if each.generator is not None},
            max_num_logprobs=max(asked, default=None),
            no_penalties=not any(each.presence for each in requests),
            prompt_token_ids=torch.full((count, 1), self.vocab_size),
            frequency_penalties=torch.zeros(count),
            presence_penalties=torch.tensor([each.presence for each in requests]),
            repetition_penalties=torch.ones(count),
            output_token_ids=[each.output for each in requests],
            spec_token_ids=[[] for _ in requests],
            allowed_token_ids_mask=masks,
            bad_words_token_ids={row: [[token] for token in each.bad] for row, each in enumerate(requests) if each.bad},
            logitsprocs=self.logitsprocs,
        )


class Sampler(vllm_stand_ins.Sampler):
    def forward(  # type: ignore[override]
        self,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> SamplerOutput:
        processed = logits.to(torch.float32).clone()
        if sampling_metadata.allowed_token_ids_mask is not None:
            processed.masked_fill_(sampling_metadata.allowed_token_ids_mask, -torch.inf)
        for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
            processed = processor.apply(processed)
        raw = logits
        processed = self.apply_logits_processors(processed, sampling_metadata, False)
        token_ids, reported = self.sample(processed, sampling_metadata)
        logprobs = None
        if sampling_metadata.max_num_logprobs is not None:
            values = raw.float() if reported is None else reported
            logprobs = vllm_stand_ins.gathered(values, self.logprobs_mode, token_ids)
        return SamplerOutput(token_ids.int().unsqueeze(1), logprobs)


def apply_grammar_bitmask(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Tensor) -> None:
    """Forbids odd ids, in place and past torch's dispatcher, as kernels that are compiled for it do."""
    logits.numpy()[:, 1::2] = -np.inf


class Model:
    def __init__(self, processor: LogitsProcessor, head: Head, forbidden: Sequence[int] = ()) -> None:
        self.processor, self.head, self.forbidden = processor, head, list(forbidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.processor(self.head, hidden)
        if self.forbidden:  # as models do that know of ids that are none
            logits[:, self.forbidden] = torch.finfo(logits.dtype).min
        return logits


class Runner:
    speculative_config: Any = None

    def __init__(self, model: Model, batch: InputBatch, sampler: Sampler, module: Any) -> None:
        self.model, self.input_batch, self.sampler, self._module = model, batch, sampler, module
        self.logits: Tensor | None = None

    def execute_model(self, hidden: Tensor) -> None:
        self.logits = self.model.compute_logits(hidden)

    def sample_tokens(self, has_grammar: bool = False) -> SamplerOutput:
        logits, self.logits = self.logits, None
        assert logits is not None
        if has_grammar:
            self._module.apply_grammar_bitmask(None, None, self.input_batch, logits)
        output = self.sampler(logits=logits, sampling_metadata=self.input_batch.metadata)
        for request, token in zip(self.input_batch.requests, output.sampled_token_ids[:, 0].tolist(), strict=True):
            request.output.append(token)
        return output


@dataclass
class Engine:
    """What one rank has.

    Args:
        is_split: draws from the parts where it can; else all is as in vLLM with the adapter.
        vocab_size, padded: without and with padding.
        broken: ids whose logits are NaN.
    """

    is_split: bool
    vocab_size: int = 300
    padded: int = 320
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    forbidden: Sequence[int] = ()
    broken: Sequence[int] = ()
    added: int = 0
    processors: LogitsProcessors | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        # Classes of its own, as the adapter changes classes.
        batch = type("InputBatch", (InputBatch,), {})
        processor = type("LogitsProcessor", (LogitsProcessor,), {})
        sampler = type("Sampler", (Sampler,), {})
        runner = type("Runner", (Runner,), {})
        module = types.SimpleNamespace(apply_grammar_bitmask=apply_grammar_bitmask)
        vllm._note_host_values(batch)
        vllm_cpu.install_sampler(sampler)
        if self.is_split:
            vllm_shards.install_runner(module, runner)
            vllm_shards.install_logits_processor(processor)
            vllm_shards.install_sampler(sampler)
        weight = torch.randn(self.vocab_size, 16, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        weight[list(self.broken)] = torch.nan
        head = Head.of(weight, self.padded, self.added, self.device)
        model = Model(processor(self.vocab_size, **self.options), head, self.forbidden)
        self.batch = batch(self.vocab_size, self.processors, self.device)
        self.runner = runner(model, self.batch, sampler(), module)
        self.hidden = torch.Generator().manual_seed(2)

    def step(self, has_grammar: bool = False) -> list[int]:
        """Draws a token for each request."""
        hidden = torch.randn(self.batch.num_reqs, 16, generator=self.hidden).to(self.dtype)
        self.runner.execute_model(hidden.to(self.device))
        ids: list[int] = self.runner.sample_tokens(has_grammar).sampled_token_ids[:, 0].tolist()
        return ids

    def take(self, *requests: Request) -> None:
        """Replaces the requests."""
        self.batch.requests = list(requests)
        self.batch.refresh()


def install_modules(modules: Any) -> None:
    """Puts what the adapter imports of vLLM into a dictionary of modules."""
    modules["vllm.distributed.parallel_state"] = types.SimpleNamespace(get_tp_group=lambda: here.ranks)
    modules["vllm.v1.outputs"] = types.SimpleNamespace(SamplerOutput=SamplerOutput)
