"""Models of transformers as graphs: they decode as `EncoderDecoderModel` does, after any sequence of operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor

from ascend_sample.decoding import EncoderDecoderModel, beam_search, greedy_search
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.onnx import OnnxModel, export_onnx
from ascend_sample.decoding.onnx.transformers_parts import parts_of
from tests.decoding.onnx.onnx_checks import eager
from tests.decoding.paired_models import ONE_OF_EACH, TOLERANCE, compare_operations, ragged
from tests.decoding.tiny_transformers import KINDS, START, VOCAB_SIZE, encoder_inputs, tiny_transformer

FAMILIES = ("bart", "marian", "t5", "whisper")
OTHERS = ("m2m100", "pegasus", "umt5")
VARIED = {"t5": {"seed": 1}}  # of the model, where the texts of the usual one do not differ
ENDS = [2, 3, 7, 12]
INPUTS = 64  # for each family and strategy, in batches of 1 to 4


def models_of(model: Any) -> tuple[StepModel, StepModel]:
    """A model in torch, and its graphs as torch runs them."""
    encoder, decoder, example, _ = parts_of(model)
    return EncoderDecoderModel(model), eager(encoder, decoder, example)


def variant(kind: str, changes: dict[str, Any]) -> Any:
    """A model of a family with another configuration."""
    made = KINDS[kind]
    with mock.patch.dict(KINDS, {"variant": made._replace(values={**made.values, **changes})}):
        return tiny_transformer.__wrapped__("variant")


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, StepModel, StepModel]:
    """A family, its model in torch, and on onnxruntime."""
    model = tiny_transformer(request.param, **VARIED.get(request.param, {}))
    directory = tmp_path_factory.mktemp(request.param)
    export_onnx(model, directory)
    return request.param, EncoderDecoderModel(model), OnnxModel(directory, threads=1)


def make_batch(kind: str, rows: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Starts of several lengths, with padding anywhere, and sources of several lengths."""
    return *ragged(rows, longest, VOCAB_SIZE, seed), encoder_inputs(kind, rows, seed)


def check(kind: str, model: Any) -> None:
    """Equal logits after decodes, expansions, reorders and rollbacks."""
    for seed, operations in enumerate(ONE_OF_EACH):
        compare_operations(models_of(model), make_batch(kind, 2 + seed, 3, seed), VOCAB_SIZE, operations, seed)


@pytest.mark.parametrize("kind", FAMILIES)
def test_operations_equal_torch(kind: str) -> None:
    check(kind, tiny_transformer(kind))


@pytest.mark.long
class TestOnOnnxruntime:
    def test_any_sequence_of_operations_equals_torch(self, pair: tuple[str, StepModel, StepModel]) -> None:
        kind, *models = pair
        for seed, operations in enumerate(("ddd", "doedbdoob", "oedb", "bdd", "eodbdob", "")):
            batch = make_batch(kind, 1 + seed % 4, 1 + seed % 3, seed)
            compare_operations((models[0], models[1]), batch, VOCAB_SIZE, operations, seed)

    @pytest.mark.parametrize("finished", ["pool", "in_beam"])
    def test_n_best_is_torchs(self, pair: tuple[str, StepModel, StepModel], finished: Any) -> None:
        ended = unfinished = 0
        for rows, seed in batches():
            options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "finished": finished}
            options |= {"max_new_tokens": 6, "eos_token_id": ENDS, "encoder": encoder_inputs(pair[0], rows, seed)}
            expected, found = (beam_search(model, torch.full((rows, 1), START), **options) for model in pair[1:])
            assert found.to_lists() == expected.to_lists()
            torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=TOLERANCE)
            ended += sum(tokens[-1] in ENDS for tokens in expected.to_lists())
            unfinished += sum(tokens[-1] not in ENDS for tokens in expected.to_lists())
        assert ended > 5
        assert unfinished > 5

    def test_the_last_position_is_known(self, pair: tuple[str, Any, Any]) -> None:
        """What needs more is refused before the model is called; columns that are padding everywhere need none."""
        kind, model, exported = pair
        most = exported.max_positions
        assert most == model.max_positions == (None if kind == "t5" else 96)
        if most is None:
            return
        mask = torch.zeros(2, most + 4, dtype=torch.bool)
        mask[0, 3:5] = mask[1, -1] = True
        given: dict[str, Any] = {"attention_mask": mask, "encoder": encoder_inputs(kind, 2), "eos_token_id": ENDS}
        expected, found = (
            greedy_search(one, mask.long() * START, max_new_tokens=most - 1, **given).to_lists()
            for one in (model, exported)
        )
        assert found == expected
        with pytest.raises(ValueError, match=r"^greedy_search: max_new_tokens must need at most the 96 positions of"):
            greedy_search(exported, mask.long() * START, max_new_tokens=most, **given)

    def test_torchs_default_device_changes_nothing(self, pair: tuple[str, StepModel, StepModel]) -> None:
        kind, _, exported = pair
        given: dict[str, Any] = {"encoder": encoder_inputs(kind, 2), "eos_token_id": ENDS}
        start = torch.full((2, 1), START)
        expected = beam_search(exported, start, max_new_tokens=5, num_beams=2, **given).to_lists()
        torch.set_default_device("meta")
        try:
            found = beam_search(exported, start, max_new_tokens=5, num_beams=2, **given).to_lists()
        finally:
            torch.set_default_device(None)
        assert found == expected


