"""Ranges of rows so wide that what weighs next to nothing decides."""

from __future__ import annotations

import math

import torch

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams

BEST, MANY, DEEP = 5, 800_000, -20.3
VOCAB_SIZE = 1 << 20


def test_typical_counts_what_lies_deep_before_a_best_that_is_farther() -> None:
    """The mean is nearer to what is 20 below the best than to that: without both, what lies between is too little."""
    logits = torch.full((1, VOCAB_SIZE), DEEP)
    logits[0, :MANY] = -11.5
    logits[0, BEST] = 0.0
    between, deep = (MANY - 1) * math.exp(-11.5), (VOCAB_SIZE - MANY) * math.exp(DEEP)
    mean = (-11.5 * between + DEEP * deep) / (1 + between + deep)
    assert -mean > mean - DEEP > 0
    batch = SamplingBatch(vocab_size=VOCAB_SIZE)
    for part in (0.5, 1.5):  # of what lies deep: more than all of it needs the best
        batch.add(SamplingParams(typical_p=(between + part * deep) / (1 + between + deep), kept=True, seed=1))
    kept = Sampler()(logits.expand(2, -1), batch).kept
    assert kept is not None
    assert kept.counts.tolist() == [VOCAB_SIZE - 1, VOCAB_SIZE]
    assert not (kept.ids[: VOCAB_SIZE - 1] == BEST).any()
