"""The exported graphs on onnxruntime: what torch computes, for all sizes, after any sequence of operations."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ascend_sample.decoding import (
    Decoder,
    DecoderConfig,
    EncoderDecoder,
    EncoderDecoderModel,
    beam_search,
    greedy_search,
)
from ascend_sample.decoding.onnx import OnnxModel, export, export_onnx
from tests.decoding import decoder_models
from tests.decoding.decoder_models import encoder_batch, random_encoder_decoder
from tests.decoding.onnx.test_graphs import DYNAMIC_AXES, EXAMPLE, FAMILIES
from tests.decoding.paired_models import SEQUENCES, TOLERANCE, compare_operations, examples, ragged
from tests.decoding.test_threads import MAX_NEW_TOKENS, check_concurrent_calls
from tests.decoding.tiny_transformers import START, VOCAB_SIZE, encoder_inputs, tiny_transformer
from tests.support.warm_python import run_warm

LONG = pytest.mark.long  # an export takes half a minute
DECODER = "EncoderDecoder"
VARIED = {"t5": {"seed": 1}}  # of the model, where the texts of the usual one do not differ
BATCHES = 45


class Pair(NamedTuple):
    """A model in torch and on onnxruntime."""

    kind: str
    torch: Any
    runtime: Any
    directory: Path

    @property
    def vocab_size(self) -> int:
        return decoder_models.VOCAB_SIZE if self.kind == DECODER else VOCAB_SIZE

    def make_batch(self, rows: int, frames: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Prompts, their mask and what the encoder takes."""
        if self.kind == DECODER:
            return encoder_batch(rows, frames, longest, seed)
        return *ragged(rows, longest, VOCAB_SIZE, seed), encoder_inputs(self.kind, rows, seed)

    def compare(self, rows: int, frames: int, longest: int, operations: str, seed: int) -> None:
        batch = self.make_batch(rows, frames, longest, seed)
        compare_operations((self.torch, self.runtime), batch, self.vocab_size, operations, seed)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    @functools.cache
    def make(kind: str) -> Pair:
        directory = tmp_path_factory.mktemp("onnx") / "made" / "with what is above"
        if kind == DECODER:
            model = random_encoder_decoder()
            export_onnx(model, directory, EXAMPLE, DYNAMIC_AXES)
            return Pair(kind, model, OnnxModel(directory, threads=1), directory)
        module = tiny_transformer(kind, **VARIED.get(kind, {}))
        export_onnx(module, directory)
        return Pair(kind, EncoderDecoderModel(module), OnnxModel(directory, threads=1), directory)

    return make


@pytest.fixture
def decoder(exported: Callable[[str], Pair]) -> Pair:
    return exported(DECODER)


@LONG
@pytest.mark.parametrize("kind", [DECODER, *FAMILIES])
class TestEach:
    def test_operations_equal_torch(self, kind: str, exported: Callable[[str], Pair]) -> None:
        """With batch 1, one frame and a first step whose past is empty: sizes that exporters take for constants."""
        pair = exported(kind)
        for rows, frames in ((1, 1), (1, 3), (1, 40), (2, 1), (9, 40)):
            pair.compare(rows, frames, 1, "dodd", seed=rows)
        for seed, operations in enumerate(("ddd", "doedbdoob", "oedb", "bdd", "eodbdob", "")):
            pair.compare(1 + seed % 4, 5, 1 + seed % 3, operations, seed)

    def test_n_best_is_torchs(self, kind: str, exported: Callable[[str], Pair]) -> None:
        """Batches of 1 to 9 inputs; a decoder's memories have 3 to 40 places."""
        pair, lists, ended = exported(kind), 0, 0
        ends = [8, 13] if kind == DECODER else [2, 3, 7, 12]
        for seed in range(BATCHES):
            rows, frames = 1 + seed % 9, 3 + 37 * seed // (BATCHES - 1)
            options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 8}
            options |= {"finished": "in_beam" if seed % 2 else "pool", "eos_token_id": ends}
            options["encoder"] = pair.make_batch(rows, frames, 1, seed)[2]
            start = torch.full((rows, 1), START)
            expected, found = (beam_search(model, start, **options) for model in (pair.torch, pair.runtime))
            assert found.to_lists() == expected.to_lists()
            torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=TOLERANCE)
            lists += rows
            ended += sum(tokens[-1] in ends for tokens in found.to_lists())
        assert lists >= 200
        assert 5 < ended < 3 * lists - 5

    def test_the_last_position_is_known(self, kind: str, exported: Callable[[str], Pair]) -> None:
        """What needs more is refused before the model is called; columns that are padding everywhere need none."""
        pair = exported(kind)
        most = pair.runtime.max_positions
        assert most == getattr(pair.torch, "max_positions", None) == (None if kind in ("t5", DECODER) else 96)
        if most is None:
            return
        mask = torch.zeros(2, most + 4, dtype=torch.bool)
        mask[0, 3:5] = mask[1, -1] = True
        given: dict[str, Any] = {"attention_mask": mask, "encoder": encoder_inputs(kind, 2), "eos_token_id": 2}
        expected, found = (
            greedy_search(one, mask.long() * START, max_new_tokens=most - 1, **given).to_lists()
            for one in (pair.torch, pair.runtime)
        )
        assert found == expected
        with pytest.raises(ValueError, match=r"^greedy_search: max_new_tokens must need at most the 96 positions of"):
            greedy_search(pair.runtime, mask.long() * START, max_new_tokens=most, **given)


