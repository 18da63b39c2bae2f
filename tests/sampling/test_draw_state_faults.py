"""Faults in what requests remember of their draws, planted and caught: steps beside float64 on the CPU and a device."""

from __future__ import annotations

import pytest
import torch
from kept_oracle import Race
from state_rows import EXACT, acceptable_tokens, as_drawn, new_batch, requests, rows_of, states_of

from ascend_sample.sampling import (
    Sampler,
    SamplingParams,
    draw_states,
    kept,
    kept_choices,
    row_table,
    state_slots,
    value_ranges,
)
from ascend_sample.sampling.reference import target_distribution
from ascend_sample.sampling.state_reference import moved_average, moved_bound
from tests.decoding.planting import planted

FAULTS = {
    "the state is not updated": (draw_states, "held.index_copy_(0, self.slots, self.values)", "pass"),
    "the state of the neighbouring row": (
        draw_states,
        "held.index_select(0, self._slots)",
        "held.index_select(0, self._slots.roll(1))",
    ),
    "the probability of the neighbouring row": (
        draw_states,
        "choices.of_tokens(token_ids).unsqueeze(1)",
        "choices.of_tokens(token_ids).unsqueeze(1).roll(1, 0)",
    ),
    "natural logarithms": (draw_states, ".log2()", ".log()"),
    "a surprise without its sign": (draw_states, "bits_of(chances) + self._tau", "self._tau - bits_of(chances)"),
    "a row that was not drawn from moves": (draw_states, "torch.where(is_ok.unsqueeze(1), moved, before)", "moved"),
    "a surprise before the rest is renormalised": (kept_choices, "values.softmax(1)", "values.exp()"),
    "the tokens of the neighbouring row": (
        draw_states,
        "self._rule.drawn(choices, before, noise)",
        "self._rule.drawn(choices, before, noise.roll(1, 0))",
    ),
    "noise of another purpose": (draw_states, "keys, purpose)[0]", "keys, Purpose.RESAMPLING)[0]"),
    "noise of another position": (draw_states, "batch.host.position)", "batch.host.position + 1)"),
    "tokens stay where the rule draws others": (
        draw_states,
        "torch.where(is_ok, self._rule",
        "torch.where(~is_ok, self._rule",
    ),
    "the decay of the wrong sum": (
        draw_states,
        "torch.addcmul(torch.cat((chances, torch.ones_like(chances)), 1), before, self._decay)",
        "torch.cat((chances, torch.ones_like(chances)), 1) * self._decay + before",
    ),
    "the sums change places": (
        draw_states,
        "(chances, torch.ones_like(chances))",
        "(torch.ones_like(chances), chances)",
    ),
    "the average the other way round": (draw_states, "before[:, :1] / before[:, 1:]", "before[:, 1:] / before[:, :1]"),
    "the target once": (draw_states, "2 * batch.host.adaptive_target", "batch.host.adaptive_target"),
    "what was never wanted is": (draw_states, ".clamp_(0, 1)", ".clamp_(0.5, 1)"),
    "weights that stay quadratic": (kept_choices, "(distances + WIDTH)", "WIDTH"),
    "weights that fall from a probability up": (kept_choices, ".abs_()", ".clamp_(min=0)"),
    "the sums of another row on the CPU": (
        kept_choices,
        "self.row * count + segment",
        "(self.rows - 1 - self.row) * count + segment",
    ),
    "what is dropped may be drawn": (kept_choices, ".masked_fill_(self.is_dropped, 0)", ""),
    "the target of another row on the CPU": (
        kept_choices,
        "wanted.squeeze(1)[self.row]",
        "wanted.squeeze(1)[self.row - 1]",
    ),
    "a greedy row moves": (row_table, " & (self.temperature != 0)", ""),
    "the bound begins at tau": (state_slots, "(2 * params.mirostat_tau,)", "(params.mirostat_tau,)"),
    "bounds in nats": (value_ranges, "numpy.exp2(-", "numpy.exp(-"),
    "bounds in nats on a device": (value_ranges, "-math.log(2.0)", "-1.0"),
    "the bound of another row": (value_ranges, "[host.state_slot[rows], 0]", "[host.state_slot[rows] - 1, 0]"),
    "the bound of another row on a device": (
        value_ranges,
        "numpy.where(is_bounded, slots, slots.max())",
        "numpy.where(is_bounded, slots.max() - slots, 0)",
    ),
    "rows without mirostat have a bound on a device": (value_ranges, "[[-LARGEST], [0.0]]", "[[0.0], [0.0]]"),
    "all rows are told as kept": (kept, "else found.is_wanted", "else None"),
}


def check_states(device: str) -> None:
    """Steps of rows that remember and rows that do not, beside float64: on the CPU, and on a device."""
    params, tokens = [*requests(18), SamplingParams(seed=14, epsilon_cutoff=1e-4)], []
    for place in ("cpu", device):
        batch = new_batch(params, place)
        assert batch.states[1] == (8.0,)
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


def test_nothing_is_wrong_without_a_fault(npu: str) -> None:
    check_states(npu)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str, npu: str) -> None:
    with planted(*FAULTS[name]), pytest.raises(AssertionError):
        check_states(npu)
