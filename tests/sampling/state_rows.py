"""Rows that remember their draws, for tests and `run_rows.py`: requests, states, and what these have to become."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from kept_oracle import Race
from oracle import signed
from torch import Tensor

from ascend_sample.sampling import SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.draws.segmented import SEGMENT, lanes_of, segments_of
from ascend_sample.sampling.reference.states import adapted, adapted_target, moved_average, moved_bound, with_bound
from ascend_sample.sampling.step.draw_states import StepStates

EXACT = 2e-5
"""How far a state may be from float64's: surprises of some 20 bits in float32, and what edits round."""
VOCAB_SIZE = 500


def requests(count: int, **more: Any) -> list[SamplingParams]:
    """Rows of all kinds, of which some remember."""
    kinds: tuple[dict[str, Any], ...] = (
        {"mirostat_tau": 2.0},
        {"mirostat_tau": 4.0, "mirostat_eta": 0.5, "temperature": 0.7},
        {},
        {"mirostat_tau": 3.0, "top_k": 20, "top_p": 0.9, "presence_penalty": 0.5},
        {"mirostat_tau": 3.0, "temperature": 0.0},
        {"mirostat_tau": 1.0, "min_p": 0.02, "return_sampling_mask": True},
        {"top_k": 20, "return_sampling_mask": True},
        {"adaptive_target": 0.3},
        {"adaptive_target": 0.05, "adaptive_decay": 0.5, "top_k": 20, "temperature": 0.7, "return_sampling_mask": True},
    )
    return [SamplingParams(seed=row, **(kinds[row % len(kinds)] | more)) for row in range(count)]


def rows_of(count: int, step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(count, VOCAB_SIZE, generator=generator) * 3


def new_batch(params: list[SamplingParams], device: str = "cpu", vocab_size: int = VOCAB_SIZE) -> SamplingBatch:
    batch = SamplingBatch(vocab_size, device)
    batch.extend(params)
    return batch


def states_of(batch: SamplingBatch) -> list[tuple[float, ...] | None]:
    return [batch.states[row] for row in range(len(batch))]


def with_state(rng: random.Random, params: SamplingParams) -> SamplingParams:
    """The request, or in some rows one that remembers its draws."""
    if rng.random() > 0.25:
        return params
    if rng.random() < 0.5:
        return replace(params, adaptive_target=rng.choice((0.0, 0.3, 0.7, 1.0)), adaptive_decay=rng.choice((0.0, 0.9)))
    return replace(params, mirostat_tau=rng.choice((0.5, 3.0, 6.0)), mirostat_eta=rng.choice((0.05, 0.1, 1.0)))


def set_states(rng: random.Random, batch: SamplingBatch) -> list[tuple[float, ...] | None]:
    """Lets rows remember anything; returns what."""
    for row in range(len(batch)):
        state = batch.states[row]
        if state is not None:
            weights = rng.uniform(1, 10)
            batch.states[row] = (rng.uniform(-1, 14),) if len(state) == 1 else (weights * rng.random(), weights)
    return states_of(batch)


def as_drawn(params: SamplingParams, state: tuple[float, ...] | None) -> SamplingParams:
    """The request without a state that is drawn from in this step."""
    return params if state is None or params.adaptive_target is not None else with_bound(params, state[0])


def acceptable_tokens(params: SamplingParams, race: Race, state: tuple[float, ...], near: float) -> set[int]:
    """What adaptive-p may draw: the winner of its two races, and what rounding may let win."""
    assert params.seed is not None
    found: set[int] = set()
    seed, position = torch.tensor([signed(params.seed)]), torch.tensor([race.position])
    lanes = exponential_noise(seed, position, lanes_of(len(race.logits)))[0].double().numpy()
    for ids in race.sets():
        segments = np.zeros((segments_of(len(race.logits)), SEGMENT))
        segments.reshape(-1)[ids] = adapted(np.exp(race.log_probs(ids)), adapted_target(params, state))
        scores = segments.sum(1) / lanes[SEGMENT:]
        for segment in np.flatnonzero(scores >= scores.max() * (1 - near)):
            inside = segments[segment] / lanes[:SEGMENT]
            found |= {
                int(segment) * SEGMENT + int(place) for place in np.flatnonzero(inside >= inside.max() * (1 - near))
            }
    return found


def wrong_state(
    params: SamplingParams, race: Race, state: tuple[float, ...], found: list[float] | None, token_id: int, status: int
) -> str | None:
    """What is wrong with the state of a row after a step: None where nothing is."""
    if params.temperature == 0:
        return None if found is None else "the state of a greedy row moves"
    if found is None:
        return "the state of a row does not move"
    if status:
        return None if found[: len(state)] == list(state) else f"a state moves where the status is {status}"
    offs = []
    for ids in race.sets():  # the reference's, then those that rounding may make of it
        if token_id in ids:
            chance = float(np.exp(race.log_probs(ids)[ids.index(token_id)]))
            wanted: tuple[float, ...] = (moved_bound(params, state[0], chance),)
            if params.adaptive_target is not None:
                wanted = moved_average(params, state, chance)
            slack = EXACT + 8 * race.rounding(ids)
            offs.append(max(abs(one - other) for one, other in zip(found, wanted, strict=False)))
            if offs[-1] <= slack * (1 + abs(wanted[0])):
                return None
    return f"the state is {min(offs, default=np.inf)} off"


def states_after(found: StepStates | None) -> dict[int, Any]:
    """What the rows of a step remember after it."""
    return {} if found is None else dict(zip(found.rows, found.values.tolist(), strict=True))
