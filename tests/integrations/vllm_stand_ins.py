"""vLLM's V1 samplers and processors of logits, written anew by their source, for tests without vLLM.

`vllm_parity.py` and `vllm_drafts_parity.py` have the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.integrations.vllm import TopKTopPSampler

OF_VLLM = "vllm.stand_in"
"""A module of vLLM, by its name."""


def configure_ascend(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Makes this the configuration of vllm_ascend."""
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", SimpleNamespace(get_ascend_config=lambda: config))


class LogprobsTensors(NamedTuple):
    logprob_token_ids: Tensor
    logprobs: Tensor
    selected_token_ranks: Tensor
    cu_num_generated_tokens: list[int] | None = None


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


BatchUpdate = SimpleNamespace


class MinTokensLogitsProcessor:
    """Keeps requests from their stops until they are long enough: of a row a request, or of one a draft."""

    __module__ = OF_VLLM

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


class MinPLogitsProcessor:
    """Reads the requests' `min_p` whenever it is asked."""

    __module__ = OF_VLLM

    def __init__(self, requests: Sequence[Any]) -> None:
        self.requests = requests

    @property
    def min_p(self) -> Tensor:
        return torch.tensor([each.min_p for each in self.requests])

    @property
    def min_p_count(self) -> int:
        return sum(each.min_p > 0 for each in self.requests)

    def apply(self, logits: Tensor) -> Tensor:
        if not self.min_p_count:
            return logits
        probabilities = logits.softmax(1)
        least = probabilities.amax(1, keepdim=True) * self.min_p.unsqueeze(1)
        return logits.masked_fill_(probabilities < least, -torch.inf)


class LogitBiasLogitsProcessor:
    """Reads the requests' `bias` whenever it is asked."""

    __module__ = OF_VLLM

    def __init__(self, requests: Sequence[Any]) -> None:
        self.requests = requests

    @property
    def biases(self) -> dict[int, dict[int, float]]:
        return {row: each.bias for row, each in enumerate(self.requests) if each.bias}

    def apply(self, logits: Tensor) -> Tensor:
        for row, bias in self.biases.items():
            for token, more in bias.items():
                logits[row, token] += more
        return logits


class Foreign:
    """A processor of logits that somebody has written, which forbids every other id."""

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, ::2] = -torch.inf
        return logits


def apply_penalties(
    logits: Tensor, prompt: Tensor, output: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> Tensor:
    """Penalises in place, with a table of counts of all ids."""

    def counts_of(ids: Tensor) -> Tensor:
        counts = torch.zeros(len(ids), logits.shape[1] + 1, dtype=torch.int64)
        return counts.scatter_add_(1, ids, torch.ones_like(ids))[:, :-1]

    counts = counts_of(output)
    penalties = torch.where((counts_of(prompt) > 0) | (counts > 0), repetition.unsqueeze(1), 1.0)
    logits *= torch.where(logits > 0, 1.0 / penalties, penalties)
    logits -= frequency.unsqueeze(1) * counts
    logits -= presence.unsqueeze(1) * (counts > 0)
    return logits


def edit(logits: Tensor, asked: SamplingMetadata, requests: Iterable[int], outputs: list[list[int]]) -> Tensor:
    """Bans and penalises rows in place: of these requests, after these outputs."""
    of_rows = [*requests]
    for row, request in enumerate(of_rows):
        for (token,) in asked.bad_words_token_ids.get(request, []):
            logits[row, token] = -torch.inf
    if asked.no_penalties:
        return logits
    assert asked.prompt_token_ids is not None
    longest, padding = max(map(len, outputs)), logits.shape[1]
    output = torch.tensor([ids + [padding] * (longest - len(ids)) for ids in outputs], dtype=torch.int64)
    numbers = (asked.presence_penalties, asked.frequency_penalties, asked.repetition_penalties)
    return apply_penalties(logits, asked.prompt_token_ids[of_rows], output, *(each[of_rows] for each in numbers))


class Sampler(nn.Module):
    """It changes logits in place, after its raw logprobs."""

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        super().__init__()
        self.logprobs_mode = logprobs_mode
        self.topk_topp_sampler = TopKTopPSampler(logprobs_mode)

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> SamplerOutput:
        asked, raw, told = sampling_metadata, None, None
        if asked.max_num_logprobs is not None or asked.logprob_token_ids:
            raw = self.compute_logprobs(logits) if self.logprobs_mode == "raw_logprobs" else logits.float().clone()
        logits = self.apply_logits_processors(logits.to(torch.float32), asked, predict_bonus_token)
        token_ids, reported = self.sample(logits, asked)
        values = raw if reported is None else reported
        if values is not None and asked.logprob_token_ids:
            told = self.gather_specific_token_logprobs(values, asked.logprob_token_ids, token_ids)
        elif values is not None and asked.max_num_logprobs is not None:
            has_all = asked.max_num_logprobs == -1
            told = values if has_all else self.gather_logprobs(values, asked.max_num_logprobs, token_ids)
        return SamplerOutput(token_ids.int().unsqueeze(1), told)

    def apply_logits_processors(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, predict_bonus_token: bool
    ) -> Tensor:
        asked, outputs = sampling_metadata, sampling_metadata.output_token_ids
        if predict_bonus_token:
            outputs = [[*ids, *more] for ids, more in zip(outputs, asked.spec_token_ids, strict=True)]
        if asked.allowed_token_ids_mask is not None:
            logits.masked_fill_(asked.allowed_token_ids_mask, -torch.inf)
        for processor in asked.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
        logits = edit(logits, asked, range(len(logits)), outputs)
        thinking = asked.thinking_budget_state_holder
        return logits if thinking is None else thinking.apply_to_logits(logits)  # type: ignore[no-any-return]

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

    @staticmethod
    def compute_logprobs(logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1, dtype=torch.float32)

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        best = logprobs.topk(num_logprobs, dim=-1)
        given = logprobs.gather(-1, token_ids.unsqueeze(-1))
        ids = torch.cat((token_ids.unsqueeze(-1), best.indices), dim=1).to(torch.int32)
        return LogprobsTensors(ids, torch.cat((given, best.values), dim=1), (logprobs >= given).sum(-1))

    def gather_specific_token_logprobs(
        self, logprobs: Tensor, logprob_token_ids: dict[int, list[int]], sampled: Tensor
    ) -> LogprobsTensors:
        ids = torch.zeros(len(logprobs), 1 + max(map(len, logprob_token_ids.values())), dtype=torch.int64)
        is_valid = torch.zeros_like(ids, dtype=torch.bool)
        is_valid[:, 0], ids[:, 0] = True, sampled
        for row, named in logprob_token_ids.items():
            ids[row, 1 : 1 + len(named)] = torch.as_tensor(named, dtype=torch.int64)
            is_valid[row, 1 : 1 + len(named)] = True
        values = logprobs.gather(-1, ids).masked_fill(~is_valid, -torch.inf)
        ranks = (logprobs >= logprobs.gather(-1, sampled.unsqueeze(-1))).sum(-1)
        return LogprobsTensors(ids.to(torch.int32), values, ranks)


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
        if not self.sampler.logprobs_mode.endswith("logits"):
            rows = self.sampler.compute_logprobs(rows)
        return self.sampler.gather_logprobs(rows, max_num_logprobs, sampled_token_ids.flatten().long().clamp(min=0))


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
