"""What vLLM's V1 samplers look like from outside, for tests without vLLM; `vllm_drafts_parity.py` has the real ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.integrations.vllm import TopKTopPSampler


def configure_ascend(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Makes this the configuration of vllm_ascend."""
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", SimpleNamespace(get_ascend_config=lambda: config))


@dataclass
class SamplerOutput:
    sampled_token_ids: Tensor
    logprobs_tensors: Any


@dataclass
class LogitsProcessors:
    argmax_invariant: list[Any] = field(default_factory=list)
    non_argmax_invariant: list[Any] = field(default_factory=list)


@dataclass
class SamplingMetadata:
    temperature: Tensor | None
    all_greedy: bool
    all_random: bool
    top_p: Tensor | None
    top_k: Tensor | None
    generators: dict[int, Any]
    max_num_logprobs: int | None
    no_penalties: bool
    prompt_token_ids: Tensor | None
    frequency_penalties: Tensor
    presence_penalties: Tensor
    repetition_penalties: Tensor
    output_token_ids: list[list[int]]
    spec_token_ids: list[list[int]]
    allowed_token_ids_mask: Tensor | None
    bad_words_token_ids: dict[int, list[list[int]]]
    logitsprocs: LogitsProcessors
    logprob_token_ids: dict[int, list[int]] | None = None
    thinking_budget_state_holder: Any = None


@dataclass
class SpecDecodeMetadata:
    draft_token_ids: Tensor
    num_draft_tokens: list[int]
    cu_num_draft_tokens: Tensor
    cu_num_sampled_tokens: Tensor
    target_logits_indices: Tensor
    bonus_logits_indices: Tensor
    logits_indices: Tensor


def edit(logits: Tensor, asked: SamplingMetadata, requests: list[int], outputs: list[list[int]]) -> Tensor:
    """Bans and penalises rows in place: of these requests, after these outputs."""
    for row, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        for (token,) in asked.bad_words_token_ids.get(request, []):
            logits[row, token] = -torch.inf
        if asked.no_penalties:
            continue
        assert asked.prompt_token_ids is not None
        vocab_size = logits.shape[1]
        counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=vocab_size)[:vocab_size]
        seen = counts + torch.bincount(asked.prompt_token_ids[request], minlength=vocab_size + 1)[:vocab_size]
        repetition = torch.where(seen > 0, asked.repetition_penalties[request], 1.0)
        logits[row] = torch.where(logits[row] > 0, logits[row] / repetition, logits[row] * repetition)
        logits[row] -= asked.frequency_penalties[request] * counts + asked.presence_penalties[request] * (counts > 0)
    return logits


