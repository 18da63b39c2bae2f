"""What requests remember of their draws: by hand, through batches that change, on devices, and what they cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import step_costs
import torch
from kept_oracle import Race
from state_rows import EXACT, acceptable_tokens, as_drawn, new_batch, requests, rows_of, states_of
from torch import Tensor

from ascend_sample.decoding.row_params import all_but_draw_fields
from ascend_sample.sampling import (
    RowStatus,
    Sampler,
    SamplingBatch,
    SamplingParams,
    StaticStep,
    StaticVerification,
    verify_drafts,
)
from ascend_sample.sampling.draws.kept_choices import Dense
from ascend_sample.sampling.reference.distribution import target_distribution
from ascend_sample.sampling.reference.states import adapted, moved_average, moved_bound
from ascend_sample.sampling.requests.fields import Stage
from ascend_sample.sampling.requests.params import fields_of

INF, NAN = torch.inf, torch.nan
STRANGE = torch.tensor([[0.0, NAN, -1.0], [-INF] * 3, [1.0, INF, INF], [-INF, 2.0, 1.5]])


def row_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


class TestMirostat:
    @pytest.mark.parametrize(
        ("bound", "kept_ids", "chances"),
        [
            (1.4, [3], [1.0]),  # the best one has 1.32 bits, the next one 1.74
            (2.0, [2, 3], [3 / 7, 4 / 7]),
            (2.4, [1, 2, 3], [2 / 9, 3 / 9, 4 / 9]),  # 0.2 has 2.32 bits
            (9.0, [0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4]),
            (-3.0, [3], [1.0]),  # something stays
        ],
    )
    def test_by_hand(self, bound: float, kept_ids: list[int], chances: list[float], device: str) -> None:
        params = SamplingParams(mirostat_tau=1.0, mirostat_eta=0.5, seed=3, return_sampling_mask=True)
        batch = new_batch([params], device, 4)
        assert batch.states[0] == (2.0,)
        batch.states[0] = (bound,)
        output = Sampler()(row_of(0.1, 0.2, 0.3, 0.4).to(device), batch)
        assert output.kept is not None
        ids, logprobs = output.kept.of_row(0)
        assert ids.tolist() == kept_ids
        assert logprobs.exp().tolist() == pytest.approx(chances, abs=1e-6)
        surprise = -math.log2(chances[kept_ids.index(int(output.token_ids))])
        assert batch.states[0] == pytest.approx((bound - 0.5 * (surprise - 1.0),), abs=1e-6)


def test_a_token_that_rounding_drops_is_no_endless_surprise() -> None:
    values, token = torch.tensor([[0.0, -torch.inf]]), torch.tensor([1])
    assert Dense(values, is_other=True).logprobs_of(token).item() == pytest.approx(-64 * math.log(2))
    assert Dense(values).logprobs_of(token).item() == -torch.inf


class TestAdaptiveP:
    def test_by_hand(self, device: str) -> None:
        """The average is 0.1 too low, so 0.3 is wanted; the sums are those of the probabilities before."""
        params = SamplingParams(adaptive_target=0.2, adaptive_decay=0.5, seed=3, return_sampling_mask=True)
        batch = new_batch([params], device, 4)
        assert batch.states[0] == pytest.approx((0.4, 2.0))
        batch.states[0] = (0.4, 4.0)
        chances = [0.1, 0.2, 0.3, 0.4]
        output = Sampler()(row_of(*chances).to(device), batch)
        assert output.kept is not None
        assert output.kept.of_row(0)[1].exp().tolist() == pytest.approx(chances)
        assert batch.states[0] == pytest.approx((chances[int(output.token_ids)] + 0.2, 3.0))

    @pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.long)])
    @pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"min_p": 0.3, "temperature": 0.5}], ids=str)
    def test_tokens_are_drawn_as_often_as_they_should(self, more: dict[str, Any], count: int, device: str) -> None:
        asked = SamplingParams(adaptive_target=0.3, adaptive_decay=0.5, seed=3, **more)
        spread = torch.full((1, 600), -INF)  # of three segments
        spread[0, [3, 4, 300, 400, 599]] = torch.tensor([0.05, 0.1, 0.2, 0.25, 0.4]).log()
        batch = SamplingBatch(600, device)
        batch.extend([asked] * count, positions=range(count))
        drawn = Sampler()(spread.expand(count, -1).to(device), batch).token_ids.cpu()
        before = target_distribution(spread[0].numpy(), replace(asked, adaptive_target=None))
        ids = before.nonzero()[0]
        expected = torch.from_numpy(adapted(before[ids], 0.3)) * count
        found = drawn.bincount(minlength=600)[ids]
        assert found.sum() == count
        assert ((found - expected) ** 2 / expected).sum() < 40  # 4 degrees of freedom: 1e-7


class TestState:
    def test_a_row_is_the_same_alone(self, device: str) -> None:
        batch, alone = new_batch(requests(21), device), [new_batch([one], device) for one in requests(21)]
        for step in range(3):
            tokens = Sampler()(rows_of(21, step).to(device), batch).token_ids.tolist()
            rows = rows_of(21, step).to(device).split(1)
            assert [int(Sampler()(row, one).token_ids) for row, one in zip(rows, alone, strict=True)] == tokens
        assert [one.states[0] for one in alone] == states_of(batch)

    def test_rows_that_move_take_it_along(self, device: str) -> None:
        batch = new_batch(requests(7), device)
        Sampler()(rows_of(7).to(device), batch)
        before = states_of(batch)
        batch.swap(0, 5)
        batch.reorder([1, 0, 2, 3, 4, 6, 5])
        batch.remove(2)
        assert states_of(batch) == [before[place] for place in (1, 5, 0, 3, 4, 6)]
        batch.extend(requests(3))  # in slots that were another's
        assert states_of(batch)[6:] == [(4.0,), (8.0,), None]

    def test_a_request_that_comes_back_goes_on(self, device: str) -> None:
        params = SamplingParams(mirostat_tau=2.0, seed=5, frequency_penalty=0.2)
        undisturbed = new_batch([params], device)
        tokens = [int(Sampler()(rows_of(1, step).to(device), undisturbed).token_ids) for step in range(6)]
        batch = new_batch([params], device)
        for step in range(3):
            Sampler()(rows_of(1, step).to(device), batch)
        state = batch.states[0]
        assert state is not None
        batch.remove(0)
        batch.extend(requests(2))
        batch.add(params, output_ids=tokens[:3])
        batch.states[2] = state
        again = [int(Sampler()(rows_of(1, step).expand(3, -1).to(device), batch).token_ids[2]) for step in range(3, 6)]
        assert again == tokens[3:]
        assert batch.states[2] == undisturbed.states[0]

    def test_who_does_not_draw_keeps_it(self, device: str) -> None:
        """A greedy row, a row without mass, and one whose logits are none: as is a step that does not advance."""
        params = SamplingParams(mirostat_tau=1.0, seed=1)
        batch = new_batch([params, params, params, params, replace(params, temperature=0)], device, 3)
        logits = torch.cat((STRANGE, STRANGE[3:])).to(device)
        first = Sampler()(logits, batch, advance=False)
        assert states_of(batch) == [(2.0,)] * 5
        output = Sampler()(logits, batch)
        assert torch.equal(output.token_ids, first.token_ids)
        seen = (RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.INF_SEEN, RowStatus.OK, RowStatus.OK)
        assert tuple(output.status.tolist()) == seen
        assert [state == (2.0,) for state in states_of(batch)] == [True, True, True, False, True]
        assert first.states is not None
        moved = states_of(batch)
        batch.states[3] = (2.0,)
        batch.flush()
        first.states.keep(batch)
        assert states_of(batch) == moved

    def test_the_host_samples_for_a_device(self, accelerator: str) -> None:
        here, there = new_batch(requests(14)), new_batch(requests(14))
        for step in range(3):
            Sampler()(rows_of(14, step), here)
            Sampler(host=True)(rows_of(14, step).to(accelerator), there)
        assert states_of(here) == states_of(there)

    @pytest.mark.parametrize("more", [{"mirostat_tau": 3.0}, {"adaptive_target": 0.1}], ids=str)
    def test_one_call_for_all_rows_of_a_device(self, more: dict[str, float], accelerator: str) -> None:
        """It leaves what it has kept, or else the logits, which it may write over elsewhere."""
        logits = torch.cat((rows_of(20), rows_of(20, 1)), 1)[:, :512]  # of whole segments
        filters: tuple[dict[str, Any], ...] = ({"top_k": 20, "top_p": 0.9}, {"top_p": 0.9}, {"min_p": 0.05}, {})
        for temperature, filtered in itertools.product((0.7, 1.0), filters):
            asked = {"temperature": temperature, "suppress_token_ids": [3], **more, **filtered}
            params = [SamplingParams(seed=row, **asked) for row in range(20)]
            here, there = new_batch(params, vocab_size=512), new_batch(params, accelerator, 512)
            tokens = Sampler()(logits.to(accelerator), there).token_ids
            assert torch.equal(Sampler()(logits, here).token_ids, tokens.cpu()), asked
            for one, other in zip(states_of(here), states_of(there), strict=True):
                assert one == pytest.approx(other, abs=EXACT)

    @pytest.mark.parametrize(
        ("row", "state", "error", "says"),
        [
            (0, (1.0, 2.0), TypeError, r"^SamplingBatch: state must be a tuple of 1 float, got \(1.0, 2.0\)"),
            (0, 1.0, TypeError, "state must be a tuple of 1 float, got 1.0"),
            (0, ("1",), TypeError, "state must be a tuple of 1 float"),
            (0, (NAN,), ValueError, r"state must be finite in float32, got \(nan,\). Give what was read"),
            (0, (1e39,), ValueError, "state must be finite in float32"),
            (1, (1.0, 1e-40), ValueError, "state must have weights whose sum is above 0, got .* Give what"),
            (1, (1.0, -1.0), ValueError, "state must have weights whose sum is above 0"),
            (2, (1.0,), ValueError, "row must be that of a request with mirostat_tau.*, got 2. Others remember"),
            (9, (1.0,), IndexError, r"row must be in \[0, 3\)"),
        ],
    )
    def test_what_cannot_be_set(self, row: int, state: Any, error: type[Exception], says: str) -> None:
        batch = new_batch([SamplingParams(mirostat_tau=2.0), SamplingParams(adaptive_target=0.3), SamplingParams()])
        before = states_of(batch)
        with pytest.raises(error, match=says):
            batch.states[row] = state
        assert states_of(batch) == before


def test_a_state_that_was_set_counts_in_the_next_step() -> None:
    """Also where nothing else has changed since the last one."""
    params = SamplingParams(adaptive_target=0.5, adaptive_decay=0.0, seed=3)
    logits = torch.tensor([[0.02, 0.9, 0.08]]).log().repeat(200, 1)
    batch = SamplingBatch(vocab_size=3)
    batch.extend([params] * 200, positions=range(200))
    Sampler()(logits, batch, advance=False)
    for missing, likely in ((0.0, 0), (1.0, 1)):
        for row in range(200):
            batch.states[row] = (1 - missing, 1.0)
        tokens = Sampler()(logits, batch, advance=False).token_ids
        assert int((tokens == likely).sum()) > 80
    assert int((tokens == 1).sum()) > 150


def test_who_cannot_serve_them_says_so() -> None:
    batch = new_batch([SamplingParams(), SamplingParams(mirostat_tau=1.0)], vocab_size=5)
    says = r": batch must hold no request with mirostat_tau.*, got row 1\. "
    with pytest.raises(ValueError, match=f"^StaticStep{says}A graph"):
        StaticStep(2, 5, torch.float32, "cpu").prepare(batch, is_edited=True)
    with pytest.raises(ValueError, match=f"^StaticVerification{says}A graph"):
        StaticVerification(2, 1, 5, torch.float32, "cpu").prepare(batch)
    with pytest.raises(ValueError, match=f"^verify_drafts{says}Sample its tokens one by one"):
        verify_drafts(torch.zeros(3, 5), torch.tensor([1]), batch, counts=[1, 0])
    assert set(fields_of(Stage.STATE)) <= set(all_but_draw_fields())  # beam_sample refuses them


def cost_of(monkeypatch: pytest.MonkeyPatch, rows: list[SamplingParams]) -> dict[str, Any]:
    monkeypatch.setitem(step_costs.BUDGETS, "states", step_costs.Budget(0, 0, tuple(rows)))
    return step_costs.measured("states", 8, 32000, torch.bfloat16)


@pytest.mark.parametrize(
    ("fields", "others", "launches", "with_top_k"),
    [
        ({"mirostat_tau": 3.0}, 0, 18, 18),
        ({"mirostat_tau": 3.0}, 1, 23, 23),
        ({"adaptive_target": 0.3}, 0, 21, 21),
        ({"adaptive_target": 0.3}, 1, 25, 25),
    ],
)
def test_launches_beside_those_of_a_step_without(
    fields: dict[str, float],
    others: int,
    launches: int,
    with_top_k: int,
    counting: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of adaptive-p is drawn twice."""
    filters: tuple[dict[str, Any], ...] = ({}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9})
    for filtered, limit in zip(filters, (launches, launches, with_top_k), strict=True):
        plain = SamplingParams(seed=1, temperature=0.7, **filtered)
        without = cost_of(monkeypatch, [plain] * (1 + others))
        costs = cost_of(monkeypatch, [replace(plain, **fields), *[plain] * others])
        assert costs["launches"] - without["launches"] == limit
        assert costs["waits"] == 0
        assert costs["copies"] == {"h2d": 2 if "adaptive_target" in fields else 1}


