"""The adapter for transformers, on tiny models with random weights: everything but the draw is `generate`'s own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

import hostcann
from ascend_sample.integrations import _rows
from ascend_sample.integrations.transformers import SamplingLogitsProcessor, fused_sampling, split_warpers
from ascend_sample.sampling.requests import seeds

VOCAB_SIZE = 48
PAD = 0
SAMPLING = {"do_sample": True, "max_new_tokens": 10, "pad_token_id": PAD, "top_k": 12, "top_p": 0.9, "temperature": 0.8}


def make_model(kind: str) -> Any:
    torch.manual_seed(1)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": PAD,
        "initializer_range": 0.5,
    }
    if kind == "gpt2":
        config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **sizes)
        return GPT2LMHeadModel(config).eval()
    config = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, **sizes)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_model("llama")


def prompts() -> list[list[int]]:
    return [[1, 7, 9, 11], [1, 30], [1, 5, 6, 7, 8, 9, 10]]


def padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    return {"input_ids": ids, "attention_mask": torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])}


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.received: list[list[int]] = []
        self.has_ended = False

    def put(self, value: Tensor) -> None:
        self.received.append(value.flatten().tolist())

    def end(self) -> None:
        self.has_ended = True


def run(model: Any, rows: list[list[int]] | None = None, **settings: Any) -> Any:
    """What `generate` gives with the adapter; of three prompts, where none are given."""
    given = padded(prompts() if rows is None else rows)
    return model.generate(**given, **(SAMPLING | settings), custom_generate=fused_sampling)


class TestGreedy:
    @pytest.mark.parametrize("settings", [{"use_cache": False}, {"do_sample": True, "top_k": 1}])
    def test_equals_generate(self, model: Any, settings: dict[str, Any]) -> None:
        greedy = {"max_new_tokens": 12, "pad_token_id": PAD, "do_sample": False}
        plain = model.generate(**padded(prompts()), **greedy, eos_token_id=[])
        greedy["eos_token_id"] = sorted({int(plain[0, 9]), int(plain[2, 11])})
        expected = model.generate(**padded(prompts()), **(settings | greedy))
        found = model.generate(**padded(prompts()), **(greedy | settings), custom_generate=fused_sampling)
        assert torch.equal(found, expected)

    def test_outputs_equal_those_of_generate(self, model: Any) -> None:
        settings = {"do_sample": False, "max_new_tokens": 5, "pad_token_id": PAD, "repetition_penalty": 1.3}
        settings |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        settings |= {"output_hidden_states": True}
        expected = model.generate(**padded(prompts()), **settings)
        found = model.generate(**padded(prompts()), **settings, custom_generate=fused_sampling)
        assert found.keys() == expected.keys()
        assert torch.equal(found.sequences, expected.sequences)
        for name in ("scores", "logits"):
            assert all(type(entry) is Tensor for entry in found[name])
            assert all(map(torch.equal, found[name], expected[name]))
        assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()


class TestSeeds:
    def test_a_row_alone_and_in_another_order_is_the_row_of_a_batch(self, model: Any) -> None:
        seeds, order = [11, 2**63 + 5, 13], [2, 0, 1]
        batch = run(model, seeds=seeds)
        again = run(model, [prompts()[row] for row in order], seeds=[seeds[row] for row in order])
        assert torch.equal(batch[order], again)
        for row, (prompt, seed) in enumerate(zip(prompts(), seeds, strict=True)):
            new = run(model, [prompt], seeds=[seed])[0, len(prompt) :]
            in_batch = batch[row, batch.shape[1] - SAMPLING["max_new_tokens"] :]
            assert torch.equal(in_batch[: len(new)], new), row
            assert (in_batch[len(new) :] == PAD).all()

    def test_generation_in_two_parts(self, llama: Any) -> None:
        """Noise belongs to a position in the sequence, so a text that is continued goes on as it would have."""
        whole = run(llama, prompts()[:1], eos_token_id=[], seeds=[5])
        assert torch.equal(run(llama, whole[:, :8].tolist(), eos_token_id=[], max_new_tokens=6, seeds=[5]), whole)

    def test_sequences_of_one_prompt_differ(self, llama: Any) -> None:
        settings = {"num_return_sequences": 6, "eos_token_id": [], "top_k": 40, "temperature": 2.0, "seeds": 7}
        first = run(llama, **settings)
        assert torch.equal(first, run(llama, **settings))
        assert len({tuple(row) for row in first.tolist()}) == len(first) == 18

    def test_without_seeds_the_generator_of_torch_decides(self, llama: Any) -> None:
        texts = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            texts.append(run(llama, eos_token_id=[]))
        assert torch.equal(texts[0], texts[1])
        assert not torch.equal(texts[0], texts[2])

    @pytest.mark.parametrize(
        ("seeds", "got"),
        [
            ([1, 2], "2 of them"),
            ("123", "str '123'"),
            ([True, 1, 2], r"list \[True, 1, 2\]"),
            (1.5, "float 1.5"),
            (torch.ones(3, 1, dtype=torch.int64), r"a tensor of torch.int64 \[3, 1\]"),
        ],
    )
    def test_wrong_seeds(self, llama: Any, seeds: Any, got: str) -> None:
        with pytest.raises(ValueError, match=rf"fused_sampling: seeds must be None, an int, or 3 ints, .* got {got}\."):
            run(llama, seeds=seeds)

    def test_the_bits_of_a_seed(self) -> None:
        derived = [derived for seed in range(100) for derived in seeds.derive_seeds(seed, 100)]
        assert len(set(derived)) == 10_000
        assert seeds.seed_bits(2**63) == -(2**63)
        assert seeds.derive_seeds(2**64 - 1, 1) == [2**64 - 1]


class TestLoop:
    def test_scores_are_those_of_the_processors_in_their_order(self, llama: Any) -> None:
        """Only even ids, then the warpers: the nucleus is that of the even ids."""

        class OnlyEven(LogitsProcessor):
            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                return scores.masked_fill(torch.arange(VOCAB_SIZE) % 2 == 1, -torch.inf)

        # Of one length, because `generate` does not count padding as a repetition, and the warper below would.
        width, rows = 2, [row[:2] for row in prompts()]
        wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        settings = {"min_p": 0.02, "repetition_penalty": 1.2, "eos_token_id": [], "seeds": 3}
        found = run(llama, rows, **settings, **wanted, logits_processor=LogitsProcessorList([OnlyEven()]))
        warpers = [
            RepetitionPenaltyLogitsProcessor(1.2),
            OnlyEven(),
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(12),
        ]
        warpers += [TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)]
        for step, (scores, logits) in enumerate(zip(found.scores, found.logits, strict=True)):
            expected = logits
            for warper in warpers:
                expected = warper(found.sequences[:, : width + step], expected)
            torch.testing.assert_close(scores, expected)
            assert (scores.gather(1, found.sequences[:, width + step, None]) > -torch.inf).all()

    def test_criteria_stop_it(self, llama: Any) -> None:
        class AfterThree(StoppingCriteria):
            def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
                return torch.full((len(input_ids),), input_ids.shape[1] >= 10)

        criteria = StoppingCriteriaList([AfterThree(), MaxLengthCriteria(60)])
        assert run(llama, stopping_criteria=criteria).shape == (3, 10)

    def test_a_streamer_gets_the_prompt_and_each_token(self, llama: Any) -> None:
        streamer = Recorder()
        found = run(llama, prompts()[:1], seeds=5, token_streamer=streamer)
        assert [token for part in streamer.received for token in part] == found[0].tolist()
        assert streamer.has_ended

    def test_embeddings_as_the_prompt(self, llama: Any) -> None:
        """They have no ids, but as many positions: the same tokens are drawn."""
        (prompt,) = rows = prompts()[2:]
        embeddings = llama.get_input_embeddings()(torch.tensor(rows))
        found = llama.generate(inputs_embeds=embeddings, **SAMPLING, custom_generate=fused_sampling, seeds=5)
        assert torch.equal(found, run(llama, rows, seeds=5)[:, len(prompt) :])

    def test_beams_are_refused(self, llama: Any) -> None:
        with pytest.raises(ValueError, match=r"fused_sampling: the generation mode must be sampling or greedy search"):
            run(llama, do_sample=False, num_beams=2)

    def test_a_loop_that_draws_itself_is_noticed(self, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def own_loop(input_ids: Tensor, logits_processor: Any, **others: Any) -> Tensor:
            scores = logits_processor(input_ids, torch.zeros(len(input_ids), VOCAB_SIZE))
            return scores.softmax(1).multinomial(1)

        monkeypatch.setattr(llama, "_sample", own_loop)
        with pytest.raises(RuntimeError, match=r"did not take the token that was drawn"):
            run(llama)


def test_only_the_trailing_run_of_warpers_in_order_is_taken() -> None:
    temperature, top_k, top_p = TemperatureLogitsWarper(0.5), TopKLogitsWarper(5), TopPLogitsWarper(0.9)
    min_p, penalty, typical = MinPLogitsWarper(0.1), RepetitionPenaltyLogitsProcessor(1.1), TypicalLogitsWarper(0.9)
    everything = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
    assert split_warpers([penalty, temperature, top_k, top_p, min_p]) == ([penalty], everything)
    assert split_warpers([temperature, top_k, typical]) == ([temperature, top_k, typical], {})
    assert split_warpers([top_k, temperature]) == ([top_k], {"temperature": 0.5})
    assert split_warpers([top_p, top_p]) == ([top_p], {"top_p": 0.9})
    assert split_warpers([]) == ([], {})
    for other in (  # they do something else
        TopKLogitsWarper(5, filter_value=-9.0),
        TopPLogitsWarper(0.9, min_tokens_to_keep=2),
        type("Mine", (TopKLogitsWarper,), {})(4),
    ):
        assert split_warpers([other]) == ([other], {})


class TestKeptSets:
    def test_a_larger_vocabulary_after_a_smaller_one(self) -> None:
        """What was made for as many rows before holds no more than the parameters."""
        processor = SamplingLogitsProcessor(top_k=20)
        for columns, kept in ((5, 5), (50, 20), (5, 5)):
            found = processor(None, torch.arange(2.0 * columns).view(2, columns))
            assert (found > -torch.inf).sum(dim=1).tolist() == [kept, kept]

    def test_equal_those_of_the_warpers(self) -> None:
        """On rows of numbers that are no bound of a filter, nor near one."""
        logits = torch.randn(500, 100, generator=torch.Generator().manual_seed(5)) * 2
        for temperature, top_k, top_p, min_p in ((0.4, 7, 0.83, 0.0), (1.7, 80, 0.9123, 0.0), (1.1, 30, 0.97, 0.0717)):
            warped = logits
            for warper in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
                warped = warper(None, warped)
            warped = MinPLogitsWarper(min_p)(None, warped)
            found = SamplingLogitsProcessor(temperature, top_k, top_p, min_p)(None, logits)
            torch.testing.assert_close(found, warped)

    def test_ties(self) -> None:
        logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]])
        assert SamplingLogitsProcessor(top_k=2)(None, logits).isfinite().tolist() == [[False, True, True, False, False]]
        kept = SamplingLogitsProcessor(top_k=2, keep_ties=True)(None, logits)
        assert torch.equal(kept, TopKLogitsWarper(2)(None, logits))

    def test_wrong_calls(self, llama: Any) -> None:
        for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 2.0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                SamplingLogitsProcessor(**wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^SamplingLogitsProcessor: keep_ties must be True or False, got "):
            SamplingLogitsProcessor(top_k=2, keep_ties=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^fused_sampling: keep_ties must be True or False, got "):
            run(llama, keep_ties="no")
        with pytest.raises(ValueError, match=r"filter_logits: logits must have shape .rows, vocab_size. .* got \[5\]"):
            SamplingLogitsProcessor(top_k=2)(None, torch.ones(5))


class TestDevices:
    @pytest.mark.parametrize(
        "parameters",
        [{}, {"top_k": 5, "keep_ties": True}, {"top_k": 300}, {"top_p": 0.7, "min_p": 0.1}, {"temperature": 0.0}],
    )
    def test_the_same_is_kept(self, accelerator: str, parameters: dict[str, Any]) -> None:
        logits = torch.randn(16, 1000) * 3
        logits[1, 5], logits[2, 3:5] = torch.nan, torch.inf
        processor = SamplingLogitsProcessor(**parameters)
        for _ in range(2):
            found = processor(None, logits.to(accelerator)).cpu()
            torch.testing.assert_close(found, processor(None, logits), rtol=1e-6, atol=0)

    @pytest.mark.parametrize("settings", [SAMPLING, {**SAMPLING, "top_k": 0, "top_p": 1.0}, {"do_sample": False}])
    def test_generate_draws_what_a_cpu_draws_of_the_same_logits(
        self, accelerator: str, settings: dict[str, Any]
    ) -> None:
        settings = {"max_new_tokens": 10, "pad_token_id": PAD, **settings, "eos_token_id": []}
        settings |= {"return_dict_in_generate": True, "output_logits": True}
        model, prompt = make_model("llama").to(accelerator), padded(prompts())
        given = {name: tensor.to(accelerator) for name, tensor in prompt.items()}
        found = model.generate(**given, **settings, custom_generate=fused_sampling, seeds=[1, 2, 3])
        names = ("temperature", "top_k", "top_p")
        values = {name: settings[name] for name in names if settings.get(name)} or {"temperature": 0.0}
        rows, seed, position = _rows.UniformRows(**values), torch.tensor([1, 2, 3]), prompt["attention_mask"].sum(1)
        drawn = [rows.draw(logits.cpu(), seed, position + step) for step, logits in enumerate(found.logits)]
        assert torch.equal(found.sequences[:, -10:].cpu(), torch.stack(drawn, 1))

    @pytest.mark.parametrize(
        ("settings", "launches", "copies"),
        [(SAMPLING, 7, 1), ({**SAMPLING, "top_k": 0, "top_p": 1.0}, 14, 1), ({"do_sample": False}, 2, 0)],
    )
    def test_what_a_draw_costs_a_device(
        self,
        counting: None,
        npu: str,
        monkeypatch: pytest.MonkeyPatch,
        settings: dict[str, Any],
        launches: int,
        copies: int,
    ) -> None:
        """The host makes the noise, and what the rows ask for is sent once: nothing waits beyond transformers' loop."""
        settings = {"max_new_tokens": 10, "pad_token_id": PAD, **settings, "eos_token_id": []}
        model = make_model("llama").to(npu)
        given = {name: tensor.to(npu) for name, tensor in padded(prompts()).items()}
        draws, drawn = [], _rows.UniformRows.draw

        def draw(*arguments: Any) -> Tensor:
            with hostcann.profile() as counted:
                token_ids = drawn(*arguments)
            draws.append(counted)
            return token_ids

        monkeypatch.setattr(_rows.UniformRows, "draw", draw)
        with hostcann.profile() as with_ours:
            model.generate(**given, **settings, custom_generate=fused_sampling)
        with hostcann.profile() as plain:
            model.generate(**given, **settings)
        assert len(draws) == 10
        for counted in draws[1:]:
            assert sum(counted.launches.values()) <= launches
            assert sum(counted.copies.values()) == counted.copies.get("h2d", 0) <= copies
        waits = [sum(counted.synchronizations.values()) for counted in (with_ours, plain)]
        assert waits[0] <= waits[1] + 2  # for the lengths of the prompts, once

    @pytest.mark.parametrize(
        ("parameters", "launches"), [({"top_k": 50}, 8), ({"temperature": 0.8, "top_k": 50, "top_p": 0.9}, 10)]
    )
    def test_what_is_kept_costs_a_device_few_launches(
        self, counting: None, npu: str, parameters: dict[str, Any], launches: int
    ) -> None:
        processor, logits = SamplingLogitsProcessor(**parameters), torch.randn(4, 32000).to(npu)
        processor(None, logits)
        with hostcann.profile() as counted:
            processor(None, logits)
        assert sum(counted.launches.values()) <= launches
        assert not counted.copies
        assert not any(counted.synchronizations.values())
