"""What a newcomer may do wrong with any strategy: what was wrong is named, and no error of torch is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import model as model_module
from ascend_sample.decoding import steps
from ascend_sample.decoding.beams import run
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.drafters import ModelDrafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample, sample_and_rank
from tests.decoding.planting import Trap, noticed
from tests.decoding.table_models import WithoutCache, random_table, table_model
from tests.decoding.tiny_transformers import step_model, tiny_transformer

Strategy = Callable[..., Any]
GROUPS: dict[str, Any] = {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5}
STRATEGIES: dict[str, Strategy] = {
    "greedy_search": greedy_search,
    "sample": sample,
    "sample_and_rank": lambda *given, **options: sample_and_rank(*given, num_samples=2, **options),
    "beam_search": lambda *given, **options: beam_search(*given, num_beams=2, **options),
    "beam_search in the beam": lambda *given, **options: beam_search(
        *given, num_beams=2, finished="in_beam", **options
    ),
    "beam_sample": lambda *given, **options: beam_sample(*given, num_beams=2, **options),
    "group_beam_search": lambda *given, **options: group_beam_search(*given, **GROUPS, **options),
    "contrastive_search": contrastive_search,
    "speculative_sample": lambda *given, **options: speculative_sample(*given, drafter=NGramDrafter(), **options),
}
WITHOUT_STEPS = ("speculative_sample",)
IDS = torch.tensor([[1, 2], [3, 0]])
TABLE, STATES = random_table(), random_table(seed=1)
MODEL = ModuleModel(lambda input_ids: (TABLE[input_ids], STATES[input_ids]))


class Returns(WithoutCache):
    """A `StepModel` whose passes return what they are told to."""

    def __init__(self, prefill: Any = None, decode: Any = None) -> None:
        self.of_prefill = StepOutput(torch.zeros(2, 11), None, torch.zeros(2, 2, 3)) if prefill is None else prefill
        self.of_decode = decode

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.of_prefill

    def decode(self, tokens: Tensor, cache: Any) -> Any:
        return self.of_decode


class Widening(WithoutCache):
    """A `StepModel` whose steps have more columns than its prompts, or fewer."""

    def __init__(self, columns: int) -> None:
        self.columns = columns

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> StepOutput:
        return StepOutput(torch.zeros(len(input_ids), 11), None, torch.ones(*input_ids.shape, 3))

    def decode(self, tokens: Tensor, cache: Any) -> StepOutput:
        return StepOutput(torch.zeros(*tokens.shape, 11 + self.columns), None, torch.ones(*tokens.shape, 3))


def of_last(input_ids: Tensor) -> Tensor:
    return TABLE[input_ids[:, -1]]


def embedding(device: str) -> torch.nn.Module:
    return torch.nn.Embedding(11, 11, device=device)


MODELS: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: ModuleModel(of_last), {}, ValueError,
     r"^ModuleModel: module of_last must return logits \[2, 2, vocab_size\], .*, got a tensor of .* \[2, 11\]"),
    (lambda: ModuleModel(lambda input_ids: (TABLE[input_ids], STATES)), {}, ValueError,
     r"^ModuleModel: module <lambda> must return hidden states \[2, 2, hidden_size\], .*, got a .* \[11, 11\]"),
    (lambda: ModuleModel(lambda input_ids: TABLE[input_ids].tolist()), {}, TypeError,
     r"^ModuleModel: module <lambda> must return logits .*, got list"),
    (lambda: ModuleModel(tiny_transformer("gpt2")), {}, TypeError,
     r"^ModuleModel: module GPT2LMHeadModel must return logits .*, got CausalLM(?=.*into CausalModel\.$)"),
    (lambda: Returns(torch.zeros(2, 11)), {}, TypeError,
     r"^{name}: model Returns must return a StepOutput, got a tensor of torch.float32 \[2, 11\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 1, 11), None)), {}, ValueError,
     r"^{name}: model Returns must return real logits \[2, vocab_size\], got a tensor of torch.float32 \[2, 1, 11\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 0), None)), {}, ValueError, "^{name}: model .* must return real log"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11) * 1j, None)), {}, ValueError, "^{name}: .* real logits .*complex"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11), None, torch.zeros(2, 3))), {}, ValueError,
     r"^{name}: model Returns must return hidden states \[2, 2, hidden_size\] or None, got .* \[2, 3\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11), None, torch.zeros(2, 1, 3))), {}, ValueError,
     r"^{name}: model Returns must return hidden states \[2, 2, hidden_size\] or None, got .* \[2, 1, 3\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11), None, torch.zeros(1, 2, 3))), {}, ValueError,
     r"^{name}: model Returns must return hidden states \[2, 2, hidden_size\] or None, got .* \[1, 2, 3\]"),
    (lambda: Returns(decode=StepOutput(torch.zeros(2, 11), None)), {}, ValueError,
     r"^{name}: model Returns must return real logits \[\d+, \d+, 11\], got a tensor of .* \[2, 11\]"),
    (lambda: Widening(-2), {}, ValueError,
     r"^{name}: model Widening must return real logits \[\d+, \d+, 11\], got a tensor of .* \[\d+, \d+, 9\]"),
    (lambda: Widening(2), {}, ValueError,
     r"^{name}: model Widening must return real logits \[\d+, \d+, 11\], got a tensor of .* \[\d+, \d+, 13\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11, device="meta"), None)), {}, ValueError,
     "^{name}: input_ids must be on the device of what Returns returns, meta, got cpu"),
    (lambda: ModuleModel(lambda input_ids: TABLE[input_ids + 9]), {}, ValueError,
     "^{name}: input_ids must be what ModuleModel can read, got tokens up to 3 in 2 columns, and IndexError: index"),
    (lambda: MODEL, {"encoder": {"memory": IDS}}, ValueError,
     r"^ModuleModel: encoder must be what <lambda> takes, \(input_ids\), got \['memory'\]: got an unexpected keyword"),
    (lambda: MODEL, {"encoder": {"input_ids": IDS}}, ValueError, "^ModuleModel: encoder must .*: multiple values"),
    (Returns, {"encoder": {"memory": IDS}}, ValueError, "^{name}: encoder must be what Returns takes, .*unexpected"),
    (lambda: step_model("gpt2"), {"encoder": {"input_ids": IDS}}, TypeError,
     r"^CausalModel: encoder must be empty, got \['input_ids'\]"),
    (lambda: step_model("gpt2"), {"encoder": {"attention_mask": IDS > 0}}, TypeError,
     r"^CausalModel: encoder must be empty, got \['attention_mask'\]"),
    (lambda: step_model("t5"), {"encoder": {"input_ids": IDS, "attention_mask": IDS > 0}}, TypeError,
     r"^EncoderDecoderModel: encoder must name inputs as encoder_input_ids .*, got \['input_ids', 'attention_mask'\]"),
    (lambda: step_model("t5"), {}, TypeError, "^EncoderDecoderModel: encoder must name inputs as .*, got nothing"),
]  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("make", "options", "error", "message"), MODELS)
def test_what_is_wrong_with_a_model_is_said(
    name: str, make: Callable[[], Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("{name}", name.split()[0]) + r".*\. [A-Z]"):
        STRATEGIES[name](make(), IDS, max_new_tokens=3, **options)


def test_prompts_on_another_device_than_the_model(npu: str) -> None:
    message = "^greedy_search: input_ids must be on the device of ModuleModel, npu:0, got cpu. Move all inputs"
    with pytest.raises(ValueError, match=message):
        greedy_search(ModuleModel(embedding(npu)), IDS, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^beam_search: input_ids must be on .* of ModuleModel, cpu, got npu:0"):
        beam_search(ModuleModel(embedding("cpu")), IDS.to(npu), max_new_tokens=1, num_beams=2)


def test_an_error_of_the_model_stays_its_own() -> None:
    def fail(input_ids: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        greedy_search(ModuleModel(fail), IDS, max_new_tokens=1)


class Nothing:
    def __call__(self, input_ids: Tensor, scores: Any) -> Any:
        return None


def first_column(input_ids: Tensor, scores: Any) -> Any:
    return scores[:, 0]


RESULTS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    ("logits_processor", Nothing(), TypeError, r"Nothing must return scores \[\d, 11\], got NoneType None"),
    ("logits_processor", first_column, ValueError, r"first_column must return scores \[\d, 11\], got a .* \[\d\]"),
    ("stopping_criteria", Nothing(), TypeError, r"Nothing must return a bool, or a bool .* \[\d\], got NoneType"),
    ("stopping_criteria", lambda ids, scores: [True], TypeError, r"<lambda> must return a bool.*, got list \[True\]"),
    ("stopping_criteria", lambda ids, scores: torch.zeros(len(ids)), ValueError, r".*, got a .* of torch.float32 \["),
    ("stopping_criteria", lambda ids, scores: ids[:, 0], ValueError, r".*, got a tensor of torch.int64 \["),
    ("stopping_criteria", lambda ids, scores: torch.ones(1) > 0, ValueError, r".*, got a tensor of torch.bool \[1\]"),
    ("stopping_criteria", lambda ids, scores: torch.ones(3) > 0, ValueError, r".*, got a tensor of torch.bool \[3\]"),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in WITHOUT_STEPS])
@pytest.mark.parametrize(("option", "callback", "error", "message"), RESULTS)
def test_what_a_callback_returns_is_checked(
    name: str, option: str, callback: Callable[..., Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"^{name.split()[0]}: {option} {message}.*\. [A-Z]"):
        STRATEGIES[name](MODEL, IDS, max_new_tokens=3, **{option: [callback]})


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in WITHOUT_STEPS])
def test_a_criterion_may_speak_for_all_rows(name: str) -> None:
    for answer in (True, torch.tensor(True), (TABLE[0, 0] == TABLE[0, 0]).numpy()[()]):
        output = STRATEGIES[name](MODEL, IDS, max_new_tokens=3, stopping_criteria=[lambda ids, scores, it=answer: it])
        assert output.lengths.tolist() == [1, 1]


DRAFTERS = [
    (ModuleModel, "the class ModuleModel"),
    (tiny_transformer, "_lru_cache_wrapper without prefill, decode, expand, reorder, rollback"),
    (None, "NoneType without prefill"),
    ("ngram", "str without prefill"),
]


@pytest.mark.parametrize(("drafter", "got"), DRAFTERS)
def test_a_drafter_must_be_a_drafter_or_a_model(drafter: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"^speculative_sample: drafter must be a StepModel or a Drafter, got {got}"):
        speculative_sample(MODEL, IDS, drafter=drafter, max_new_tokens=2)
    with pytest.raises(TypeError, match=f"^ModelDrafter: model must be a StepModel, got {got}"):
        ModelDrafter(drafter)


def test_what_a_drafting_model_returns_is_checked() -> None:
    for drafter in (Returns(torch.zeros(2, 11)), Returns(decode=StepOutput(torch.zeros(2, 11), None))):
        with pytest.raises((TypeError, ValueError), match=r"^ModelDrafter: model Returns must return .*got a tensor"):
            speculative_sample(MODEL, IDS, drafter=drafter, max_new_tokens=4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_integer_logits_become_floats(name: str) -> None:
    table = (TABLE * 3).round()
    options: dict[str, Any] = {"max_new_tokens": 4}
    if name in ("sample", "sample_and_rank", "beam_sample", "speculative_sample"):
        options["generator"] = torch.Generator()
    texts = []
    for logits in (table, table.to(torch.int32), table.double()):
        if "generator" in options:
            options["generator"].manual_seed(3)
        model = ModuleModel(lambda input_ids, it=logits: (it[input_ids], STATES[input_ids]))
        texts.append(STRATEGIES[name](model, IDS, **options).to_lists())
    assert texts[1:] == texts[:1] * 2


def beams_refuse_a_processors_none() -> None:
    test_what_a_callback_returns_is_checked("beam_search", *RESULTS[0])


TRAPS = [
    Trap("a processor of beams is not checked", run, "apply_processors(self.request, sequences, log_probs)",
         "self.request.logits_processor[0](sequences, log_probs)", beams_refuse_a_processors_none),
    Trap("one criterion's row is spread over all", steps, "met.shape not in ((), (rows,))", "met.dim() > 1",
         lambda: test_what_a_callback_returns_is_checked("greedy_search", *RESULTS[6])),
    Trap("any shape passes", model_module, "logits.shape[:-1] == places", "True",
         lambda: test_what_is_wrong_with_a_model_is_said("greedy_search", *MODELS[5])),
]  # fmt: skip


test_trap = noticed(TRAPS)


def test_a_prompt_that_the_drafter_alone_cannot_read_is_its_fault() -> None:
    with pytest.raises(ValueError, match=r"^speculative_sample: drafter must be able to read the prompts"):
        speculative_sample(MODEL, IDS, drafter=table_model(TABLE[:2]), max_new_tokens=4)
