"""Covering sets of requests: every two values of two parameters meet in one of them, and most triples do.

The first has all parameters in a small vocabulary; the second has rows that are drawn by segments, with a grammar's
bitmask, in a vocabulary in which a top-k above 1024 is on.

`covering_rows` is greedy: of `CANDIDATES` random combinations it takes the one with most pairs that have not met yet,
then with most triples, and stops when all pairs have met and there are enough rows. Fixed seed, so always the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from draws import Case
from torch import Tensor

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.draws.segmented import SEGMENT
from ascend_sample.sampling.edits.processing import words_of

VOCAB_SIZE: Final = 1000
LARGE_VOCAB_SIZE: Final = 8000
ROWS: Final = 84
CANDIDATES: Final = 50
SMALLEST_GAP: Final = 1e-5
"""Between the k-th value and the next, relative: below it, float32 may put processed logits in another order."""
LARGEST_DOUBT: Final = 5e-5
"""Of the mass that rounding may keep or drop at the end of a nucleus or at the bound of min-p: no gate would see it."""

FACTORS: Final[dict[str, tuple[Any, ...]]] = {
    "dtype": (torch.float32, torch.float16, torch.bfloat16),
    "logits": ("normal", "flat", "few", "stairs"),
    "temperature": (1.0, 0.6, 1.8),
    "top_k": (None, 1, 20, 1024, 5000),
    "top_p": (1.0, 0.999, 0.91, 0.53),
    "min_p": (0.0, 0.02, 0.2),
    "penalties": ("none", "repetition", "presence", "frequency", "all"),
    "bias": ("none", "some", "strong"),
    "mask": ("none", "allowed", "bad", "minimum length"),
}
PENALTIES: Final = {
    "none": {},
    "repetition": {"repetition_penalty": 1.25},
    "presence": {"presence_penalty": 0.75},
    "frequency": {"frequency_penalty": 0.25},
    "all": {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 0.5},
}
SEGMENTED_VOCAB_SIZE: Final = 5000
"""Twenty segments, the last one short."""
SEGMENTED_ROWS: Final = 24
SEGMENTED_FACTORS: Final[dict[str, tuple[Any, ...]]] = {
    "dtype": (torch.float32, torch.bfloat16),
    "logits": ("normal", "flat", "stairs"),
    "temperature": (1.0, 0.7),
    "top_k": (None, 1500, 4999),
    "top_p": (1.0, 0.91, 0.7),
    "min_p": (0.0, 0.002),
    "penalties": ("none", "all"),
    "bias": ("none", "some"),
    "mask": ("none", "allowed", "bad"),
    "bitmask": ("none", "half", "segments"),
}
LARGE: Final = (
    {"top_k": 5000},
    {"top_k": 5000, "top_p": 0.91, "logits": "flat"},
    {"top_k": 5000, "min_p": 0.02, "temperature": 1.8, "dtype": torch.bfloat16},
    {"top_k": 1024, "top_p": 0.999, "logits": "flat", "dtype": torch.float16},
    {"top_k": 1024, "temperature": 0.6, "penalties": "all", "mask": "allowed"},
    {"top_k": 5000, "keep_ties": True, "logits": "stairs", "penalties": "repetition"},
    {"temperature": 0.0, "dtype": torch.bfloat16, "logits": "stairs"},
)
"""With a vocabulary in which top-k 1024 and 5000 are on; what is not named has its first value."""


def meetings(row: Sequence[int], strength: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The sets of so many (factor, value) that meet in a row."""
    return itertools.combinations(enumerate(row), strength)


def covering_rows(sizes: Sequence[int], rows: int) -> list[tuple[int, ...]]:
    """Combinations of values, one of so many for each factor, in which all pairs meet."""
    generator = np.random.default_rng(0)
    pairs = {
        ((first, a), (second, b))
        for first, second in itertools.combinations(range(len(sizes)), 2)
        for a in range(sizes[first])
        for b in range(sizes[second])
    }
    triples: set[tuple[tuple[int, int], ...]] = set()
    chosen: list[tuple[int, ...]] = []
    while pairs or len(chosen) < rows:
        candidates = [tuple(int(generator.integers(size)) for size in sizes) for _ in range(CANDIDATES)]
        # The pairs and triples that are new, the most first.
        new = [(len(pairs.intersection(meetings(row, 2))), len(set(meetings(row, 3)) - triples)) for row in candidates]
        best = candidates[max(range(CANDIDATES), key=new.__getitem__)]
        pairs -= set(meetings(best, 2))
        triples |= set(meetings(best, 3))
        chosen.append(best)
    return chosen


