"""Filters that keep a range of values: by hand, beside the float64 reference and transformers, here and on a device."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import step_costs
import torch
from oracle import excludes, near_entropy, near_ranges
from torch import Tensor
from transformers import EpsilonLogitsWarper, EtaLogitsWarper, TypicalLogitsWarper

from ascend_sample.decoding.row_params import all_but_draw_fields
from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams, StaticStep
from ascend_sample.sampling.edits import value_ranges
from ascend_sample.sampling.edits.value_ranges import RangeNumbers, keeps_range
from ascend_sample.sampling.reference.distribution import keep_range, process_row

NEAR = 2e-6
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
VOCAB_SIZE = 2003
ALWAYS = {"xtc_probability": 1.0}
FILTERS: dict[str, dict[str, Any]] = {
    "typical": {"typical_p": 0.9},
    "few typical": {"typical_p": 0.2},
    "nearly all typical": {"typical_p": 0.999},
    "epsilon": {"epsilon_cutoff": 3e-4},
    "eta": {"eta_cutoff": 2e-3},
    "top-a": {"top_a": 0.2},
    "top-n-sigma": {"top_n_sigma": 1.5},
    "xtc": {**ALWAYS, "xtc_threshold": 0.02},
    "xtc, min-p": {**ALWAYS, "xtc_threshold": 0.01, "min_p": 0.2},
    "xtc by a coin, min-p": {"xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.1},
    "few typical, xtc, min-p": {"typical_p": 0.2, **ALWAYS, "xtc_threshold": 0.005, "min_p": 0.3},
    "typical, top-n-sigma": {"typical_p": 0.9, "top_n_sigma": 0.5},
    "typical, epsilon, xtc": {"typical_p": 0.8, "epsilon_cutoff": 1e-3, **ALWAYS, "xtc_threshold": 0.01},
    "eta, top-a, top-n-sigma": {"eta_cutoff": 1e-3, "top_a": 0.1, "top_n_sigma": 2.0},
}
INF, NAN = torch.inf, torch.nan


def rows_of(count: int, dtype: torch.dtype = torch.float32, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> Tensor:
    """From nearly flat to one that has nearly everything, some of them masked in part, or rounded."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab_size, generator=generator) * torch.rand(count, 1, generator=generator) * 9
    logits[1::4, ::3] = -INF
    logits[2::4] = logits[2::4].round()
    return (logits - 20).to(dtype)


def new_batch(params: list[SamplingParams], device: str = "cpu", vocab_size: int = VOCAB_SIZE) -> SamplingBatch:
    batch = SamplingBatch(vocab_size, device, capacity=len(params))
    batch.extend(params)
    return batch


def kept_of(logits: Tensor, params: list[SamplingParams], device: str = "cpu") -> np.ndarray:
    """What stays of each row, bool [rows, vocab_size]."""
    edited = new_batch(params, device, logits.shape[1]).edited(logits.to(device))
    assert edited is not None
    return (edited > -INF).cpu().numpy()


