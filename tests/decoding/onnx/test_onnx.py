"""The exported graphs: what torch computes, for all sizes, after any sequence of the cache's operations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.models.transformer_decoder import Decoder, DecoderConfig, EncoderDecoder
from ascend_sample.decoding.onnx import OnnxModel, export, export_onnx
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.concurrent_calls import MAX_NEW_TOKENS, Prompts, check_concurrent_calls
from tests.decoding.decoder_models import random_encoder_decoder
from tests.decoding.onnx.onnx_checks import eager
from tests.decoding.paired_models import ONE_OF_EACH, SEQUENCES, TOLERANCE, compare_operations, examples, ragged
from tests.support.warm_python import run_warm

VOCAB_SIZE = 17
ENDS = [8, 13]
BATCHES = 45  # of 1 to 9 inputs, in turn
LONG = pytest.mark.long  # an export takes half a minute: the smallest one alone is in the quick tier
EXAMPLE = {"features": torch.zeros(3, 5, 6), "lengths": torch.full((3,), 5)}
DYNAMIC_AXES = {"features": {1: "frames"}}


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    return random_encoder_decoder()


@pytest.fixture(scope="module")
def exported(model: EncoderDecoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx") / "made" / "with what is above"
    export_onnx(model, directory, EXAMPLE, DYNAMIC_AXES)
    return directory


@pytest.fixture(scope="module")
def runtime(exported: Path) -> StepModel:
    return OnnxModel(exported, threads=1)


def make_batch(rows: int, frames: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, frames, 6, generator=generator)
    lengths = torch.randint(1, frames + 1, (rows,), generator=generator)
    return *ragged(rows, longest, VOCAB_SIZE, seed), {"features": features, "lengths": lengths}


def compare(model: Any, found: StepModel, rows: int, frames: int, longest: int, operations: str, seed: int) -> None:
    compare_operations((model, found), make_batch(rows, frames, longest, seed), VOCAB_SIZE, operations, seed)


def test_graphs_as_torch_runs_them_equal_torch(model: EncoderDecoder) -> None:
    graphs = eager(model.encoder, model.decoder, EXAMPLE)
    for seed in range(3):
        for operations in ONE_OF_EACH:
            compare(model, graphs, 3, 7, 4, operations, seed)


@LONG
def test_what_is_masked_does_not_matter(runtime: StepModel) -> None:
    input_ids, mask, encoder = make_batch(3, 5, 4, 0)
    expected = runtime.prefill(input_ids, mask, **encoder).logits
    assert runtime.prefill(input_ids.where(mask, -100), mask, **encoder).logits.equal(expected)


@LONG
def test_a_call_finds_in_threads_what_it_finds_alone(runtime: StepModel) -> None:
    def prompts(seed: int) -> Prompts:
        return Prompts(*make_batch(len(MAX_NEW_TOKENS), 5, 4, seed))

    check_concurrent_calls(runtime, prompts, without=("contrastive_search",))


@LONG
@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.integers(1, 9), **SEQUENCES)
def test_any_sequence_of_operations_equals_torch(
    model: EncoderDecoder, runtime: StepModel, operations: str, rows: int, frames: int, longest: int, seed: int
) -> None:
    compare(model, runtime, rows, frames, longest, operations, seed)


@LONG
def test_sizes_that_exporters_take_for_constants(model: EncoderDecoder, runtime: StepModel) -> None:
    """Batch 1, one frame, and the first step, whose past is empty."""
    for rows, frames in ((1, 1), (1, 3), (1, 40), (2, 1), (9, 40)):
        compare(model, runtime, rows, frames, 1, "dodd", seed=rows)


@LONG
def test_graphs_have_the_documented_inputs_and_outputs(exported: Path) -> None:
    encoder, decoder = (onnx.load(exported / file) for file in ("encoder.onnx", "decoder.onnx"))
    for graph in (encoder, decoder):
        onnx.checker.check_model(graph, full_check=True)
        assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", export.OPSET)]
    past, grown = [2, "past_rows", "past", 12], [2, "rows", "count + past", 12]
    memory = [2, "memory_rows", "memory_length", 12]
    assert shapes_of(encoder.graph.input) == {"features": ["batch", "frames", 6], "lengths": ["batch"]}
    assert shapes_of(encoder.graph.output) == {
        "cross_keys": [2, "batch", "frames", 12],
        "cross_values": [2, "batch", "frames", 12],
        "memory_lengths": ["batch"],
    }
    assert shapes_of(decoder.graph.input) == {
        "tokens": ["rows", "count"],
        "lengths": ["rows"],
        "self_keys": past,
        "self_values": past,
        "beam_index": ["rows"],
        "cross_keys": memory,
        "cross_values": memory,
        "memory_lengths": ["memory_rows"],
        "memory_index": ["rows"],
    }
    assert shapes_of(decoder.graph.output) == {
        "logits": ["rows", "count", 17],
        "new_self_keys": grown,
        "new_self_values": grown,
    }


def shapes_of(values: Any) -> dict[str, list[int | str]]:
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values
    }


def n_best(model: StepModel, rows: int, frames: int, seed: int) -> DecodeOutput:
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "finished": "in_beam" if seed % 2 else "pool"}
    options |= {"max_new_tokens": 8, "eos_token_id": ENDS, "encoder": make_batch(rows, frames, 1, seed)[2]}
    return beam_search(model, torch.full((rows, 1), 1), **options)


@LONG
def test_n_best_is_torchs(model: EncoderDecoder, runtime: StepModel) -> None:
    """Batches of 1 to 9 inputs, with memories of 3 to 40 places."""
    lists = {"same": 0, "all": 0, "ended": 0}
    for seed in range(BATCHES):
        rows, frames = 1 + seed % 9, 3 + 37 * seed // (BATCHES - 1)
        expected, found = (n_best(either, rows, frames, seed) for either in (model, runtime))
        mine, theirs = expected.to_lists(), found.to_lists()
        lists["same"] += sum(mine[place : place + 3] == theirs[place : place + 3] for place in range(0, 3 * rows, 3))
        lists["all"] += rows
        lists["ended"] += sum(tokens[-1] in ENDS for tokens in mine)
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=TOLERANCE)
    assert lists["all"] >= 200
    assert lists["same"] == lists["all"]
    assert 50 < lists["ended"] < 3 * lists["all"] - 50


@LONG
def test_the_graph_takes_the_rows(runtime: Any) -> None:
    """A reorder copies no keys and values: the step's graph does, by the index that it is given."""
    input_ids, mask, encoder = make_batch(2, 4, 3, seed=1)
    cache = runtime.prefill(input_ids, mask, **encoder).cache
    reordered = runtime.reorder(runtime.expand(cache, 3), torch.tensor([5, 0, 1]))
    assert reordered.keys_values is cache.keys_values
    assert reordered.memory is cache.memory
    assert reordered.beam_index.tolist() == reordered.memory_index.tolist() == [1, 0, 0]
    grown = runtime.decode(torch.tensor([[1], [2], [3]]), reordered).cache
    assert grown.beam_index.tolist() == [0, 1, 2]
    assert grown.memory_index.tolist() == [1, 0, 0]
    assert grown.keys_values[0].shape == (2, 3, 1 + int(reordered.lengths.max()), 12)


