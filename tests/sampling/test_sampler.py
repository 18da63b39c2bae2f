"""The sampler: steps of a batch against the float64 reference, row invariance, logprobs, no synchronisation."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

import pytest
import torch
from oracle import expected
from torch import Tensor

from ascend_sample.sampling import LogprobsMode, RowStatus, Sampler, SamplingBatch, SamplingParams, SamplingRoute
from ascend_sample.sampling.reference.distribution import kept_ids, process_row
from tests.support.emulation import nobody_waits

VOCAB_SIZE = 500
STEPS = 64


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
        {"bad_ids": list(range(0, vocab_size, 3))},
        {"allowed_ids": list(range(7, vocab_size, 5))},
        {"stop_ids": [1, 2], "min_tokens": 9},
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


class TestSteps:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_each_token_is_the_one_that_the_reference_draws(self, device: str, dtype: torch.dtype) -> None:
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

    def test_a_step_that_does_not_advance_is_repeated(self, device: str) -> None:
        batch = SamplingBatch(VOCAB_SIZE, device)
        batch.extend([SamplingParams(seed=seed) for seed in range(20)])
        logits = torch.zeros(20, VOCAB_SIZE, device=device)
        sampler = Sampler()
        first = sampler(logits, batch, advance=False).token_ids
        second = sampler(logits, batch).token_ids
        third = sampler(logits, batch).token_ids
        assert torch.equal(first, second)
        assert (second == third).sum() <= 2

    def test_an_empty_batch(self, device: str) -> None:
        output = Sampler()(torch.zeros(0, 7, device=device), SamplingBatch(7, device))
        assert output.token_ids.shape == output.status.shape == (0,)
        assert output.logprobs is None

    def test_a_changed_batch_is_planned_anew(self, device: str) -> None:
        """The same sampler serves what joined, left and moved, and another batch."""
        params = [SamplingParams(temperature=0), SamplingParams(top_k=1), SamplingParams(bad_ids=[3])]
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
        other.extend([dataclasses.replace(params[0], bad_ids=[3]), params[0]])
        assert sampler(logits.expand(2, 4), other).token_ids.tolist() == [2, 3]


class TestInvariance:
    """A request's tokens are a function of its own parameters and logits."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_alone_batched_permuted_and_with_other_batchmates(self, device: str, dtype: torch.dtype) -> None:
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

    def test_when_all_rows_are_processed(self, device: str) -> None:
        """They are gathered in an order of their own, and one group may hold them all."""
        params = [SamplingParams(seed=1, presence_penalty=1.0), SamplingParams(seed=2, logit_bias={3: 1.0})]
        together = generate(params, [0, 1], device, torch.float32)
        assert together == {name: generate(params, [name], device, torch.float32)[name] for name in (0, 1)}

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_device_draws_what_the_cpu_draws(self, accelerator: str, dtype: torch.dtype) -> None:
        params = requests(64, seed=3)
        names = list(range(64))
        assert generate(params, names, accelerator, dtype) == generate(params, names, "cpu", dtype)


class TestBadRows:
    def test_a_status_for_that_row_alone(self, device: str) -> None:
        batch = SamplingBatch(4, device)
        batch.extend([SamplingParams(bad_ids=[0], seed=row) for row in range(3)])
        batch.extend([SamplingParams(seed=row) for row in range(4)])
        logits = torch.zeros(7, 4)
        logits[0] = torch.tensor([torch.nan, 0.0, 1.0, 0.0])
        logits[1] = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])
        logits[4] = torch.tensor([0.0, torch.inf, 1.0, 0.0])
        output = Sampler()(logits.to(device), batch)
        wanted = [RowStatus.OK] * 7
        wanted[1], wanted[4] = RowStatus.ALL_MASKED, RowStatus.INF_SEEN
        # The NaN of row 0 is at an id that may not be drawn.
        assert output.status.tolist() == wanted
        ids = output.token_ids.tolist()
        assert ids[1] == 0
        assert ids[4] == 1
        assert all(0 <= token_id < 4 for token_id in ids)
        assert ids[0] != 0


