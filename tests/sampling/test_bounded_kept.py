"""Kept sets with a bound, in graphs and on the host of a device; and who refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kept_rows import BY_HAND, INF, KINDS, drawn_sets, new_batch, params_of, rows_of, sets_of
from test_static_step import captured

import hostcann
from ascend_sample.decoding import sample
from ascend_sample.sampling import KeptSets, Sampler, SamplingParams, StaticStep
from tests.decoding.table_models import random_table, table_model


@pytest.mark.parametrize("max_kept", [1, 50, 400])
def test_a_bound_empties_what_is_larger(max_kept: int, device: str) -> None:
    params = [params_of(seed=seed, **KINDS[name]) for name in KINDS for seed in range(2)]
    params[5] = replace(params[5], return_sampling_mask=False)
    logits = rows_of(len(params), 300)
    whole, bounded = drawn_sets(logits, params, device), drawn_sets(logits, params, device, max_kept=max_kept)
    assert torch.equal(bounded.counts, whole.counts)
    assert len(bounded.ids) == len(bounded.logprobs)
    for row, count in enumerate(whole.counts.tolist()):
        stays = 0 < count <= max_kept
        found, expected = (sets.of_row(row) for sets in (bounded, whole))
        assert torch.equal(found[0], expected[0] if stays else expected[0][:0])
        if stays:  # a device adds up what is within the bound
            torch.testing.assert_close(found[1], expected[1], atol=0 if device == "cpu" else 2e-6, rtol=0)
    ids, log_probs = bounded.padded(max_kept)
    assert ids.shape == log_probs.shape == (len(params), max_kept)
    assert torch.equal((ids >= 0).sum(1), bounded.offsets.diff())
    assert torch.equal(ids[ids >= 0], bounded.ids[: bounded.offsets[-1]])
    assert torch.equal(ids >= 0, log_probs > -INF)


@pytest.mark.parametrize(("some", "launches"), [(False, 34), (True, 41)])
def test_a_bound_lets_a_device_step_wait_for_nothing(counting: None, npu: str, some: bool, launches: int) -> None:
    """The launches are those beside a step without kept sets."""
    counts = []
    for asks in (False, True):
        params = [
            params_of(top_k=50, top_p=0.9, temperature=0.7, return_sampling_mask=asks and not (some and row))
            for row in range(8)
        ]
        batch, sampler = new_batch(params, 32_000, npu), Sampler(max_kept=50)
        with hostcann.null_kernels():
            logits = torch.empty(8, 32_000, dtype=torch.bfloat16, device=npu)
            sampler(logits, batch)
            with hostcann.profile() as counted:
                sampler(logits, batch)
        assert counted.totals.waits == 0
        assert set(counted.copies) <= {"h2d"}
        counts.append(counted.totals.launches)
    assert counts[1] - counts[0] == launches, counts


def test_without_a_bound_a_device_step_waits_once(counting: None, npu: str) -> None:
    batch, logits = new_batch([params_of(top_k=50)], 3000, npu), rows_of(1, 3000).to(npu)
    with hostcann.profile() as counted:
        Sampler()(logits, batch)
    assert counted.totals.waits == 1


@pytest.mark.parametrize("options", [{}, {"keep_ties": True}, {"largest_k": 1500}])
def test_a_step_in_a_graph_has_them(device: str, options: dict[str, Any]) -> None:
    """Those of `Sampler`, for the rows that have a request."""
    names = [name for name in KINDS if name not in ("typical", "xtc")]
    params = [params_of(seed=seed, **KINDS[name]) for name in names for seed in range(2)]
    if "largest_k" not in options:
        params = [replace(one, top_k=min(one.top_k or 99, 1000)) for one in params]
    logits = rows_of(len(params), 2003)
    batch = new_batch(params, 2003, device)
    step = StaticStep(
        len(params) + 2, 2003, torch.float32, device, addends=60, history=9, bitmask=True, max_kept=300, **options
    )
    replay = step.run if device == "cpu" else captured(step).replay
    step.prepare(batch)
    step.logits[: len(params)] = logits.to(device)
    replay()
    sampler = Sampler(keep_ties=step.keep_ties, max_kept=300)
    output = sampler(logits.to(device), batch)
    assert step.kept is not None
    assert torch.equal(step.token_ids[: len(params)], output.token_ids)
    found, expected = KeptSets(*(tensor.cpu() for tensor in step.kept)), sets_of(output)
    for row in range(len(params)):
        assert found.counts[row] == expected.counts[row], params[row]
        assert torch.equal(found.of_row(row)[0], expected.of_row(row)[0])
        torch.testing.assert_close(found.of_row(row)[1], expected.of_row(row)[1], atol=3e-6, rtol=0)


def test_a_top_k_of_one_keeps_the_first_of_ties(device: str) -> None:
    """It is greedy, whatever becomes of ties elsewhere."""
    batch = new_batch([params_of(top_k=1), params_of(top_k=2)], 6, device)
    logits = torch.tensor([[0.0, 1.0, 2.0, 2.0, 2.0, 0.0]]).repeat(2, 1)
    step = StaticStep(2, 6, torch.float32, device, keep_ties=True, max_kept=6)
    step.prepare(batch)
    step.logits.copy_(logits)
    step.run()
    assert step.kept is not None
    for kept in (sets_of(Sampler(keep_ties=True)(logits.to(device), batch)), step.kept):
        found = KeptSets(*(tensor.cpu() for tensor in kept))
        assert [found.of_row(row)[0].tolist() for row in range(2)] == [[2], [2, 3, 4]]


def test_who_has_no_sets_refuses() -> None:
    batch = new_batch([params_of()], 4)
    with pytest.raises(TypeError, match="SamplingParams: return_sampling_mask must be True or False, got 1"):
        SamplingParams(return_sampling_mask=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Sampler: max_kept must be"):
        Sampler(max_kept=0)
    lengths = [len(sets_of(Sampler(max_kept=most)(BY_HAND[None], batch, advance=False)).ids) for most in (2, None, 3)]
    assert lengths == [0, 4, 0], "bounds are the samplers'"
    with pytest.raises(ValueError, match="StaticStep: max_kept must be given where requests ask for kept sets"):
        StaticStep(1, 4, torch.float32, "cpu").prepare(batch)
    with pytest.raises(ValueError, match="leave return_sampling_mask at its default"):
        sample(table_model(random_table()), torch.tensor([[0]]), max_new_tokens=1, params=params_of())