class MinTokensLogitsProcessor:
    """Keeps requests from their stops until they are long enough: of a row a request, or of one a draft."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.min_toks: dict[int, tuple[int, list[int], set[int]]] = {}

    def update_state(self, batch_update: Any) -> None:
        for row, asked, _, output in () if batch_update is None else batch_update.added:
            self.min_toks[row] = (asked.min_tokens, output, asked.all_stop_token_ids)
        self.min_toks = {row: of_row for row, of_row in self.min_toks.items() if len(of_row[1]) < of_row[0]}

    def apply(self, logits: Tensor) -> Tensor:
        for row, (_, _, stops) in self.min_toks.items():
            logits[row, [*stops]] = -torch.inf
        return logits

    def apply_with_spec_decode(self, logits: Tensor, num_draft_tokens: list[int]) -> Tensor:
        for request, (least, output, stops) in self.min_toks.items():
            start = sum(num_draft_tokens[:request])
            masked = max(0, min(least - len(output), num_draft_tokens[request]))
            logits[start : start + masked, [*stops]] = -torch.inf
        return logits


MinTokensLogitsProcessor.__module__ = "vllm.stand_in"
BatchUpdate = SimpleNamespace


def gathered(values: Tensor, mode: str, token_ids: Tensor) -> Any:
    found = values if mode.endswith("logits") else values.log_softmax(1)
    return SimpleNamespace(logprobs=found.gather(1, token_ids.long().clamp(min=0).view(-1, 1)))


class Sampler(nn.Module):
    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        super().__init__()
        self.logprobs_mode = logprobs_mode
        self.topk_topp_sampler = TopKTopPSampler(logprobs_mode)

    def forward(self, logits: Tensor, sampling_metadata: SamplingMetadata) -> SamplerOutput:
        raw = logits
        processed = self.apply_logits_processors(logits.clone(), sampling_metadata, False)
        token_ids, reported = self.sample(processed, sampling_metadata)
        logprobs = None
        if sampling_metadata.max_num_logprobs is not None:
            logprobs = gathered(raw if reported is None else reported, self.logprobs_mode, token_ids)
        return SamplerOutput(token_ids.int().unsqueeze(1), logprobs)

    def apply_logits_processors(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, predict_bonus_token: bool
    ) -> Tensor:
        outputs = sampling_metadata.output_token_ids
        if predict_bonus_token:
            outputs = [[*ids, *more] for ids, more in zip(outputs, sampling_metadata.spec_token_ids, strict=True)]
        for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
        return edit(logits, sampling_metadata, [*range(len(logits))], outputs)

    def sample(self, logits: Tensor, sampling_metadata: SamplingMetadata) -> tuple[Tensor, Tensor | None]:
        best = self.greedy_sample(logits)
        if sampling_metadata.temperature is None:
            return best, logits if self.logprobs_mode.startswith("processed") else None
        temperature = sampling_metadata.temperature
        is_greedy = temperature < 1e-5
        asked = sampling_metadata
        logits = self.apply_temperature(logits, temperature, asked.all_random)
        for processor in asked.logitsprocs.argmax_invariant:
            logits = processor.apply(logits)
        token_ids, reported = self.topk_topp_sampler(logits, asked.generators, asked.top_k, asked.top_p)
        return torch.where(is_greedy, best, token_ids), reported

    @staticmethod
    def greedy_sample(logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1).view(-1)

    @staticmethod
    def apply_temperature(logits: Tensor, temperature: Tensor, all_random: bool) -> Tensor:
        divisor = temperature if all_random else torch.where(temperature < 1e-5, 1.0, temperature)
        return logits.div_(divisor.unsqueeze(1))


class RejectionSampler(nn.Module):
    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self.synthetic_mode = False
        self.is_processed_logprobs_mode = sampler.logprobs_mode.startswith("processed")

    def forward(
        self, metadata: SpecDecodeMetadata, draft_probs: Any, logits: Tensor, sampling_metadata: SamplingMetadata
    ) -> SamplerOutput:
        raise AssertionError("this needs a device")

    def apply_logits_processors(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, metadata: SpecDecodeMetadata
    ) -> Tensor:
        for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply_with_spec_decode(logits, metadata.num_draft_tokens)
        requests, outputs = [], []
        for request, drafts in enumerate(sampling_metadata.spec_token_ids):
            for count in range(len(drafts)):
                requests.append(request)
                outputs.append([*sampling_metadata.output_token_ids[request], *drafts[:count]])
        return edit(logits, sampling_metadata, requests, outputs)

    def _get_logprobs_tensors(
        self,
        max_num_logprobs: int,
        metadata: SpecDecodeMetadata,
        logits: Tensor,
        target_logits: Tensor,
        bonus_logits: Tensor,
        sampled_token_ids: Tensor,
    ) -> Any:
        values = torch.zeros_like(logits)
        values[metadata.target_logits_indices.long()] = target_logits
        values[metadata.bonus_logits_indices.long()] = bonus_logits
        starts = metadata.cu_num_sampled_tokens - torch.tensor(metadata.num_draft_tokens) - 1
        places = starts.unsqueeze(1) + torch.arange(sampled_token_ids.shape[1])
        rows = values[places.flatten().clamp(max=len(logits) - 1).long()]
        return gathered(rows, self.sampler.logprobs_mode, sampled_token_ids.flatten())


class DeviceGenerator:
    """A generator of a device: it has an offset. The CPU's has none, and there is no device here.

    As with torch 2.11, nothing can refer to it weakly.
    """

    __slots__ = ("offset", "seed")
    device = torch.device("meta")

    def __init__(self, seed: int) -> None:
        self.seed, self.offset = seed, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset
