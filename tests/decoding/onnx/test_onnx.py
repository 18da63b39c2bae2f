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
from ascend_sample.decoding.onnx import OnnxModel, export, export_onnx, graphs
from ascend_sample.decoding.onnx import runtime as onnx_runtime
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.concurrent_calls import MAX_NEW_TOKENS, Prompts, check_concurrent_calls
from tests.decoding.decoder_models import random_encoder_decoder
from tests.decoding.onnx.onnx_checks import TOLERANCE, compare_operations, eager
from tests.decoding.planting import Trap, noticed
from tests.support.warm_python import run_warm

SEQUENCES = 60  # of random operations
ENDS = [8, 13]
BATCHES = 45  # of 1 to 9 inputs, in turn
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
    mask = torch.rand(rows, longest, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(longest, (rows,), generator=generator)] = True
    features = torch.randn(rows, frames, 6, generator=generator)
    lengths = torch.randint(1, frames + 1, (rows,), generator=generator)
    input_ids = torch.randint(17, (rows, longest), generator=generator)
    return input_ids, mask, {"features": features, "lengths": lengths}


def compare(
    models: tuple[StepModel, StepModel], rows: int, frames: int, longest: int, operations: str, seed: int
) -> None:
    compare_operations(models, make_batch(rows, frames, longest, seed), 17, operations, seed)


def test_what_is_masked_does_not_matter(runtime: StepModel) -> None:
    input_ids, mask, encoder = make_batch(3, 5, 4, 0)
    expected = runtime.prefill(input_ids, mask, **encoder).logits
    assert runtime.prefill(input_ids.where(mask, -100), mask, **encoder).logits.equal(expected)


def test_a_call_finds_in_threads_what_it_finds_alone(runtime: StepModel) -> None:
    def prompts(seed: int) -> Prompts:
        return Prompts(*make_batch(len(MAX_NEW_TOKENS), 5, 4, seed))

    check_concurrent_calls(runtime, prompts, without=("contrastive_search",))


@settings(
    max_examples=SEQUENCES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    operations=st.text("ddeob", max_size=10),
    rows=st.integers(1, 4),
    frames=st.integers(1, 9),
    longest=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_equals_torch(
    model: EncoderDecoder, runtime: StepModel, operations: str, rows: int, frames: int, longest: int, seed: int
) -> None:
    if operations.count("e") > 3:
        operations = operations.replace("e", "o")
    compare((model, runtime), rows, frames, longest, operations, seed)


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (1, 3), (1, 40), (2, 1), (9, 40)])
def test_sizes_that_exporters_take_for_constants(
    model: EncoderDecoder, runtime: StepModel, rows: int, frames: int
) -> None:
    """Batch 1, one frame, and the first step, whose past is empty."""
    compare((model, runtime), rows, frames, 1, "dodd", seed=rows)


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
    _, _, encoder = make_batch(rows, frames, 1, seed)
    return beam_search(
        model,
        torch.full((rows, 1), 1),
        encoder=encoder,
        max_new_tokens=8,
        num_beams=4,
        num_return_sequences=3,
        finished="in_beam" if seed % 2 else "pool",
        eos_token_id=ENDS,
    )


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


def test_rollbacks_need_no_room(runtime: Any) -> None:
    input_ids, mask, encoder = make_batch(2, 4, 1, seed=1)
    cache = runtime.prefill(input_ids, mask, **encoder).cache
    for _ in range(5):
        cache = runtime.rollback(runtime.decode(torch.tensor([[1, 2], [3, 4]]), cache).cache, torch.tensor([2, 1]))
    assert cache.keys_values[0].shape[2] == 4


def check_eager() -> None:
    model = random_encoder_decoder()
    for seed in range(3):
        compare((model, eager(model.encoder, model.decoder, EXAMPLE)), 3, 7, 4, "doedbdoob", seed)


TRAPS = [
    Trap(
        "the beam index is not used inside the graph",
        graphs,
        "past.index_select(0, beam_index)",
        "past[: len(beam_index)].expand(len(beam_index), -1, -1)",
        check_eager,
    ),
    Trap(
        "the beam index is used twice",
        onnx_runtime,
        '            beam_index=torch.arange(len(tokens), device="cpu"),\n',
        "",
        check_eager,
    ),
    Trap(
        "the memory does not follow its row",
        onnx_runtime,
        "memory_index=cache.memory_index[index]",
        "memory_index=torch.arange(len(index)) % len(cache.memory['memory_lengths'])",
        check_eager,
    ),
    Trap(
        "the memory's lengths do not follow their row",
        graphs,
        "memory_lengths.index_select(0, memory_index)[:, None]",
        "memory_lengths.max()",
        check_eager,
    ),
    Trap(
        "new keys stand behind the longest row",
        graphs,
        "places = lengths[:, None] + torch",
        "places = self_keys.shape[2] + 0 * lengths[:, None] + torch",
        check_eager,
    ),
    Trap(
        "rows' lengths do not follow a reorder",
        onnx_runtime,
        "lengths=cache.lengths[index]",
        "lengths=cache.lengths.max().expand(len(index))",
        check_eager,
    ),
]