ALIKE: tuple[dict[str, Any], ...] = ({"top_k": 20, "top_p": 0.9}, {"top_p": 0.9})
"""One call of a device draws such rows, by rank or by segment, and leaves what it has kept."""


def alike(temperature: float, mirostat: int, **filters: Any) -> list[SamplingParams]:
    """Rows that are drawn together; the states of the last ones follow those of the first."""
    kinds = [{"mirostat_tau": 3.0}] * mirostat + [{"adaptive_target": 0.3}] * (10 - mirostat)
    asked = {"temperature": temperature, "return_sampling_mask": True} | filters
    return [SamplingParams(seed=row, **asked, **kind) for row, kind in enumerate(kinds)]


def check_steps(params: list[SamplingParams], device: str) -> None:
    """Some steps of a batch, of which row 8 has no ordinary logits."""
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
                state, token_id = before[row], tokens[-1][row]
                assert (drawn.kept is not None and bool(drawn.kept.counts[row])) == (
                    one.return_sampling_mask and row != 8
                ), row
                alike = as_drawn(one, state)
                race = Race(logits[row].double().numpy(), alike, step, (), tuple(texts[row]))
                chance = float(target_distribution(race.logits, alike, (), texts[row])[token_id])
                assert chance > 0, row
                texts[row].append(token_id)
                if state is None or now is None or one.temperature == 0 or row == 8:
                    assert now == state, row
                elif one.adaptive_target is None:
                    assert abs(now[0] - moved_bound(one, state[0], chance)) < EXACT, row
                else:
                    assert now == pytest.approx(moved_average(one, state, chance), abs=EXACT), row
                    assert token_id in acceptable_tokens(one, race, state, 2e-5), row
    assert tokens[:4] == tokens[4:]


def test_steps_are_those_of_float64(npu: str) -> None:
    """Of rows that remember and rows that do not, on the CPU and on a device."""
    assert new_batch(requests(2), npu).states[1] == (8.0,)
    check_steps([*requests(18), SamplingParams(seed=14, epsilon_cutoff=1e-4)], npu)
    for temperature in (0.7, 1.0):
        for filters in ALIKE:
            check_steps(alike(temperature, 5, **filters), npu)
    check_steps(alike(0.7, 0), npu)