def batches() -> list[tuple[int, int]]:
    """(rows, seed) of batches of 1 to 4 in turn, `INPUTS` inputs at least."""
    sizes: list[tuple[int, int]] = []
    while sum(rows for rows, _ in sizes) < INPUTS:
        sizes.append((1 + len(sizes) % 4, len(sizes)))
    return sizes


@pytest.mark.parametrize("kind", ["bart", "marian", "t5"])
def test_the_encoders_mask_may_be_anything_that_transformers_takes(kind: str) -> None:
    """None, integers, padding on the left, holes; and what it hides is no token at all."""
    ids, start = torch.tensor([[5, 6, 7], [8, 9, 4]]), torch.full((2, 1), START)
    masks = [[[1, 1, 1], [1, 1, 1]], [[0, 1, 1], [0, 0, 1]], [[1, 0, 1], [0, 1, 0]], [[1, 0, 0], [1, 1, 0]]]
    for mask in (None, *map(torch.tensor, masks)):
        given_mask = {} if mask is None else {"encoder_attention_mask": mask}
        visible = ids if mask is None else ids.where(mask != 0, -100)
        expected, found = (
            model.prefill(start, encoder_input_ids=visible, **given_mask).logits
            for model in models_of(tiny_transformer(kind))
        )
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


TWO_VOCABULARIES = {
    "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 17, "tie_word_embeddings": False,
}  # fmt: skip
FEW_BUCKETS = {
    "tie_word_embeddings": False, "relative_attention_num_buckets": 4, "relative_attention_max_distance": 6,
    "num_decoder_layers": 3,
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bart", {"scale_embedding": True, "activation_function": "gelu_new"}),
    ("bart", {"decoder_ffn_dim": 24, "encoder_layers": 1}),
    ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    ("marian", TWO_VOCABULARIES),
    ("t5", {"feed_forward_proj": "gated-gelu", "d_kv": 6, "num_heads": 3}),
    ("t5", FEW_BUCKETS),
    ("t5", {"attn_implementation": "eager"}),
    ("whisper", {"decoder_layers": 3, "encoder_layers": 1}),
]


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_variants_of_the_families(kind: str, changes: dict[str, Any]) -> None:
    check(kind, variant(kind, changes))


def test_a_bias_of_the_logits_is_exported() -> None:
    model = variant("bart", {})
    model.final_logits_bias.copy_(torch.arange(VOCAB_SIZE) / 7)
    check("bart", model)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    model = tiny_transformer(kind)
    message = (
        "export_onnx: model must be an EncoderDecoder or, of transformers, one of BartForConditionalGeneration, "
        "MarianMTModel, T5ForConditionalGeneration, WhisperForConditionalGeneration, got "
        f"{type(model).__name__} "
    )
    with pytest.raises(TypeError, match=message):
        export_onnx(model, tmp_path)


@pytest.mark.parametrize("name", ["Other", "MarianMTModel"])
def test_a_class_derived_from_a_known_one_is_refused(name: str, tmp_path: Path) -> None:
    class Other(transformers.MarianMTModel):
        pass

    Other.__name__ = name
    with pytest.raises(TypeError, match=rf"model must be an EncoderDecoder or, .*, got {name}"):
        export_onnx(Other(tiny_transformer("marian").config).eval(), tmp_path)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (lambda model: model.train(), {}, "model must be in evaluation mode"),
    (lambda model: model.half(), {}, "model must be float32 on the CPU, got torch.float16"),
    (lambda model: model, {"example": {"input_ids": torch.zeros(2, 2)}}, "example must be left out with MarianMTM"),
    (lambda model: model, {"dynamic_axes": {"x": {1: "y"}}}, "example must be left out with MarianMTModel, got"),
]


@pytest.mark.parametrize(("prepare", "arguments", "message"), BAD)
def test_bad_exports(prepare: Any, arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = prepare(transformers.MarianMTModel(tiny_transformer("marian").config).eval())
    with pytest.raises(ValueError, match=f"export_onnx: {message}"):
        export_onnx(model, tmp_path / "graphs", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_source_of_padding_alone_is_refused() -> None:
    ids, mask = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[0, 0], [1, 1]])
    _, graphs = models_of(tiny_transformer("marian"))
    with pytest.raises(ValueError, match=r"encoder must have a length of at least 1 in each row, got \[0, 2"):
        graphs.prefill(torch.full((2, 1), START), encoder_input_ids=ids, encoder_attention_mask=mask)