@LONG
def test_rollbacks_need_no_room(runtime: Any) -> None:
    input_ids, mask, encoder = make_batch(2, 4, 1, seed=1)
    cache = runtime.prefill(input_ids, mask, **encoder).cache
    for _ in range(5):
        cache = runtime.rollback(runtime.decode(torch.tensor([[1, 2], [3, 4]]), cache).cache, torch.tensor([2, 1]))
    assert cache.keys_values[0].shape[2] == 4


MODEL = random_encoder_decoder()
IN_TRAINING = random_encoder_decoder().train()
FEATURES = {"features": torch.zeros(1, 5, 6)}, {"features": torch.zeros(2, 1, 6)}
BAD_EXPORTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": nn.Linear(2, 2)}, TypeError, "model must be an EncoderDecoder or, .*, got Linear"),
    ({"model": IN_TRAINING}, ValueError, "model must be in evaluation mode, got one in training. Call model.eval"),
    ({"model": random_encoder_decoder().half()}, ValueError, "model must be float32 on the CPU, got .* on cpu"),
    ({"model": random_encoder_decoder().to("meta")}, ValueError, "model must be .*, got torch.float32 on meta"),
    ({"example": {}}, TypeError, "example must be a dict of tensors, got dict {}"),
    ({"example": [1]}, TypeError, "example must be a dict of tensors, got list"),
    ({"example": {"lengths": 3}, "dynamic_axes": {}}, TypeError,
     r"example\['lengths'\] must be a tensor \[batch, ...\], got int 3"),
    ({"example": FEATURES[0]}, ValueError,
     r"example\['features'\] must have a size of at least 2 in axis 0 \(batch\), got \[1, 5, 6\]"),
    ({"example": FEATURES[1]}, ValueError,
     r"example\['features'\] must have a size of at least 2 in axis 1 \(frames\), got \[2, 1, 6\]"),
    ({"dynamic_axes": {"pixels": {1: "x"}}}, ValueError,
     r"dynamic_axes must name inputs of \['features', 'lengths'\], got \['pixels'\]"),
    ({"dynamic_axes": {"lengths": {1: "frames"}}}, ValueError,
     r"dynamic_axes\['lengths'\] must have axes from 0 to 0, got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), BAD_EXPORTS)
def test_bad_exports(changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    arguments = {"model": MODEL, "example": EXAMPLE, "dynamic_axes": DYNAMIC_AXES, **changes}
    with pytest.raises(error, match=f"export_onnx: {message}"):
        export_onnx(directory=tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


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


def test_an_encoder_may_take_any_dtype(tmp_path: Path) -> None:
    config = DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=1)
    model = EncoderDecoder(Pcm(), Decoder(config)).eval()
    encoder = {"pcm": torch.arange(10, dtype=torch.int16).view(2, 5), "lengths": torch.tensor([5, 3])}
    export_onnx(model, tmp_path, encoder, {"pcm": {1: "samples"}})
    start = torch.ones(2, 1, dtype=torch.int64)
    expected, found = model.prefill(start, **encoder).logits, OnnxModel(tmp_path).prefill(start, **encoder).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_a_directory_without_graphs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"OnnxModel: directory must hold encoder.onnx, got .*export_onnx"):
        OnnxModel(tmp_path)


@LONG
def test_bad_models(exported: Path, runtime: Any, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for file in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / file).write_bytes((exported / "encoder.onnx").read_bytes())
    id_1, features = torch.tensor([[1]]), torch.zeros(1, 2, 6)
    bad: list[tuple[Any, type[Exception], str]] = [
        (lambda: OnnxModel(tmp_path), ValueError, r"directory must hold graphs with \['tokens', .* got \['features'"),
        (lambda: OnnxModel(exported, threads=0), ValueError, "threads must be at least 1, got 0"),
        (lambda: OnnxModel(exported, providers="CUDA"), TypeError, "providers must be a list of names, got str 'CUDA"),
        (lambda: runtime.prefill(id_1, features=features), ValueError,
         r"encoder must have the names \['features', 'lengths'\], got \['features'\]"),
        (lambda: runtime.prefill(id_1, features=features.double(), lengths=torch.tensor([2])), TypeError,
         r"encoder\['features'\] must be a tensor of torch.float32, got a tensor of torch.float64"),
    ]  # fmt: skip
    for call, error, message in bad:
        with subtests.test(msg=message), pytest.raises(error, match=f"OnnxModel: {message}"):
            call()


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


@LONG
def test_onnxruntime_is_what_runs(runtime: Any) -> None:
    assert isinstance(runtime.decoder, onnxruntime.InferenceSession)
    assert runtime.decoder.get_providers() == ["CPUExecutionProvider"]
    assert runtime.decoder.get_session_options().intra_op_num_threads == 1


@LONG
def test_onnxruntime_is_told_of_the_providers(exported: Path) -> None:
    with pytest.warns(UserWarning, match="'NoSuchProvider' is not in available provider names"):
        OnnxModel(exported, providers=("NoSuchProvider", "CPUExecutionProvider"))