class TestLogprobs:
    LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0], [0.5, 0.5, 4.0, 0.0], [9.0, 9.0, 9.0, 8.0]])

    def batch(self, device: str) -> SamplingBatch:
        batch = SamplingBatch(4, device)
        batch.add(SamplingParams(temperature=0.5, top_k=2, logprobs=2, seed=1))
        batch.add(SamplingParams(temperature=0))
        batch.add(SamplingParams(bad_ids=[0], logprobs=0, temperature=2.0, seed=2))
        return batch

    @pytest.mark.parametrize("mode", list(LogprobsMode))
    def test_of_the_four_modes(self, device: str, mode: LogprobsMode) -> None:
        batch = self.batch(device)
        output = Sampler(mode.value)(self.LOGITS.to(device), batch)
        assert output.logprobs is not None
        assert output.logprobs.rows == [0, 2]
        chosen = output.token_ids[[0, 2]].cpu()
        numbers = []
        for row, params in ((0, batch.params[0]), (2, batch.params[2])):
            processed = torch.from_numpy(process_row(self.LOGITS[row].numpy(), params))
            kept = kept_ids(processed.numpy(), params)
            filtered = torch.full((4,), -torch.inf, dtype=torch.float64)
            filtered[kept] = processed[kept] / params.temperature
            values = filtered if mode.is_processed else self.LOGITS[row].double()
            numbers.append(values.log_softmax(0) if mode.is_normalised else values)
        want = torch.stack(numbers).float()
        own = want.gather(1, chosen[:, None])
        torch.testing.assert_close(output.logprobs.values[:, :1].cpu(), own, rtol=0, atol=1e-5)
        assert torch.equal(output.logprobs.token_ids[:, 0].cpu(), chosen)
        torch.testing.assert_close(output.logprobs.values[:, 1:].cpu(), want.topk(2).values, rtol=0, atol=1e-5)
        assert output.logprobs.ranks.tolist() == (want >= own).sum(1).tolist()

    def test_of_rows_without_a_distribution(self, device: str) -> None:
        batch = SamplingBatch(3, device)
        batch.extend([SamplingParams(logprobs=1), SamplingParams(logprobs=1), SamplingParams(logprobs=1)])
        logits = torch.tensor([[torch.nan] * 3, [torch.inf, 0.0, torch.inf], [torch.nan, 0.0, 0.0]])
        logprobs = Sampler()(logits.to(device), batch).logprobs
        assert logprobs is not None
        assert not logprobs.values.isnan().any()
        assert logprobs.values[1, 1].item() == pytest.approx(-0.6931, abs=1e-4)
        assert logprobs.values[2, 1].item() == pytest.approx(-0.6931, abs=1e-4)


class TestNoSynchronisation:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_step_never_waits_for_the_device(self, accelerator: str, dtype: torch.dtype) -> None:
        """Neither in a batch that stays, nor in one that has just changed."""
        params = requests(32)
        params[4] = dataclasses.replace(params[4], logprobs=3)
        batch = SamplingBatch(VOCAB_SIZE, accelerator)
        sampler = Sampler("processed_logprobs")
        batch.extend(params[:16])
        logits = [logits_of_step(step, list(range(32)), dtype).to(accelerator) for step in range(12)]
        with nobody_waits(accelerator):
            for step in range(12):
                if step == 4:
                    batch.extend(params[16:20])
                    batch.swap(1, 17)
                if step == 8:
                    batch.remove(2)
                sampler(logits[step][: len(batch)], batch)


class TestExplain:
    def test_tells_the_route_and_why(self) -> None:
        batch = SamplingBatch(32000)
        batch.extend([SamplingParams(top_k=50), SamplingParams(top_k=5000), SamplingParams(repetition_penalty=1.2)])
        explained = Sampler().explain(batch, torch.bfloat16)
        assert [one.row for one in explained] == [0, 1, 2]
        assert {one.route for one in explained} == {SamplingRoute.NATIVE}
        assert explained[1].reason == explained[0].reason
        assert "processed in float32" in explained[2].reason

    def test_on_the_emulated_npu(self, npu: str) -> None:
        batch = SamplingBatch(32000, npu)
        batch.add(SamplingParams(top_p=0.9))
        explained = Sampler().explain(batch, torch.bfloat16)
        assert explained[0].route is SamplingRoute.FUSED_SEGMENTS


