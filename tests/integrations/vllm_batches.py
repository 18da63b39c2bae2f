"""Requests of vLLM's V1 runner, and the batch that copies what they ask for: for its own classes and for stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ascend_sample.integrations import vllm
from tests.integrations import vllm_stand_ins


@dataclass
class Request:
    """What somebody asks for, the text so far, and the logprobs that were reported of it."""

    prompt: list[int] = field(default_factory=lambda: [0])
    seed: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    logprobs: int | None = None
    bias: dict[int, float] = field(default_factory=dict)
    banned: list[int] = field(default_factory=list)
    allowed: list[int] | None = None
    least: int = 0
    output: list[int] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    generator: Any = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            self.generator = torch.Generator().manual_seed(self.seed)


def asked_of(kind: type[Any], rows: int, device: str = "cpu", **changes: Any) -> Any:
    """Returns a `SamplingMetadata`, of vLLM's class or one like it, of rows that ask for nothing but these changes."""
    temperature = changes.pop("temperature", torch.ones(rows, device=device))
    none, one = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    values: dict[str, Any] = {
        "temperature": temperature,
        "all_greedy": temperature is None,
        "all_random": temperature is not None and bool((temperature >= 1e-5).all()),
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": none,
        "presence_penalties": none,
        "repetition_penalties": one,
        "output_token_ids": [[] for _ in range(rows)],
        "spec_token_ids": [[] for _ in range(rows)],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
    }
    return kind(**(values | changes))


class InputBatch:
    """The requests: numbers on the host, which are copied to buffers on a device whenever the batch is refreshed.

    Args:
        vocab_size: of the rows.
        room: for so many requests.
        device: where the buffers are.
        kinds: has the classes SamplingMetadata and LogitsProcessors.
        processors: of logits.
    """

    def __init__(
        self,
        vocab_size: int,
        room: int = 8,
        device: str = "cpu",
        kinds: Any = vllm_stand_ins,
        processors: Any = None,
    ) -> None:
        self.vocab_size, self.device, self.kinds = vocab_size, device, kinds
        self.requests: list[Request] = []
        self.drafts: list[list[int]] = []
        self.logitsprocs = kinds.LogitsProcessors() if processors is None else processors
        self.buffers = {name: torch.zeros(room, device=device) for name in ("temperature", "top_p")}
        self.buffers["top_k"] = torch.zeros(room, dtype=torch.int32, device=device)

    @property
    def num_reqs(self) -> int:
        return len(self.requests)

    @property
    def temperature_cpu(self) -> Any:
        return np.array([each.temperature for each in self.requests], np.float32)

    @property
    def top_k_cpu(self) -> Any:
        return np.array([each.top_k or self.vocab_size for each in self.requests], np.int32)

    @property
    def top_p_cpu(self) -> Any:
        return np.array([each.top_p for each in self.requests], np.float32)

    def refresh(self, drafts: Sequence[list[int]] | None = None) -> Any:
        """Makes the metadata anew, and returns it."""
        self.drafts = [[] for _ in self.requests] if drafts is None else [*drafts]
        self.sampling_metadata = self._make_sampling_metadata()
        return self.sampling_metadata

    def _make_sampling_metadata(self) -> Any:
        asked, rows = self.requests, slice(len(self.requests))

        def copied(name: str, is_needed: bool) -> Tensor | None:
            return self.buffers[name][rows].copy_(torch.from_numpy(getattr(self, f"{name}_cpu"))) if is_needed else None

        def column(name: str) -> Tensor:
            return torch.tensor([getattr(each, name) for each in asked], device=self.device, dtype=torch.float32)

        is_penalized = any((each.presence, each.frequency, each.repetition) != (0, 0, 1) for each in asked)
        longest = max((len(each.prompt) for each in asked), default=0)
        prompts = [each.prompt + [self.vocab_size] * (longest - len(each.prompt)) for each in asked]
        mask = None
        if any(each.allowed is not None for each in asked):
            mask = torch.zeros(len(asked), self.vocab_size, dtype=torch.bool)
            for row, each in enumerate(asked):
                if each.allowed is not None:
                    mask[row] = True
                    mask[row, each.allowed] = False
        banned = {row: [[token] for token in each.banned] for row, each in enumerate(asked) if each.banned}
        return asked_of(
            self.kinds.SamplingMetadata,
            len(asked),
            self.device,
            temperature=copied("temperature", any(each.temperature > 0 for each in asked)),
            all_random=all(each.temperature > 0 for each in asked),
            top_p=copied("top_p", any(each.top_p < 1 for each in asked)),
            top_k=copied("top_k", any((each.top_k or self.vocab_size) < self.vocab_size for each in asked)),
            generators={row: each.generator for row, each in enumerate(asked) if each.generator is not None},
            max_num_logprobs=max((each.logprobs for each in asked if each.logprobs is not None), default=None),
            no_penalties=not is_penalized,
            prompt_token_ids=torch.tensor(prompts, device=self.device) if is_penalized else None,
            frequency_penalties=column("frequency"),
            presence_penalties=column("presence"),
            repetition_penalties=column("repetition"),
            output_token_ids=[each.output for each in asked],
            spec_token_ids=self.drafts,
            allowed_token_ids_mask=mask,
            bad_words_token_ids=banned,
            logitsprocs=self.logitsprocs,
        )


class NotedBatch(InputBatch):
    """A batch as it is with the plugin: the host knows what its tensors hold."""


vllm._note_host_values(NotedBatch)