def check_kept(logits: Tensor, params: list[SamplingParams], kept: np.ndarray, near: float = NEAR) -> int:
    """Raises unless it is the reference's, but for what rounding may choose; returns how many rows are not its own."""
    others = 0
    for row, (one, stays) in enumerate(zip(params, kept, strict=True)):
        edited = process_row(logits[row].double().numpy(), one)
        wanted = keep_range(edited, one, excludes(one, 0))
        differs = (wanted > -np.inf) != stays
        if differs.any():
            others += 1
            may_differ = near_entropy(edited, wanted > -np.inf, one, near)
            for other in near_ranges(edited, wanted, one, excludes(one, 0), near):
                may_differ |= (other > -np.inf) != (wanted > -np.inf)
            assert not (differs & ~may_differ).any(), (row, one, np.flatnonzero(differs & ~may_differ)[:5])
    return others


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"epsilon_cutoff": 0.25}, [2, 3]),
        ({"epsilon_cutoff": 0.9}, [3]),  # the best one stays
        ({"eta_cutoff": 0.3}, [1, 2, 3]),  # sqrt(0.3) exp(-1.28) is 0.152
        ({"eta_cutoff": 0.02}, [0, 1, 2, 3]),  # 0.02 is below the other bound
        ({"top_a": 0.9}, [1, 2, 3]),  # 0.9 * 0.16 is 0.144
        ({"top_n_sigma": 1.0}, [2, 3]),  # 0.52 nats
        ({"typical_p": 0.45}, [1, 2]),  # at 0.08 and 0.33 from the entropy; the best one is at 0.36
        ({"typical_p": 0.85}, [1, 2, 3]),
        ({"typical_p": 0.45, "epsilon_cutoff": 0.9}, [2]),  # the best of what is typical
        ({**ALWAYS, "xtc_threshold": 0.25}, [0, 1, 2]),
        ({**ALWAYS, "xtc_threshold": 0.15}, [0, 1]),
        ({**ALWAYS, "xtc_threshold": 0.35}, [0, 1, 2, 3]),  # a single one has so much
        ({**ALWAYS, "xtc_threshold": 0.05, "min_p": 0.6}, [2]),  # min-p is of the best one before it goes
        ({"epsilon_cutoff": 0.25, "temperature": 0.5}, [2, 3]),  # 0.03, 0.13, 0.30, 0.53
        ({"epsilon_cutoff": 0.2, "temperature": 2.0}, [1, 2, 3]),  # 0.16, 0.23, 0.28, 0.33
        ({"top_n_sigma": 1.0, "temperature": 2.0}, [2, 3]),  # whatever the temperature is
        ({"epsilon_cutoff": 0.25, "temperature": 0.0}, None),  # greedy: nothing is looked at
    ],
)
def test_by_hand(fields: dict[str, Any], kept: list[int] | None, device: str) -> None:
    row = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    params = [SamplingParams(seed=1, **fields)]
    assert keeps_range(params[0]) == (kept is not None)
    if kept is not None:
        assert np.flatnonzero(kept_of(row, params, device)[0]).tolist() == kept