class TestArguments:
    def test_unknown_modes_and_options(self) -> None:
        with pytest.raises(ValueError, match=r"Sampler: logprobs_mode must be one of raw_logprobs, .* got 'cooked'"):
            Sampler("cooked")
        with pytest.raises(TypeError, match="Sampler: keep_ties must be True or False, got int 1"):
            Sampler(keep_ties=1)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"batch": None}, "batch must be a SamplingBatch, got NoneType None"),
            ({"purpose": "DRAW"}, "purpose must be a Purpose, got str 'DRAW'"),
            ({"advance": "no"}, "advance must be True or False, got str 'no'"),
        ],
    )
    def test_arguments_of_another_kind(self, wrong: dict[str, Any], says: str) -> None:
        batch = SamplingBatch(4)
        batch.add(SamplingParams())
        with pytest.raises(TypeError, match=f"Sampler: {says}"):
            Sampler()(**{"logits": torch.zeros(1, 4), "batch": batch} | wrong)
        assert batch.position.tolist() == [0]

    @pytest.mark.parametrize(
        ("batch", "dtype", "says"),
        [
            (None, torch.float32, "batch must be a SamplingBatch, got NoneType None"),
            (SamplingBatch(4), "bfloat16", "dtype must be a dtype, got str 'bfloat16'"),
            (SamplingBatch(4), torch.float64, "logits must be float32, float16 or bfloat16, got torch.float64"),
        ],
    )
    def test_what_cannot_be_explained(self, batch: Any, dtype: Any, says: str) -> None:
        with pytest.raises(TypeError, match=f"Sampler: {says}"):
            Sampler().explain(batch, dtype)

    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
    def test_a_device_edits_once_whatever_is_asked_for(
        self, mode: str, npu: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        params = [
            *(SamplingParams(typical_p=0.9, seed=1), SamplingParams(top_k=5, logprobs=2, presence_penalty=0.5, seed=2)),
            *(SamplingParams(top_k=5, kept=True, seed=3), SamplingParams(mirostat_tau=3.0, top_k=2000, seed=4)),
        ]
        logits = torch.randn(len(params), 4000, generator=torch.Generator().manual_seed(1))
        outputs, edits = [], []
        edited = SamplingBatch.edited

        def noted(batch: SamplingBatch, *arguments: Any, **options: Any) -> Tensor | None:
            edits.append(batch.device.type)
            return edited(batch, *arguments, **options)

        monkeypatch.setattr(SamplingBatch, "edited", noted)
        for device in ("cpu", npu):
            batch = SamplingBatch(4000, device)
            batch.extend(params)
            outputs.append(Sampler(mode)(logits.to(device), batch))
        assert edits == ["npu"]
        assert outputs[0].token_ids.tolist() == outputs[1].token_ids.tolist()
        for output in outputs:
            assert output.logprobs is not None
            assert output.kept is not None
        here, there = (output.logprobs.values.cpu() for output in outputs if output.logprobs is not None)
        torch.testing.assert_close(here, there)

    def test_a_shard_of_another_kind(self) -> None:
        with pytest.raises(TypeError, match="Sampler: shard must be a VocabularyShard, got int 5"):
            Sampler(shard=5)  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(1, 4), (2, 5), (2, 4, 1), (8,)])
    def test_logits_that_do_not_fit_the_batch(self, shape: tuple[int, ...]) -> None:
        batch = SamplingBatch(4)
        batch.extend([SamplingParams(), SamplingParams()])
        with pytest.raises(ValueError, match="Sampler: logits must have"):
            Sampler()(torch.zeros(shape), batch)
        assert batch.position.tolist() == [0, 0]

    def test_errors_say_what_is_the_matter(self) -> None:
        batch, logits = SamplingBatch(4), torch.zeros(1, 6)
        batch.add(SamplingParams())
        with pytest.raises(ValueError, match=r"got \[1, 6\]\. Cut the padding off, as with logits\[:, :4\]"):
            Sampler()(logits, batch)
        with pytest.raises(ValueError, match=r"got \[1, 3\]\. Make the batch with vocab_size=3"):
            Sampler()(logits[:, :3], batch)
        with pytest.raises(TypeError, match=r"got SamplingBatch\. Give the model's output as the first argument"):
            Sampler()(batch, logits)  # type: ignore[arg-type]

    def test_logits_of_another_kind(self, npu: str) -> None:
        batch = SamplingBatch(4)
        batch.add(SamplingParams())
        with pytest.raises(TypeError, match=r"Sampler: logits must be .* got torch\.float64"):
            Sampler()(torch.zeros(1, 4, dtype=torch.float64), batch)
        with pytest.raises(ValueError, match="Sampler: logits must be on the device of the batch, cpu"):
            Sampler()(torch.zeros(1, 4, device=npu), batch)