test_trap = noticed(TRAPS)


MODEL = random_encoder_decoder()
BAD_EXPORTS = {
    "no model": ({"model": nn.Linear(2, 2)}, TypeError, "model must be an EncoderDecoder or, .*, got Linear"),
    "in training": (
        {"model": random_encoder_decoder().train()},
        ValueError,
        "model must be in evaluation mode, got one in training. Call model.eval",
    ),
    "half": (
        {"model": random_encoder_decoder().half()},
        ValueError,
        "model must be float32 on the CPU, got torch.float16 on cpu",
    ),
    "elsewhere": (
        {"model": random_encoder_decoder().to("meta")},
        ValueError,
        "model must be float32 on the CPU, got torch.float32 on meta",
    ),
    "no example": ({"example": {}}, TypeError, "example must be a dict of tensors, got dict {}"),
    "a list": ({"example": [1]}, TypeError, "example must be a dict of tensors, got list"),
    "no tensor": (
        {"example": {"lengths": 3}, "dynamic_axes": {}},
        TypeError,
        r"example\['lengths'\] must be a tensor \[batch, ...\], got int 3",
    ),
    "a batch of one": (
        {"example": {"features": torch.zeros(1, 5, 6)}},
        ValueError,
        r"example\['features'\] must have a size of at least 2 in axis 0 \(batch\), got \[1, 5, 6\]",
    ),
    "one frame": (
        {"example": {"features": torch.zeros(2, 1, 6)}},
        ValueError,
        r"example\['features'\] must have a size of at least 2 in axis 1 \(frames\), got \[2, 1, 6\]",
    ),
    "an unknown name": (
        {"dynamic_axes": {"pixels": {1: "x"}}},
        ValueError,
        r"dynamic_axes must name inputs of \['features', 'lengths'\], got \['pixels'\]",
    ),
    "an unknown axis": (
        {"dynamic_axes": {"lengths": {1: "frames"}}},
        ValueError,
        r"dynamic_axes\['lengths'\] must have axes from 0 to 0, got 1",
    ),
}


@pytest.mark.parametrize(("changes", "error", "message"), BAD_EXPORTS.values(), ids=BAD_EXPORTS.keys())
def test_bad_exports(changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    arguments = {"model": MODEL, "example": EXAMPLE, "dynamic_axes": DYNAMIC_AXES, **changes}
    with pytest.raises(error, match=f"export_onnx: {message}"):
        export_onnx(directory=tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


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


class TestBadModels:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"OnnxModel: directory must hold encoder.onnx, got .*export_onnx"):
            OnnxModel(tmp_path)

    def test_another_graph(self, exported: Path, tmp_path: Path) -> None:
        for file in ("encoder.onnx", "decoder.onnx"):
            (tmp_path / file).write_bytes((exported / "encoder.onnx").read_bytes())
        with pytest.raises(
            ValueError, match=r"OnnxModel: directory must hold graphs with \['tokens', .* got \['features'"
        ):
            OnnxModel(tmp_path)

    def test_threads(self, exported: Path) -> None:
        with pytest.raises(ValueError, match="OnnxModel: threads must be at least 1, got 0"):
            OnnxModel(exported, threads=0)

    def test_providers(self, exported: Path) -> None:
        with pytest.raises(TypeError, match="OnnxModel: providers must be a list of names, got str 'CUDAExec"):
            OnnxModel(exported, providers="CUDAExecutionProvider")

    def test_names_of_the_encoders_inputs(self, runtime: StepModel) -> None:
        message = r"OnnxModel: encoder must have the names \['features', 'lengths'\], got \['features'\]"
        with pytest.raises(ValueError, match=message):
            runtime.prefill(torch.tensor([[1]]), features=torch.zeros(1, 2, 6))

    def test_type_of_the_encoders_inputs(self, runtime: StepModel) -> None:
        message = r"OnnxModel: encoder\['features'\] must be a tensor of torch.float32, got a tensor of torch.float64"
        with pytest.raises(TypeError, match=message):
            runtime.prefill(torch.tensor([[1]]), features=torch.zeros(1, 2, 6).double(), lengths=torch.tensor([2]))


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


def test_onnxruntime_is_what_runs(runtime: Any) -> None:
    assert isinstance(runtime.decoder, onnxruntime.InferenceSession)
    assert runtime.decoder.get_providers() == ["CPUExecutionProvider"]
    assert runtime.decoder.get_session_options().intra_op_num_threads == 1


def test_onnxruntime_is_told_of_the_providers(exported: Path) -> None:
    with pytest.warns(UserWarning, match="'NoSuchProvider' is not in available provider names"):
        OnnxModel(exported, providers=("NoSuchProvider", "CPUExecutionProvider"))