@pytest.mark.parametrize("count", [25, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_stays_is_the_references(dtype: torch.dtype, count: int) -> None:
    logits = rows_of(count, dtype)
    for name, fields in FILTERS.items():
        temperatures = random.Random(name).choices((0.3, 1.0, 1.0, 1.7), k=count)
        params = [SamplingParams(seed=row, temperature=t, **fields) for row, t in enumerate(temperatures)]
        assert check_kept(logits, params, kept_of(logits, params)) <= max(1, count // 50), name


WARPERS: list[tuple[dict[str, Any], Any]] = [
    ({"typical_p": 0.9}, TypicalLogitsWarper(0.9)),
    ({"typical_p": 0.3}, TypicalLogitsWarper(0.3)),
    ({"epsilon_cutoff": 3e-4}, EpsilonLogitsWarper(3e-4)),
    ({"eta_cutoff": 2e-3}, EtaLogitsWarper(2e-3)),
]


def test_transformers_keeps_the_same() -> None:
    """But for what lies so near to a bound that float32 decides: transformers adds up in another order.

    Of flat rows several ids lie as near to the bound as its float32 tells: they weigh 5e-4 each.
    """
    count = 300
    logits = rows_of(count, seed=1)
    for fields, warper in WARPERS:
        theirs = (warper(torch.zeros(count, 1, dtype=torch.int64), logits.clone()) > -INF).numpy()
        params = [SamplingParams(seed=1, **fields)] * count
        differs = (theirs != kept_of(logits, params)).any(1)
        assert check_kept(logits[differs], params[: differs.sum()], theirs[differs], near=2e-3) <= count // 50, fields


def mixed(count: int, **more: Any) -> list[SamplingParams]:
    rng = random.Random(3)
    return [
        SamplingParams(
            seed=rng.randrange(2**64),
            temperature=rng.choice((0.5, 1.0, 1.3)),
            top_k=rng.choice((None, None, 20, 1, 1500)),
            top_p=rng.choice((1.0, 1.0, 0.9)),
            **({"min_p": rng.choice((0.0, 0.05))} | rng.choice([{}, *FILTERS.values()]) | more),
        )
        for _ in range(count)
    ]


def test_a_device_draws_the_same(accelerator: str) -> None:
    logits, params = rows_of(64), mixed(64, suppress_token_ids=[3, 7], presence_penalty=0.5)
    here, there = new_batch(params), new_batch(params, accelerator)
    for _ in range(3):
        assert torch.equal(Sampler()(logits, here).token_ids, Sampler()(logits.to(accelerator), there).token_ids.cpu())


def test_strange_rows_keep_their_status(device: str) -> None:
    rows = torch.tensor([[0.0, NAN, -1.0], [-INF] * 3, [1.0, INF, INF], [NAN, -INF, NAN], [-INF, 2.0, -INF]])
    for name, fields in FILTERS.items():
        batch = new_batch([SamplingParams(seed=5, **fields)] * 5, device, 3)
        output = Sampler()(rows.to(device), batch)
        seen = RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.INF_SEEN, RowStatus.NAN_SEEN, RowStatus.OK
        assert tuple(output.status.tolist()) == seen, name
        assert output.token_ids[1:].tolist()[0] == 0, name
        assert output.token_ids[2] in (1, 2), name
        assert output.token_ids[4] == 1, name


def test_who_cannot_serve_them_says_so(npu: str) -> None:
    ranged = SamplingParams(top_a=0.2)
    step = StaticStep(1, 5, torch.float32, "cpu")
    batch = new_batch([ranged], vocab_size=5)
    with pytest.raises(ValueError, match=r"^StaticStep: batch must have no typical_p, .*is_edited=True"):
        step.prepare(batch)
    step.prepare(batch, is_edited=True)
    assert set(value_ranges.RANGE) <= set(all_but_draw_fields())  # beam_sample refuses them, speculation verifies them


COSTS = {"epsilon": (10, 2), "top-a": (9, 2), "xtc": (12, 3), "eta": (12, 3), "top-n-sigma": (13, 2)}
COSTS |= {"typical": (18, 9), "all": (54, 9)}
"""Launches more than a step without, and how many numbers are held for each logit."""


@pytest.mark.parametrize("name", COSTS)
def test_launches_beside_those_of_a_step_without(name: str, counting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 logits are copied, and those of another dtype are converted anyway; a temperature divides once more."""
    singles = ("epsilon", "top-a", "xtc", "eta", "top-n-sigma", "typical")
    fields = {key: number for each in (singles if name == "all" else (name,)) for key, number in FILTERS[each].items()}
    launches, memory = COSTS[name]
    for dtype, more in ((torch.bfloat16, {}), (torch.float32, {"temperature": 0.7})):
        costs = []
        for asked in (more, more | fields):
            budget = step_costs.Budget(0, 0, (SamplingParams(seed=1, **asked),))
            monkeypatch.setitem(step_costs.BUDGETS, "ranges", budget)
            costs.append(step_costs.measured("ranges", 64, 32000, dtype))
        copied, divided = dtype == torch.float32, bool(more) and name != "top-n-sigma"
        assert costs[1]["launches"] - costs[0]["launches"] == launches + copied + divided
        assert costs[1]["waits"] == 0
        assert costs[1]["copies"] == {"h2d": 2 if "xtc_probability" in fields else 1}
        assert costs[1]["memory"] <= (4 * memory + (2 if name == "all" else 1)) * step_costs.ROUNDING


def test_a_launch_more_where_rows_ask_for_different_deviations(counting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for sigmas in ((0.0,), (1.0,), (1.0, 2.0)):
        rows = tuple(SamplingParams(seed=1, top_n_sigma=each) for each in sigmas)
        monkeypatch.setitem(step_costs.BUDGETS, "ranges", step_costs.Budget(0, 0, rows))
        costs.append(step_costs.measured("ranges", 64, 32000, torch.bfloat16)["launches"])
    assert [cost - costs[0] for cost in costs] == [0, 13, 14]


def test_equal_values_stay_whatever_their_mean_is_rounded_to(accelerator: str) -> None:
    """Of what a grammar leaves, all that is equal to the best is within any deviation."""
    count, vocab_size = 200, 1000
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(count, 1, generator=generator) * 5 + torch.zeros(count, vocab_size)
    for allowed in (1, 2):
        ids = torch.rand(count, vocab_size, generator=generator).argsort(1)[:, :allowed]
        params = [
            SamplingParams(top_n_sigma=0.5, seed=row, allowed_token_ids=ids[row].tolist()) for row in range(count)
        ]
        output = Sampler()(logits.to(accelerator), new_batch(params, accelerator, vocab_size))
        assert (output.status == RowStatus.OK).all()
        assert (output.token_ids.cpu().unsqueeze(1) == ids).any(1).all()


def test_rows_keep_their_ranges_where_others_come_and_go(device: str) -> None:
    params = [SamplingParams(xtc_probability=0.5, seed=row) for row in range(6)] + [SamplingParams(seed=6)]
    logits = rows_of(8).to(device)
    batch = new_batch(params, device)
    for change in (lambda: batch.add(SamplingParams(seed=7)), lambda: batch.remove(7), lambda: batch.remove(6)):
        Sampler()(logits[: len(batch)], batch)
        change()
        anew = SamplingBatch(VOCAB_SIZE, device)
        anew.extend(batch.params, positions=batch.position.tolist())
        tokens = [Sampler()(logits[: len(batch)], each, advance=False).token_ids.tolist() for each in (batch, anew)]
        assert tokens[0] == tokens[1]


def test_strange_rows_lose_the_same_on_a_device(accelerator: str) -> None:
    """NaN counts as the smallest value and stays, so that the row's status tells of it."""
    logits = rows_of(32)
    logits[::2, 5:9] = NAN
    logits[7], logits[9] = -INF, NAN
    logits[10], logits[10, 3] = -INF, -3e38
    logits[13], logits[14] = 3.4e38, -3.4e38
    logits[15] *= 1e3
    for temperature, (name, fields) in itertools.product((1.0, 0.01, 50.0), FILTERS.items()):
        params = [SamplingParams(seed=row, temperature=temperature, **fields) for row in range(32)]
        here, there = (new_batch(params, device).edited(logits.to(device)) for device in ("cpu", accelerator))
        assert here is not None
        assert there is not None
        differs = ~torch.isclose(here, there.cpu(), equal_nan=True)
        assert differs.any(1).sum() <= 1, (name, temperature)
        assert torch.equal(here.isnan(), there.cpu().isnan()), (name, temperature)


def test_each_field_is_asked_for() -> None:
    """A new filter is compared with the reference, here and on a device, as soon as it is declared."""
    assert {name for fields in FILTERS.values() for name in fields} == {*value_ranges.RANGE, "min_p"}


def test_coins_and_ranges(accelerator: str) -> None:
    """Rows with and without ranges, here and on a device."""
    coins = [SamplingParams(seed=seed, xtc_probability=0.4) for seed in range(64)]
    batch = SamplingBatch(9)
    batch.extend(coins, positions=range(64))
    assert (RangeNumbers(batch.host, batch.row_edits.states).of_step()[-1] > 0).tolist() == [
        excludes(one, position) for position, one in enumerate(coins)
    ]
    for logits in (rows_of(24), rows_of(24, vocab_size=9)):
        with_nan = logits.clone()
        with_nan[::5, 7] = NAN
        kinds = [({}, fields) for fields in (*FILTERS.values(), {"epsilon_cutoff": 0.9})]
        kinds.append(({}, {"typical_p": 0.5, "epsilon_cutoff": 0.9}))
        kinds.append(tuple({"top_n_sigma": sigmas} for sigmas in (1.5, 0.5, 0.0)))
        for kind in kinds:
            asked = [kind[min(row % 3, len(kind) - 1)] for row in range(24)]
            rows = [SamplingParams(seed=row, temperature=1 + row % 2, **one) for row, one in enumerate(asked)]
            for place in ("cpu", accelerator):
                kept = kept_of(logits, rows, place)
                check_kept(logits, rows, kept, near=1e-5)
                assert kept.any(1).all(), kind
            check_kept(
                with_nan.nan_to_num(nan=-INF, neginf=-INF), rows, kept_of(with_nan, rows, accelerator), near=1e-5
            )
