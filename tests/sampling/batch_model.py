"""The batch in the simplest words: a list of requests with their tokens, and everything computed anew for every id."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy
import torch

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling.reference.distribution import forbidden_ids, repetitions
from ascend_sample.sampling.requests.params import SamplingParams

Float = numpy.float32


@dataclass
class ModelRow:
    """A request, and what it has seen."""

    params: SamplingParams
    prompt: list[int]
    output: list[int]
    position: int
    seed: int
    vocab_size: int
    generated: int = field(init=False)

    def __post_init__(self) -> None:
        self.generated = len(self.output)

    @property
    def left(self) -> int:
        return max(0, self.params.min_tokens - self.generated)

    @property
    def is_masked_or_biased(self) -> bool:
        one = self.params
        nonzero = [bias for bias in one.logit_bias.values() if bias != 0]
        is_ruled = one.no_repeat_ngram_size > 0 or one.dry_multiplier > 0 or len(one.bad_words) > 0
        return one.allowed_ids is not None or len(one.bad_ids) > 0 or len(nonzero) > 0 or self.left > 0 or is_ruled

    @property
    def is_penalized(self) -> bool:
        one = self.params
        return (one.repetition_penalty, one.presence_penalty, one.frequency_penalty) != (1, 0, 0)

    @property
    def text(self) -> list[int]:
        """Prompt and output; what is no id equals no other token."""
        return [token if 0 <= token < self.vocab_size else -1 - place for place, token in enumerate(self.all_tokens)]

    @property
    def all_tokens(self) -> list[int]:
        return self.prompt + self.output

    def addend_of(self, token: int) -> numpy.float32:
        one = self.params
        length = repetitions(self.text, one).get(token)
        dry = 0.0 if length is None else one.dry_multiplier * one.dry_base ** (length - one.dry_allowed_length)
        return Float(one.logit_bias.get(token, 0.0) - dry)

    def take(self, token: int) -> None:
        self.position += 1
        self.generated += 1
        self.output.append(token)

    def is_forbidden(self, token: int) -> bool:
        one = self.params
        if token in one.bad_ids or (one.allowed_ids is not None and token not in one.allowed_ids):
            return True
        if token in forbidden_ids(self.text, one):
            return True
        return self.left > 0 and token in one.stop_ids

    def process(self, logits: list[float]) -> list[float]:
        """What becomes of a row of logits, in float32."""
        return [float(self.process_one(token, Float(logit))) for token, logit in enumerate(logits)]

    def process_one(self, token: int, logit: numpy.float32) -> numpy.float32:
        one = self.params
        count = self.output.count(token)
        with numpy.errstate(all="ignore"):
            logit = Float(-numpy.inf) if self.is_forbidden(token) else logit + self.addend_of(token)
            if count or token in self.prompt:
                r = Float(one.repetition_penalty)
                logit = logit / r if logit > 0 else logit * r
            logit = logit - Float(one.frequency_penalty) * Float(count)
            return logit - Float(one.presence_penalty) * Float(count > 0)


class Model:
    """A batch as a list."""

    def __init__(self, vocab_size: int, generator_seed: int) -> None:
        self.vocab_size = vocab_size
        self.rows: list[ModelRow] = []
        self.generator = torch.Generator().manual_seed(generator_seed)

    def add(self, params: SamplingParams, prompt: list[int], output: list[int], position: int | None) -> None:
        seed = params.seed
        if seed is None:
            drawn = torch.empty((), dtype=torch.int64).random_(-(2**63), None, generator=self.generator)
            seed = int(drawn) % 2**64
        place = len(prompt) + len(output) if position is None else position
        self.rows.append(ModelRow(params, list(prompt), list(output), place, seed, self.vocab_size))

    def remove(self, row: int) -> int | None:
        last = len(self.rows) - 1
        self.rows[row] = self.rows[last]
        self.rows.pop()
        return None if row == last else last

    def column(self, name: str) -> list[float]:
        """What a mirror of the batch holds."""
        return [self._value(name, row) for row in self.rows]

    def _value(self, name: str, row: ModelRow) -> float:
        if name == "seed":
            return row.seed - 2**64 if row.seed >= 2**63 else row.seed
        if name == "position":
            return row.position
        if name == "top_k":
            k = row.params.top_k
            return SKIP_TOP_K if k is None or k >= self.vocab_size else k
        if name == "logprobs":
            return -1 if row.params.logprobs is None else row.params.logprobs
        if name == "min_tokens_left":
            return row.left
        if name == "is_processed":
            return row.is_masked_or_biased or row.is_penalized
        value = float(getattr(row.params, name))
        if name in ("top_p", "min_p") and value < 1:
            return min(float(Float(value)), 1 - 2**-24)
        return float(Float(value))