@LONG
class TestOfADecoder:
    @settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(frames=st.integers(1, 9), **SEQUENCES)
    def test_any_sequence_of_operations_equals_torch(
        self, decoder: Pair, operations: str, rows: int, frames: int, longest: int, seed: int
    ) -> None:
        decoder.compare(rows, frames, longest, operations, seed)

    def test_a_call_finds_in_threads_what_it_finds_alone(self, decoder: Pair) -> None:
        def prompts(seed: int) -> Any:
            return encoder_batch(len(MAX_NEW_TOKENS), 5, 4, seed)

        check_concurrent_calls(decoder.runtime, prompts, without=("contrastive_search",))

    def test_the_graph_takes_the_rows_and_rollbacks_need_no_room(self, decoder: Pair) -> None:
        """A reorder copies no keys and values: the step's graph does, by the index that it is given."""
        runtime = decoder.runtime
        input_ids, mask, encoder = encoder_batch(2, 4, 3, seed=1)
        cache = runtime.prefill(input_ids, mask, **encoder).cache
        reordered = runtime.reorder(runtime.expand(cache, 3), torch.tensor([5, 0, 1]))
        assert reordered.keys_values is cache.keys_values
        assert reordered.memory is cache.memory
        assert reordered.beam_index.tolist() == reordered.memory_index.tolist() == [1, 0, 0]
        grown = runtime.decode(torch.tensor([[1], [2], [3]]), reordered).cache
        assert grown.beam_index.tolist() == [0, 1, 2]
        assert grown.memory_index.tolist() == [1, 0, 0]
        assert grown.keys_values[0].shape == (2, 3, 1 + int(reordered.lengths.max()), 12)
        cache = runtime.prefill(torch.ones(2, 1, dtype=torch.int64), **encoder).cache
        for _ in range(5):
            cache = runtime.rollback(runtime.decode(torch.tensor([[1, 2], [3, 4]]), cache).cache, torch.tensor([2, 1]))
        assert cache.keys_values[0].shape[2] == 4

    def test_graphs_have_the_documented_inputs_and_outputs(self, decoder: Pair) -> None:
        graphs = [onnx.load(decoder.directory / file) for file in ("encoder.onnx", "decoder.onnx")]
        for graph in graphs:
            onnx.checker.check_model(graph, full_check=True)
            assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", export.OPSET)]
        frames, memory = [2, "batch", "frames", 12], [2, "memory_rows", "memory_length", 12]
        past, grown = [2, "past_rows", "past", 12], [2, "rows", "count + past", 12]
        assert [shapes_of(values) for graph in graphs for values in (graph.graph.input, graph.graph.output)] == [
            {"features": ["batch", "frames", 6], "lengths": ["batch"]},
            {"cross_keys": frames, "cross_values": frames, "memory_lengths": ["batch"]},
            {
                **{"tokens": ["rows", "count"], "lengths": ["rows"], "self_keys": past, "self_values": past},
                **{"beam_index": ["rows"], "cross_keys": memory, "cross_values": memory},
                **{"memory_lengths": ["memory_rows"], "memory_index": ["rows"]},
            },
            {"logits": ["rows", "count", 17], "new_self_keys": grown, "new_self_values": grown},
        ]

    def test_sessions_and_what_is_wrong_with_a_model(
        self, decoder: Pair, tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        session = decoder.runtime.decoder
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.get_session_options().intra_op_num_threads == 1
        with pytest.warns(UserWarning, match="'NoSuchProvider' is not in available provider names"):
            OnnxModel(decoder.directory, providers=("NoSuchProvider", "CPUExecutionProvider"))
        for file in ("encoder.onnx", "decoder.onnx"):
            (tmp_path / file).write_bytes((decoder.directory / "encoder.onnx").read_bytes())
        id_1, features = torch.tensor([[1]]), torch.zeros(1, 2, 6)
        prefill = decoder.runtime.prefill
        bad: list[tuple[Any, type[Exception], str]] = [
            (lambda: OnnxModel(tmp_path / "none"), FileNotFoundError, "directory must hold encoder.onnx, got "),
            (lambda: OnnxModel(tmp_path), ValueError, r"directory must hold graphs with \['tokens', .* got \['f"),
            (lambda: OnnxModel(decoder.directory, threads=0), ValueError, "threads must be at least 1, got 0"),
            (lambda: OnnxModel(decoder.directory, providers="CUDA"), TypeError, "providers must be a list of names"),
            (lambda: prefill(id_1, features=features), ValueError,
             r"encoder must have the names \['features', 'lengths'\], got \['features'\]"),
            (lambda: prefill(id_1, features=features.double(), lengths=torch.tensor([2])), TypeError,
             r"encoder\['features'\] must be a tensor of torch.float32, got a tensor of torch.float64"),
        ]  # fmt: skip
        for call, error, message in bad:
            with subtests.test(msg=message), pytest.raises(error, match=f"OnnxModel: {message}"):
                call()


def shapes_of(values: Any) -> dict[str, list[int | str]]:
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values
    }


