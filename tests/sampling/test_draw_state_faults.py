"""Faults in what requests remember of their draws, planted and caught: steps beside float64 on the CPU and a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kept_oracle import Race
from state_rows import EXACT, acceptable_tokens, as_drawn, new_batch, requests, rows_of, states_of

from ascend_sample.sampling import Sampler, SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from ascend_sample.sampling.reference.states import moved_average, moved_bound
from tests.decoding.planting import caught

ALIKE: tuple[dict[str, Any], ...] = ({"top_k": 20, "top_p": 0.9}, {"top_p": 0.9})
"""One call of a device draws such rows, by rank or by segment, and leaves what it has kept."""


def alike(temperature: float, mirostat: int, **filters: Any) -> list[SamplingParams]:
    """Rows that are drawn together; the states of the last ones follow those of the first."""
    kinds = [{"mirostat_tau": 3.0}] * mirostat + [{"adaptive_target": 0.3}] * (10 - mirostat)
    asked = {"temperature": temperature, "kept": True} | filters
    return [SamplingParams(seed=row, **asked, **kind) for row, kind in enumerate(kinds)]


def check_states(device: str) -> None:
    """Steps of rows that remember and rows that do not, beside float64: on the CPU, and on a device."""
    assert new_batch(requests(2), device).states[1] == (8.0,)
    check_steps([*requests(18), SamplingParams(seed=14, epsilon_cutoff=1e-4)], device)
    for temperature in (0.7, 1.0):
        for filters in ALIKE:
            check_steps(alike(temperature, 5, **filters), device)
    check_steps(alike(0.7, 0), device)


def check_steps(params: list[SamplingParams], device: str) -> None:
    """Some steps of a batch."""
    tokens = []
    for place in ("cpu", device):
        batch = new_batch(params, place)
        texts: list[list[int]] = [[] for _ in params]
        for step in range(4):
            before, logits = states_of(batch), rows_of(len(params), step)
            logits[8, 3] = torch.nan
            drawn = Sampler()(logits.to(place), batch)
            tokens.append(drawn.token_ids.tolist())
            for row, (one, now) in enumerate(zip(params, states_of(batch), strict=True)):
                state, token_id = before[row], int(drawn.token_ids[row])
                is_listed = drawn.kept is not None and int(drawn.kept.counts[row]) > 0
                assert is_listed == (one.kept and row != 8), row
                alike = as_drawn(one, state)
                chance = float(target_distribution(logits[row].double().numpy(), alike, (), texts[row])[token_id])
                assert chance > 0, row
                texts[row].append(token_id)
                if state is None or now is None or one.temperature == 0 or row == 8:
                    assert now == state, row
                elif one.adaptive_target is None:
                    assert abs(now[0] - moved_bound(one, state[0], chance)) < EXACT, row
                else:
                    assert now == pytest.approx(moved_average(one, state, chance), abs=EXACT), row
                    race = Race(logits[row].double().numpy(), alike, step, (), tuple(texts[row][:-1]))
                    assert token_id in acceptable_tokens(one, race, state, 2e-5), row
    assert tokens[:4] == tokens[4:]


test_a_fault_is_caught = caught(__file__, check_states)
