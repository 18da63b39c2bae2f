"""Texts of a toy language model, decoded plainly and with drafts, and drafters of all characters."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.processing import words_of

Text = list[int]
Drafter = Callable[[random.Random, Text, Text, int, int], Text]
"""Of a text and how it goes on when it is decoded plainly: at most so many drafts, for a vocabulary of this size."""
FOREIGN = (-1, -(2**62), 2**40)


class ToyModel:
    """Logits and grammar masks of a request that depend on all of its tokens."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, with_grammar: bool = False) -> None:
        self.vocab_size, self.dtype, self.with_grammar = vocab_size, dtype, with_grammar
        self._known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def read(self, request: int, text: Text) -> tuple[Tensor, Tensor]:
        """[vocab_size] logits, and the words of a mask, after a text."""
        key = (request, *text[-2:])
        if key not in self._known:
            generator = torch.Generator().manual_seed(hash(key) & (2**62 - 1))
            logits = torch.randn(self.vocab_size, generator=generator) * 2.5
            words = torch.randint(-(2**31), 2**31, (words_of(self.vocab_size),), generator=generator)
            self._known[key] = logits.to(self.dtype), words.to(torch.int32) | 1
        return self._known[key]


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    def at_times(default: Any, other: Any) -> Any:
        return other if rng.randrange(3) == 0 else default

    stop_ids = rng.sample(range(1, 8), 3)
    return SamplingParams(
        temperature=rng.choice((0.0, 0.4, 1.0, 1.0, 1.3)),
        top_k=rng.choice((None, None, 1, 5, 40)),
        top_p=rng.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        repetition_penalty=at_times(1.0, rng.choice((1.3, 0.8, 2.0))),
        presence_penalty=at_times(0.0, rng.choice((1.5, -1.0))),
        frequency_penalty=at_times(0.0, rng.choice((0.7, -0.5))),
        logit_bias=at_times({}, {8: 2.0, 9: -3.0, 10: 4.0}),
        allowed_ids=at_times(None, range(0, vocab_size - 2)),
        bad_ids=at_times((), (11, 12)),
        min_tokens=at_times(0, rng.randrange(1, 9)),
        stop_ids=stop_ids,
        seed=rng.randrange(2**64),
    )


def new_batch(
    params: Sequence[SamplingParams], prompts: Sequence[Text], vocab_size: int, device: str = "cpu"
) -> SamplingBatch:
    batch = SamplingBatch(vocab_size, device)
    batch.extend(params, prompts)
    return batch


def decoded(
    model: ToyModel,
    params: Sequence[SamplingParams],
    prompts: Sequence[Text],
    length: int,
    sampler: Sampler,
    device: str = "cpu",
) -> list[Text]:
    """What each request gets token by token."""
    batch = new_batch(params, prompts, model.vocab_size, device)
    texts = [list(prompt) for prompt in prompts]
    for _ in range(length):
        read = [model.read(request, text) for request, text in enumerate(texts)]
        logits, words = (torch.stack(each).to(device) for each in zip(*read, strict=True))
        output = sampler(logits, batch, bitmask=words if model.with_grammar else None)
        for text, token in zip(texts, output.token_ids.tolist(), strict=True):
            text.append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def decoded_with_drafts(
    model: ToyModel,
    params: Sequence[SamplingParams],
    prompts: Sequence[Text],
    plain: Sequence[Text],
    drafter: Drafter,
    most: int,
    rng: random.Random,
    sampler: Sampler,
    device: str = "cpu",
) -> tuple[list[Text], int]:
    """At least the first tokens of what each request gets when drafts are verified, and how many were accepted."""
    batch = new_batch(params, prompts, model.vocab_size, device)
    texts = [list(prompt) for prompt in prompts]
    length = min(map(len, plain))
    accepted = 0
    while min(len(text) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)) < length:
        drafts = []
        for text, prompt, whole in zip(texts, prompts, plain, strict=True):
            rest = whole[len(text) - len(prompt) :]
            drafts.append(drafter(rng, text, rest, rng.randrange(most + 1), model.vocab_size))
        places = [
            model.read(request, text + draft[:count])
            for request, (text, draft) in enumerate(zip(texts, drafts, strict=True))
            for count in range(len(draft) + 1)
        ]
        logits, words = (torch.stack(each).to(device) for each in zip(*places, strict=True))
        verified = verify_drafts(
            logits,
            torch.tensor(list(itertools.chain(*drafts)), dtype=torch.int64, device=device),
            batch,
            counts=[len(draft) for draft in drafts],
            sampler=sampler,
            bitmask=words if model.with_grammar else None,
        )
        tokens, counts = verified.token_ids.tolist(), verified.accepted.tolist()
        for text, got, count, draft in zip(texts, tokens, counts, drafts, strict=True):
            assert got[:count] == draft[:count]
            assert all(0 <= token < model.vocab_size for token in got[: count + 1])
            assert all(token == -1 for token in got[count + 1 :])
            text.extend(got[: count + 1])
            accepted += count
        verified.append_to(batch)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)], accepted


def oracle(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    return rest[:count]


def nonsense(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    return [rng.randrange(vocab_size) for _ in range(count)]


def often_right(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    return [token if rng.random() < 0.8 else rng.randrange(vocab_size) for token in rest[:count]]


def n_grams(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    for start in range(len(text) - 2, -1, -1):
        if text[start] == text[-1]:
            return text[start + 1 : start + 1 + count]
    return []


def adversarial(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    """What would be right but for some ids that are none, or are the first beyond the vocabulary."""
    return [token if rng.random() < 0.7 else rng.choice((*FOREIGN, vocab_size)) for token in rest[:count]]


DRAFTERS: dict[str, Drafter] = {each.__name__: each for each in (oracle, nonsense, often_right, n_grams, adversarial)}
