"""Mirostat and adaptive-p go the way that llama.cpp's go, when its tokens are drawn."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch

from ascend_sample.requests import from_llama_cpp
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from ascend_sample.sampling.reference.states import adapted, adapted_target, moved_average, moved_bound, with_bound
from tests.llama_cpp.comparison import Tally, kept_by_reference, nearness, reason_of
from tests.llama_cpp.samplers import OFF, Chain, server_chain

SIZES: Final = (64, 1000, 4096)
SEQUENCES, STEPS = 170, 20
"""Of each vocabulary: 10,200 draws in all."""
EXACT: Final = 2e-5
"""How far a bound in float32 may be from one in float64, relatively."""


class MirostatState(ctypes.Structure):
    """The beginning of what llama.cpp's mirostat 2 remembers, in the pinned version."""

    _fields_ = (
        ("seed", ctypes.c_uint32),
        ("seed_now", ctypes.c_uint32),
        ("tau", ctypes.c_float),
        ("eta", ctypes.c_float),
        ("bound", ctypes.c_float),
    )


def bound_of(chain: Chain, params: SamplingParams) -> float:
    """The bound of a chain's mirostat, after a look at what lies before it."""
    state = ctypes.cast(chain.samplers[-1].contents.ctx, ctypes.POINTER(MirostatState)).contents
    assert (state.tau, state.eta) == (np.float32(params.mirostat_tau), np.float32(params.mirostat_eta))
    return float(state.bound)


def rows_of(count: int, vocab_size: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(count, vocab_size, generator=generator) * (torch.rand(count, 1, generator=generator) * 5 + 0.5)


def requests_of(seed: int, **choices: tuple[Any, ...]) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{name: rng.choice(values) for name, values in choices.items()} for _ in range(SEQUENCES)]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_mirostat(vocab_size: int) -> None:
    """Bounds and sets are llama.cpp's, draw by draw."""
    requests = requests_of(
        vocab_size, mirostat=(2,), mirostat_tau=(1.0, 3.0, 5.0), mirostat_eta=(0.05, 0.1, 0.5), temperature=(0.7, 1.0)
    )
    params = [from_llama_cpp(request, strict=True) for request in requests]
    chains = [server_chain(request, vocab_size) for request in requests]
    bounds = [2 * one.mirostat_tau for one in params]
    batch = SamplingBatch(vocab_size)
    batch.extend([replace(one, return_sampling_mask=True, seed=row) for row, one in enumerate(params)])
    references, libraries, farthest = Tally(), Tally(), 0.0
    for step in range(STEPS):
        logits = rows_of(SEQUENCES, vocab_size, step)
        for row, (chain, one) in enumerate(zip(chains, params, strict=True)):
            batch.states[row] = (bound_of(chain, one),)
        kept = Sampler()(logits, batch).kept
        for row, (chain, one) in enumerate(zip(chains, params, strict=True)):
            processed, before = logits[row].double().numpy(), bound_of(chain, one)
            left = chain(logits[row].numpy())
            bounded = with_bound(one, bounds[row])
            references.add(reason_of(processed, bounded, kept_by_reference(processed, bounded), left.ids, EXACT))
            ours = kept.of_row(row)[0].numpy().astype(np.int64)
            libraries.add(reason_of(processed, with_bound(one, before), ours, left.ids))
            weights = np.exp((processed[left.ids] - processed.max()) / np.float64(np.float32(one.temperature)))
            chance = float(weights[left.ids == left.drawn][0] / weights.sum())
            bounds[row] = moved_bound(one, bounds[row], chance)
            off = abs(bound_of(chain, one) - bounds[row])
            farthest = max(farthest, off)
            assert off <= EXACT * (1 + abs(bounds[row])), (one, step, row)
    for chain in chains:
        chain.free()
    print(f"\nmirostat, {vocab_size}\n  reference  {references}\n  library    {libraries}\n  mu within {farthest:.1e}")


@pytest.mark.parametrize("vocab_size", SIZES)
def test_adaptive_p(vocab_size: int) -> None:
    """Probabilities are llama.cpp's, draw by draw."""
    requests = requests_of(
        vocab_size, adaptive_target=(0.0, 0.05, 0.3, 0.9), adaptive_decay=(0.0, 0.5, 0.9, 0.99), top_k=(0, 40)
    )
    farthest = 0.0
    for row, request in enumerate(OFF | one for one in requests):
        params = from_llama_cpp(request, strict=True)
        target, decay = float(np.float32(params.adaptive_target)), params.adaptive_decay
        state = target / (1 - decay), 1 / (1 - decay)
        with server_chain(request, vocab_size) as chain:
            for step, logits in enumerate(rows_of(STEPS, vocab_size, row).numpy()):
                left = chain(logits)
                before = target_distribution(logits, replace(params, adaptive_target=None))
                assert np.array_equal(np.flatnonzero(before), left.ids)
                wanted = adapted(before[left.ids], adapted_target(params, state))
                off = np.abs(wanted - left.probabilities).max()
                farthest = max(farthest, float(off))
                assert off <= nearness(vocab_size), (params, step)
                chain.accept([left.drawn])
                state = moved_average(params, state, float(before[left.drawn]))
    print(f"\nadaptive-p, {vocab_size}: {SEQUENCES * STEPS} draws; probabilities within {farthest:.1e}")


def test_mirostat_of_equal_values() -> None:
    """Where the bound leaves the best value alone, llama.cpp keeps one of its ids, this package all of them."""
    params, row = SamplingParams(mirostat_tau=0.5), torch.tensor([2.0, 2.0, 0.0])
    with server_chain({"mirostat": 2, "mirostat_tau": 0.5, "temperature": 1.0}, 3) as chain:
        assert len(chain(row.numpy()).ids) == 1
    assert kept_by_reference(row.double().numpy(), with_bound(params, 2 * params.mirostat_tau)).tolist() == [0, 1]
