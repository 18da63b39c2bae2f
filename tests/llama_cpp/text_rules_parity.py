"""DRY and the penalties change each logit as llama.cpp's samplers do, after random texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ascend_sample.requests import from_llama_cpp
from ascend_sample.sampling import SamplingBatch, SamplingParams
from ascend_sample.sampling.reference.distribution import process_row
from tests.llama_cpp.samplers import Chain, dry, penalties
from tests.llama_cpp.vocabulary import FIRST, SIZE, Vocabulary

TEXTS: Final = 12_000
WHOLE: Final = 1024
"""More tokens than any text has: llama.cpp knows no other way to ask for all of it."""
EXACT: Final = 1e-6


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    with Vocabulary(Path(tmp_path_factory.mktemp("vocabulary"))) as letters:
        yield letters


def edited(params: SamplingParams, logits: npt.NDArray[np.float32], text: list[int]) -> npt.NDArray[np.float32]:
    """The row as the library's step edits it."""
    batch = SamplingBatch(len(logits))
    batch.add(params, output_ids=text)
    found = batch.edited(torch.from_numpy(logits)[None])
    return logits if found is None else found[0].numpy()


def contains(outer: tuple[int, ...], inner: tuple[int, ...]) -> bool:
    return any(outer[start : start + len(inner)] == inner for start in range(len(outer) - len(inner) + 1))


def random_breakers(rng: random.Random, letters: int) -> list[tuple[int, ...]]:
    """Sequences of one to three ids, none of which lies in another."""
    found: list[tuple[int, ...]] = []
    for length in (rng.randrange(1, 4) for _ in range(rng.choice((0, 0, 1, 2)))):
        breaker = tuple(FIRST + rng.randrange(letters) for _ in range(length))
        if not any(contains(breaker, other) or contains(other, breaker) for other in found):
            found.append(breaker)
    return found


def dry_of(params: SamplingParams, text: list[int], vocabulary: Vocabulary) -> npt.NDArray[np.float32]:
    """What llama.cpp's DRY makes of a row of zeros."""
    asked = {f"dry_{name}": getattr(params, f"dry_{name}") for name in ("multiplier", "base", "allowed_length")}
    sampler = dry(
        asked | {"dry_penalty_last_n": params.dry_penalty_last_n or WHOLE}, vocabulary, params.dry_sequence_breakers
    )
    with Chain(sampler) as chain:
        chain.accept(text)
        return chain.logits(np.zeros(SIZE, np.float32))


def test_dry(vocabulary: Vocabulary) -> None:
    rng, counts = random.Random(1), Counter[str]()
    for number in range(TEXTS):
        letters = rng.choice((2, 3, 4, 8))
        text = [FIRST + rng.randrange(letters) for _ in range(rng.randrange(60))]
        params = SamplingParams(
            dry_multiplier=rng.choice((0.8, 2.0)),
            dry_base=rng.choice((1.0, 1.75, 3.0)),
            dry_allowed_length=rng.randrange(1, 4),
            dry_sequence_breakers=random_breakers(rng, letters),
            dry_penalty_last_n=rng.choice((None, 4, 10, 25)),
        )
        zeros = np.zeros(SIZE, np.float32)
        theirs = dry_of(params, text, vocabulary)
        seen = text[-(params.dry_penalty_last_n or WHOLE) :]  # a breaker that begins before these is none to llama.cpp
        np.testing.assert_allclose(theirs, process_row(zeros, params, output_ids=seen), rtol=EXACT, err_msg=str(number))
        wanted = process_row(zeros, params, output_ids=text)
        np.testing.assert_allclose(edited(params, zeros, text), wanted, rtol=EXACT, err_msg=str(number))
        is_equal = np.allclose(theirs, wanted, rtol=EXACT)
        counts["equal" if is_equal else "a breaker begins before the range"] += 1
        counts["with a penalty"] += int((wanted != 0).any())
        assert is_equal or max(map(len, params.dry_sequence_breakers)) > 2, (params, text)
    assert counts["with a penalty"] > TEXTS // 3
    print(f"\nDRY, {TEXTS} texts: {dict(counts)}")


def test_penalties() -> None:
    rng, farthest, vocab_size = random.Random(2), 0.0, 64
    for number in range(TEXTS):
        text = [rng.randrange(rng.choice((4, 64))) for _ in range(rng.randrange(60))]
        asked: dict[str, Any] = {
            "repeat_penalty": rng.choice((1.0, 0.8, 1.3)),
            "frequency_penalty": rng.choice((0.0, 0.4, -0.3)),
            "presence_penalty": rng.choice((0.0, 0.7, -0.5)),
            "repeat_last_n": WHOLE,
        }
        logits = np.random.default_rng(number).normal(0, 3, vocab_size).astype(np.float32)
        with Chain(penalties(asked, vocab_size)) as chain:
            chain.accept(text)
            theirs = chain.logits(logits)
        params = from_llama_cpp({**asked, "repeat_last_n": -1})
        for ours in (process_row(logits, params, output_ids=text), edited(params, logits, text)):
            farthest = max(farthest, float(np.abs(ours - theirs).max()))
            np.testing.assert_allclose(theirs, ours, rtol=EXACT, atol=EXACT, err_msg=str(number))
    print(f"\npenalties, {TEXTS} texts: logits within {farthest:.1e}")


# ---- what differs, by hand: docs/requests.md names each ----

A, B, C, D, X = range(FIRST, FIRST + 5)


def test_a_breaker_inside_of_another_one(vocabulary: Vocabulary) -> None:
    """llama.cpp takes the last one that *begins*, here the inner one; this package the last one that ends."""
    breakers = [[A, B, C], [B]]
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1, dry_sequence_breakers=breakers)
    text = [C, X, D, A, B, C, X]
    assert process_row(np.zeros(SIZE), params, output_ids=text)[D] == -1  # X has come before D
    assert dry_of(params, text, vocabulary)[D] == -2  # C X has
    outer = replace(params, dry_sequence_breakers=[[A, B, C]])
    assert dry_of(outer, text, vocabulary)[D] == -1


def test_a_breaker_that_begins_before_the_range(vocabulary: Vocabulary) -> None:
    """llama.cpp does not see it; here it breaks as it did before the text has grown."""
    params = SamplingParams(
        dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1, dry_penalty_last_n=5, dry_sequence_breakers=[[A, B, B]]
    )
    text = [A, B, B, B, B, B]
    assert process_row(np.zeros(SIZE), params, output_ids=text)[B] == -4  # B B B has come before B
    assert dry_of(params, text, vocabulary)[B] == -8  # B B B B has


def test_penalties_without_bounds(vocabulary: Vocabulary) -> None:
    """llama.cpp bounds the exponent, so that base^exponent fits float32; here the product is bounded."""
    params, text = SamplingParams(dry_multiplier=0.5), [A] * 400
    assert -process_row(np.zeros(SIZE), params, output_ids=text)[A] == np.finfo(np.float32).max
    assert -dry_of(params, text, vocabulary)[A] == pytest.approx(0.5 * 1.75**158, rel=1e-5)
    assert dry_of(replace(params, dry_multiplier=9.0), text, vocabulary)[A] == -np.inf
