"""Texts of a toy language model, decoded plainly and with drafts, and drafters of all characters."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from run_rows import random_range
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.edits.processing import words_of

Text = list[int]
Drafter = Callable[[random.Random, Text, Text, int, int], Text]
"""Of a text and how it goes on when it is decoded plainly: at most so many drafts, for a vocabulary of this size."""
FOREIGN = (-1, -(2**62), 2**40)
TEXT_RULES: Sequence[dict[str, Any]] = (
    {"no_repeat_ngram_size": 2, "no_repeat_ngram_whitelist": [5]},
    {"no_repeat_ngram_size": 1, "no_repeat_ngram_window": 4},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": [3, [4, 2]]},
    {"dry_multiplier": 2.0, "dry_penalty_last_n": 5, "bad_words": [[1, 2], [1, 2, 3], [7, 7]]},
    {
        "thinking_token_budget": 3,
        "thinking_start_ids": [1],
        "thinking_end_ids": [8],
        "thinking_end_message_ids": [9, 9, 8],
    },
)


class ToyModel:
    """Logits and grammar masks of a request that depend on its last two tokens; every fourth request has the same."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, with_grammar: bool = False) -> None:
        self.vocab_size, self.dtype, self.with_grammar = vocab_size, dtype, with_grammar
        self._known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def read(self, request: int, text: Text) -> tuple[Tensor, Tensor]:
        """[vocab_size] logits, and the words of a mask, after a text."""
        key = (request % 4, *text[-2:])
        if key not in self._known:
            generator = torch.Generator().manual_seed(hash(key) & (2**62 - 1))
            logits = torch.randn(self.vocab_size, generator=generator) * 2.5
            words = torch.randint(-(2**31), 2**31, (words_of(self.vocab_size),), generator=generator)
            self._known[key] = logits.to(self.dtype), words.to(torch.int32) | 1
        return self._known[key]


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    def at_times(default: Any, other: Any) -> Any:
        return other if rng.randrange(3) == 0 else default

    stop_token_ids = rng.sample(range(1, 8), 3)
    other = random.Random(hash(rng.getstate()[1]))  # so that the other parameters stay what they are without rules
    return SamplingParams(
        temperature=rng.choice((0.0, 0.4, 1.0, 1.0, 1.3)),
        top_k=rng.choice((None, None, 1, 5, 40)),
        top_p=rng.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        repetition_penalty=at_times(1.0, rng.choice((1.3, 0.8, 2.0))),
        presence_penalty=at_times(0.0, rng.choice((1.5, -1.0))),
        frequency_penalty=at_times(0.0, rng.choice((0.7, -0.5))),
        logit_bias=at_times({}, {8: 2.0, 9: -3.0, 10: 4.0, 11: 9.0, vocab_size - 1: 9.0}),
        allowed_token_ids=at_times(None, range(0, vocab_size - 2)),
        suppress_token_ids=at_times((), (11, 12)),
        min_tokens=at_times(0, rng.randrange(1, 9)),
        stop_token_ids=stop_token_ids,
        seed=rng.randrange(2**64),
        **(other.choice(TEXT_RULES) if other.randrange(3) == 0 else {}),
        **(random_range(other) if other.randrange(3) == 0 else {}),
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


class Drafts(NamedTuple):
    """What is proposed to a request: tokens, and of each place that which it follows; -1 for the first."""

    tokens: Text
    parents: list[int]

    def way(self, place: int) -> Text:
        """The tokens before a place."""
        return [] if place == 0 else [*self.way(self.parents[place]), self.tokens[place - 1]]

    def in_another_order(self, rng: random.Random) -> Drafts:
        """The same, with other numbers for the places, but for siblings' order."""
        order, open_places = [], [0]
        while open_places:
            place = open_places.pop(rng.randrange(len(open_places)))
            order.append(place)
            children = [child for child, parent in enumerate(self.parents) if parent == place]
            open_places.extend(children[:1])
            later = [
                child for child in range(place + 1, len(self.parents)) if self.parents[child] == self.parents[place]
            ]
            open_places.extend(later[:1])
        numbers = {place: number for number, place in enumerate(order)}
        return Drafts(
            [self.tokens[place - 1] for place in order[1:]],
            [-1] + [numbers[self.parents[place]] for place in order[1:]],
        )


def tree(drafter: Drafter, rng: random.Random, text: Text, rest: Text, most: int, vocab_size: int) -> Drafts:
    """Several proposals of a drafter: each branches off where another one has come to, at any place."""
    tokens: Text = []
    parents = [-1]
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(parents))
        way = Drafts(tokens, parents).way(place)
        goes_on = rest[len(way) :] if way == rest[: len(way)] else []
        for token in drafter(rng, text + way, goes_on, rng.randrange(most + 1 - len(way)), vocab_size):
            tokens.append(token)
            parents.append(place)
            place = len(parents) - 1
    return Drafts(tokens, parents).in_another_order(rng)


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
    with_trees: bool = False,
) -> tuple[list[Text], int]:
    """At least the first tokens of what each request gets when drafts are verified, and how many were accepted."""
    batch = new_batch(params, prompts, model.vocab_size, device)
    texts = [list(prompt) for prompt in prompts]
    length = min(map(len, plain))
    accepted = 0
    while min(len(text) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)) < length:
        proposed = []
        for text, prompt, whole in zip(texts, prompts, plain, strict=True):
            rest = whole[len(text) - len(prompt) :]
            if with_trees:
                proposed.append(tree(drafter, rng, text, rest, most, model.vocab_size))
            else:
                drafted = drafter(rng, text, rest, rng.randrange(most + 1), model.vocab_size)
                proposed.append(Drafts(drafted, [*range(-1, len(drafted))]))
        places = [
            model.read(request, text + drafts.way(place))
            for request, (text, drafts) in enumerate(zip(texts, proposed, strict=True))
            for place in range(len(drafts.parents))
        ]
        logits, words = (torch.stack(each).to(device) for each in zip(*places, strict=True))
        ids = list(itertools.chain(*(drafts.tokens for drafts in proposed)))
        verified = verify_drafts(
            logits,
            torch.tensor(ids, dtype=torch.int64, device=device),
            batch,
            counts=[len(drafts.tokens) for drafts in proposed],
            parents=list(itertools.chain(*(drafts.parents for drafts in proposed))) if with_trees else None,
            sampler=sampler,
            bitmask=words if model.with_grammar else None,
        )
        tokens, counts = verified.token_ids.tolist(), verified.accepted.tolist()
        ways = [[*range(count + 1)] for count in counts] if verified.path is None else verified.path.tolist()
        for text, got, count, drafts, way in zip(texts, tokens, counts, proposed, ways, strict=True):
            assert [drafts.parents[place] for place in way[: count + 1]] == [-1, *way[:count]]
            assert drafts.way(way[count]) == got[:count]
            assert all(0 <= token < model.vocab_size for token in got[: count + 1])
            assert set(got[count + 1 :]) | set(way[count + 1 :]) <= {-1}
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


def best_of(model: ToyModel) -> Drafter:
    """Drafts what a model deems best: of every fourth request the target itself, of the others another one."""

    def best(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
        drafts: Text = []
        for _ in range(count):
            drafts.append(int(model.read(0, text + drafts)[0].argmax()))
        return drafts

    return best


def n_grams(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    for start in range(len(text) - 2, -1, -1):
        if text[start] == text[-1]:
            return text[start + 1 : start + 1 + count]
    return []


def adversarial(rng: random.Random, text: Text, rest: Text, count: int, vocab_size: int) -> Text:
    """What would be right but for some ids that are none, or are the first beyond the vocabulary."""
    return [token if rng.random() < 0.7 else rng.choice((*FOREIGN, vocab_size)) for token in rest[:count]]


DRAFTERS: dict[str, Drafter] = {each.__name__: each for each in (oracle, nonsense, often_right, n_grams, adversarial)}