def row_of(kind: str, dtype: torch.dtype, vocab_size: int, generator: np.random.Generator) -> Tensor:
    """Logits: normal ones; nearly flat ones; few that matter; four values with ties everywhere."""
    values = {
        "normal": lambda: 2.5 * generator.normal(size=vocab_size),
        "flat": lambda: 0.2 * generator.normal(size=vocab_size) - 3,
        "few": lambda: np.where(generator.random(vocab_size) < 0.02, 4, -4) + generator.normal(size=vocab_size),
        "stairs": lambda: generator.integers(0, 4, size=vocab_size).astype(np.float64),
    }[kind]()
    return torch.from_numpy(values).to(dtype)


def make_case(number: int, values: dict[str, Any], vocab_size: int) -> Case:
    """The request and its row; another row where float32 might keep other ids of this one."""
    for attempt in range(100):
        generator = np.random.default_rng([number, attempt])
        chosen = {name: values.get(name, choices[0]) for name, choices in FACTORS.items()}
        logits = row_of(chosen["logits"], chosen["dtype"], vocab_size, generator)
        order = logits.float().argsort(descending=True).numpy()
        # Ids that matter take part in everything: the best 40, and others.
        ids = np.concatenate((order[:40], generator.choice(order[40:], 60, replace=False)))
        generator.shuffle(ids)
        output = ids[30:60]
        params = SamplingParams(
            temperature=chosen["temperature"],
            top_k=chosen["top_k"],
            top_p=chosen["top_p"],
            min_p=chosen["min_p"],
            logit_bias=_bias(chosen["bias"], ids[20:35]),
            **PENALTIES[chosen["penalties"]],
            **_mask(chosen["mask"], ids, vocab_size),
        )
        names = [f"{name}={value}".replace("torch.", "") for name, value in values.items()]
        prompt_ids = tuple(ids[15:45].tolist())
        output_ids = tuple(np.concatenate((output, output[:8])).tolist())
        keep_ties = values.get("keep_ties", False)
        bitmask = _bitmask(values.get("bitmask", "none"), vocab_size, generator)
        name = f"{number}: V={vocab_size} " + " ".join(names)
        case = Case(name, logits, params, prompt_ids, output_ids, keep_ties, bitmask)
        if _order_is_decided(case) and case.doubt() <= LARGEST_DOUBT:
            return case
    raise AssertionError(f"no row for {values}")


def _bias(kind: str, ids: np.ndarray) -> dict[int, float]:
    step = {"none": 0.0, "some": 0.25, "strong": 0.75}[kind]
    return {int(token_id): step * (place - 7) for place, token_id in enumerate(ids)} if step else {}


def _mask(kind: str, ids: np.ndarray, vocab_size: int) -> dict[str, Any]:
    """About a third of what matters is forbidden; never an id that may have a bias."""
    some = [int(token_id) for token_id in ids[60:90]]
    return {
        "none": {},
        "allowed": {"allowed_token_ids": sorted(set(range(0, vocab_size, 2)) - set(some) | set(map(int, ids[15:45])))},
        "bad": {"suppress_token_ids": some},
        "minimum length": {"min_tokens": 100, "stop_token_ids": [*some[:10], int(ids[40])]},
    }[kind]


def _bitmask(kind: str, vocab_size: int, generator: np.random.Generator) -> Tensor | None:
    """Half of all ids, or half of those in every other segment; beyond the vocabulary, bits as they come."""
    if kind == "none":
        return None
    bits = generator.random(words_of(vocab_size) * 32) < 0.5
    if kind == "segments":
        bits &= np.arange(len(bits)) // SEGMENT % 2 == 0
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def _order_is_decided(case: Case) -> bool:
    """Whether the k-th of the processed logits is equal to the next one, or clearly above."""
    processed = -np.sort(-case.processed())
    top_k = case.params.top_k
    if top_k is None or top_k >= case.vocab_size or processed[top_k] == -np.inf:
        return True
    gap = processed[top_k - 1] - processed[top_k]
    return bool(gap == 0 or gap > SMALLEST_GAP * max(1.0, abs(processed[top_k])))


@functools.cache
def covering_set() -> list[Case]:
    """`ROWS` at V = 1000, where top-k 1024 and 5000 are off; then `LARGE`, where they are on."""
    cases = _cases(FACTORS, ROWS, VOCAB_SIZE, 0)
    for number, values in enumerate(LARGE, start=len(cases)):
        cases.append(make_case(number, values, LARGE_VOCAB_SIZE))
    return cases


@functools.cache
def segmented_set() -> list[Case]:
    """`SEGMENTED_ROWS` that no top-k ranks."""
    return _cases(SEGMENTED_FACTORS, SEGMENTED_ROWS, SEGMENTED_VOCAB_SIZE, ROWS + len(LARGE))


def _cases(factors: dict[str, tuple[Any, ...]], rows: int, vocab_size: int, first: int) -> list[Case]:
    cases = []
    for number, row in enumerate(covering_rows([len(choices) for choices in factors.values()], rows), start=first):
        values = {name: choices[index] for (name, choices), index in zip(factors.items(), row, strict=True)}
        cases.append(make_case(number, values, vocab_size))
    return cases
