"""The sampler: steps of a batch against the float64 reference, row invariance, logprobs, no synchronisation."""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest
import torch
from oracle import expected
from torch import Tensor

from ascend_sample.sampling import LogprobsMode, Sampler, SamplingBatch, SamplingParams, SamplingRoute
from ascend_sample.sampling.reference.distribution import kept_ids, process_row

VOCAB_SIZE = 500
STEPS = 24


def requests(count: int, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> list[SamplingParams]:
    """Of every kind, seeded."""
    rng = random.Random(seed)
    some = [
        SamplingParams(
            temperature=rng.choice((0.0, 0.5, 0.8, 1.0, 1.0, 1.3)),
            top_k=rng.choice((None, None, 1, 5, 50, 200)),
            top_p=rng.choice((1.0, 0.3, 0.9, 0.95)),
            min_p=rng.choice((0.0, 0.0, 0.1)),
            seed=rng.randrange(2**64),
        )
        for _ in range(count)
    ]
    changes = (
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": -0.2},
        {"logit_bias": {3: 5.0, 4: -2.0}},
        {"suppress_token_ids": list(range(0, vocab_size, 3))},
        {"allowed_token_ids": list(range(7, vocab_size, 5))},
        {"stop_token_ids": [1, 2], "min_tokens": 9},
    )
    return [
        dataclasses.replace(params, **changes[row // 2 % len(changes)]) if row % 2 else params
        for row, params in enumerate(some)
    ]


@functools.cache
def _row(seed: int, step: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1009 + step) % 2**63)
    return torch.randn(vocab_size, generator=generator) * 3


def logits_of_step(step: int, seeds: list[int], dtype: torch.dtype, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """A row depends on the request and the step alone."""
    return torch.stack([_row(seed, step, vocab_size) for seed in seeds]).to(dtype)


def generate(
    params: list[SamplingParams], names: list[int], device: str, dtype: torch.dtype, steps: int = STEPS
) -> dict[int, list[int]]:
    """The tokens of requests that are sampled together, by their names."""
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([params[name] for name in names], [[name % VOCAB_SIZE, 5] for name in names])
    sampler = Sampler()
    columns = [
        sampler(logits_of_step(step, names, dtype).to(device), batch).token_ids.cpu().tolist() for step in range(steps)
    ]
    return {name: [column[row] for column in columns] for row, name in enumerate(names)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_token_is_the_one_that_the_reference_draws(device: str, dtype: torch.dtype) -> None:
    params = requests(24)
    prompts = [(row, 5, 5, 7) for row in range(24)]
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(params, prompts)
    sampler = Sampler()
    outputs: list[tuple[int, ...]] = [()] * 24
    inexact = 0
    for step in range(12):
        logits = logits_of_step(step, list(range(24)), dtype)
        ids = sampler(logits.to(device), batch).token_ids.cpu().tolist()
        for row, token_id in enumerate(ids):
            want = expected(logits[row].float().numpy(), params[row], 4 + step, prompts[row], outputs[row])
            assert token_id in want.acceptable, (step, row, params[row])
            inexact += token_id != want.token_id
            outputs[row] += (token_id,)
    assert inexact <= 1


def test_a_step_that_does_not_advance_is_repeated(device: str) -> None:
    output = Sampler()(torch.zeros(0, 7, device=device), SamplingBatch(7, device))
    assert (output.token_ids.shape, output.status.shape, output.logprobs) == ((0,), (0,), None)
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([SamplingParams(seed=seed) for seed in range(20)])
    logits = torch.zeros(20, VOCAB_SIZE, device=device)
    sampler = Sampler()
    first = sampler(logits, batch, advance=False).token_ids
    second = sampler(logits, batch).token_ids
    third = sampler(logits, batch).token_ids
    assert torch.equal(first, second)
    assert (second == third).sum() <= 2


def test_a_changed_batch_is_planned_anew(device: str) -> None:
    """The same sampler serves what joined, left and moved, and another batch."""
    params = [SamplingParams(temperature=0), SamplingParams(top_k=1), SamplingParams(suppress_token_ids=[3])]
    logits = torch.tensor([[0.0, 1.0, 2.0, 90.0]], device=device)
    sampler, batch = Sampler(), SamplingBatch(4, device)
    batch.extend(params[:2])
    assert sampler(logits.expand(2, 4), batch).token_ids.tolist() == [3, 3]
    batch.add(dataclasses.replace(params[2], logit_bias={1: 90.0}))
    assert sampler(logits.expand(3, 4), batch).token_ids.tolist() == [3, 3, 1]
    batch.swap(0, 2)
    assert sampler(logits.expand(3, 4), batch).token_ids.tolist() == [1, 3, 3]
    batch.remove(0)
    assert sampler(logits.expand(2, 4), batch).token_ids.tolist() == [3, 3]
    other = SamplingBatch(4, device)
    other.extend([dataclasses.replace(params[0], suppress_token_ids=[3]), params[0]])
    assert sampler(logits.expand(2, 4), other).token_ids.tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alone_batched_permuted_and_with_other_batchmates(device: str, dtype: torch.dtype) -> None:
    """A request's tokens are a function of its own parameters and logits."""
    params = requests(128)
    names = list(range(64))
    together = generate(params, names, device, dtype)
    permuted = generate(params, random.Random(1).sample(names, 64), device, dtype)
    assert permuted == together
    for row in (0, 1, 13, 63):
        others = [name for name in range(64, 128) if name != row][: 7 + row]
        others.insert(row % 7, row)
        assert generate(params, others, device, dtype)[row] == together[row]
    for name in range(0, 64, 9 if device == "cpu" else 21):  # the emulation is slow
        assert generate(params, [name], device, dtype)[name] == together[name]


def test_when_all_rows_are_processed(device: str) -> None:
    """They are gathered in an order of their own, and one group may hold them all."""
    params = [SamplingParams(seed=1, presence_penalty=1.0), SamplingParams(seed=2, logit_bias={3: 1.0})]
    together = generate(params, [0, 1], device, torch.float32)
    assert together == {name: generate(params, [name], device, torch.float32)[name] for name in (0, 1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_draws_what_the_cpu_draws(accelerator: str, dtype: torch.dtype) -> None:
    params = requests(64, seed=3)
    names = list(range(64))
    assert generate(params, names, accelerator, dtype) == generate(params, names, "cpu", dtype)


LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0], [0.5, 0.5, 4.0, 0.0], [9.0, 9.0, 9.0, 8.0]])


@pytest.mark.parametrize("mode", list(LogprobsMode))
def test_logprobs_of_the_four_modes(device: str, mode: LogprobsMode) -> None:
    batch = SamplingBatch(4, device)
    batch.add(SamplingParams(temperature=0.5, top_k=2, logprobs=2, seed=1))
    batch.add(SamplingParams(temperature=0))
    batch.add(SamplingParams(suppress_token_ids=[0], logprobs=0, temperature=2.0, seed=2))
    output = Sampler(mode.value)(LOGITS.to(device), batch)
    assert output.logprobs is not None
    assert output.logprobs.rows == [0, 2]
    chosen = output.token_ids[[0, 2]].cpu()
    numbers = []
    for row, params in ((0, batch.params[0]), (2, batch.params[2])):
        processed = torch.from_numpy(process_row(LOGITS[row].numpy(), params))
        kept = kept_ids(processed.numpy(), params)
        filtered = torch.full((4,), -torch.inf, dtype=torch.float64)
        filtered[kept] = processed[kept] / params.temperature
        values = filtered if mode.is_processed else LOGITS[row].double()
        numbers.append(values.log_softmax(0) if mode.is_normalised else values)
    want = torch.stack(numbers).float()
    own = want.gather(1, chosen[:, None])
    torch.testing.assert_close(output.logprobs.values[:, :1].cpu(), own, rtol=0, atol=1e-5)
    assert torch.equal(output.logprobs.token_ids[:, 0].cpu(), chosen)
    torch.testing.assert_close(output.logprobs.values[:, 1:].cpu(), want.topk(2).values, rtol=0, atol=1e-5)
    assert output.logprobs.ranks.tolist() == (want >= own).sum(1).tolist()


def test_logprobs_of_rows_without_a_distribution(device: str) -> None:
    batch = SamplingBatch(3, device)
    batch.extend([SamplingParams(logprobs=1)] * 3)
    logits = torch.tensor([[torch.nan] * 3, [torch.inf, 0.0, torch.inf], [torch.nan, 0.0, 0.0]])
    logprobs = Sampler()(logits.to(device), batch).logprobs
    assert logprobs is not None
    assert not logprobs.values.isnan().any()
    assert logprobs.values[1:, 1].tolist() == pytest.approx([-0.6931, -0.6931], abs=1e-4)


def test_tells_the_route_and_why(npu: str) -> None:
    batch = SamplingBatch(32000)
    batch.extend([SamplingParams(top_k=50), SamplingParams(top_k=5000), SamplingParams(repetition_penalty=1.2)])
    explained = Sampler().explain(batch, torch.bfloat16)
    assert [one.row for one in explained] == [0, 1, 2]
    assert {one.route for one in explained} == {SamplingRoute.NATIVE}
    assert explained[1].reason == explained[0].reason
    assert "processed in float32" in explained[2].reason

    batch = SamplingBatch(32000, npu)
    batch.add(SamplingParams(top_p=0.9))
    explained = Sampler().explain(batch, torch.bfloat16)
    assert explained[0].route is SamplingRoute.FUSED_SEGMENTS


def test_of_another_kind(npu: str) -> None:
    batch = SamplingBatch(4)
    batch.add(SamplingParams())
    given = {"logits": torch.zeros(1, 4), "batch": batch}
    for error, says, wrong in (
        (TypeError, "batch must be a SamplingBatch, got NoneType None", {"batch": None}),
        (TypeError, "purpose must be a Purpose, got str 'DRAW'", {"purpose": "DRAW"}),
        (TypeError, "advance must be True or False, got str 'no'", {"advance": "no"}),
        (TypeError, r"logits must be .* got SamplingBatch\. Give the model's output as", {"logits": batch}),
        (TypeError, r"logits must be .* got torch\.float64", {"logits": torch.zeros(1, 4).double()}),
        (ValueError, "logits must be on the device of the batch, cpu", {"logits": torch.zeros(1, 4, device=npu)}),
        (ValueError, r"logits must have .* got \[2, 4\]", {"logits": torch.zeros(2, 4)}),
        (ValueError, r"logits must have .* got \[1, 4, 1\]", {"logits": torch.zeros(1, 4, 1)}),
        (ValueError, r".*got \[1, 6\]\. Cut the padding off, as with logits\[:,", {"logits": torch.zeros(1, 6)}),
        (ValueError, r".*got \[1, 3\]\. Make the batch with vocab_size=3", {"logits": torch.zeros(1, 3)}),
    ):
        with pytest.raises(error, match=f"Sampler: {says}"):
            Sampler()(**given | wrong)
        assert batch.position.tolist() == [0]


def test_unknown_modes_and_options() -> None:
    with pytest.raises(ValueError, match=r"Sampler: logprobs_mode must be one of raw_logprobs, .* got 'cooked'"):
        Sampler("cooked")
    with pytest.raises(TypeError, match="Sampler: keep_ties must be True or False, got int 1"):
        Sampler(keep_ties=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Sampler: shard must be a VocabularyShard, got int 5"):
        Sampler(shard=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Sampler: batch must be a SamplingBatch, got NoneType None"):
        Sampler().explain(None, torch.float32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Sampler: dtype must be a dtype, got str 'bfloat16'"):
        Sampler().explain(SamplingBatch(4), "bfloat16")  # type: ignore[arg-type]