@LONG
def test_many_weights_have_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than protobuf can hold; here, more than nothing."""
    monkeypatch.setattr(export, "LARGEST_SINGLE_FILE", 0)
    layer, batch = nn.Linear(40, 50).eval(), torch.export.Dim("batch")
    export._export(layer, (torch.zeros(2, 40),), ({0: batch},), ("x",), ("y",), tmp_path / "layer.onnx")
    assert (tmp_path / "layer.onnx.data").stat().st_size >= 4 * 40 * 50
    session = onnxruntime.InferenceSession(str(tmp_path / "layer.onnx"), providers=["CPUExecutionProvider"])
    values = torch.randn(3, 40)
    (found,) = session.run(None, {"x": values.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(values).detach(), rtol=1e-5, atol=1e-5)


class Pcm(nn.Module):
    """An encoder of whole numbers, as a microphone gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 8)

    def forward(self, pcm: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(pcm.float()[:, :, None]), lengths


@LONG
def test_an_encoder_may_take_any_dtype(tmp_path: Path) -> None:
    config = DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=1)
    model = EncoderDecoder(Pcm(), Decoder(config)).eval()
    encoder = {"pcm": torch.arange(10, dtype=torch.int16).view(2, 5), "lengths": torch.tensor([5, 3])}
    export_onnx(model, tmp_path, encoder, {"pcm": {1: "samples"}})
    start = torch.ones(2, 1, dtype=torch.int64)
    expected, found = model.prefill(start, **encoder).logits, OnnxModel(tmp_path).prefill(start, **encoder).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


WITHOUT_THE_EXTRA = """
import sys
sys.modules.update(onnxruntime=None, onnxscript=None)
from ascend_sample.decoding.onnx import OnnxModel, export_onnx
for call in (lambda: OnnxModel("x"), lambda: export_onnx(*"xyz")):
    try:
        call()
    except ImportError as error:
        print(error)
"""


def test_without_the_extra() -> None:
    """The module can be imported, and says what is missing when it is needed."""
    finished = run_warm(["-c", WITHOUT_THE_EXTRA], os.environ, Path.cwd(), seconds=300)
    finished.check_returncode()
    printed = finished.stdout.splitlines()
    for line, library in zip(printed, ("onnxruntime", "onnxscript"), strict=True):
        assert line.startswith(f"decoding.onnx: {library} must be installed, got: ")
        assert line.endswith("Install the extra: pip install 'ascend_sample[onnx]'")
