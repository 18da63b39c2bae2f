"""The cffi binding through the real torch_npu: results, order, lifetimes, errors."""

import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu import aclnn_call, aclnn_cffi, scratch
from ascend_sample.npu.operators import OPERATORS

from .cffi_calls import SAMPLE, SAMPLE_V2, WITH_Q, WITHOUT_Q, check_rows, each_operator, function, tensors_of
from .hand_worked import MIXED, NO_K, NO_P, ONES, Row

DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scenarios", [WITH_Q, WITHOUT_Q], ids=["q", "no q"])
@each_operator
def test_scenarios(npu: str, operator: str, scenarios: dict[str, list[Row]], dtype: torch.dtype) -> None:
    rows = scenarios[operator]
    check_rows(rows, function(operator)(*tensors_of(rows, dtype), is_need_logits=True))


@pytest.mark.parametrize("is_need_logits", [True, False])
@each_operator
def test_same_as_the_cpu_kernel(npu: str, operator: str, is_need_logits: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 1000, generator=generator).half()
    k = torch.randint(-1, 60, (64,), generator=generator, dtype=torch.int32)
    p = torch.where(torch.rand(64, generator=generator) < 0.5, 0.9, 1.0).half()
    q = torch.empty(64, 1000).exponential_(generator=generator)
    expected = getattr(torch.ops.ascend_sample, operator)(logits, k, p, q, is_need_logits=is_need_logits)
    actual = function(operator)(logits.npu(), k.npu(), p.npu(), q.npu(), is_need_logits=is_need_logits)
    assert torch.equal(actual[0].cpu(), expected[0])
    assert torch.equal(actual[1].cpu(), expected[1])
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


@pytest.mark.parametrize("dtype", DTYPES)
@each_operator
def test_views(npu: str, operator: str, dtype: torch.dtype) -> None:
    logits, k, p, q = tensors_of(WITH_Q[operator], dtype)
    assert q is not None
    wide = torch.full((len(WITH_Q[operator]) + 2, 20), 50.0, dtype=dtype).npu()
    wide[1:-1, 3:11] = logits
    for view in (logits.t().contiguous().t(), wide[1:-1, 3:11]):
        check_rows(WITH_Q[operator], function(operator)(view, k, p, q.t().contiguous().t(), is_need_logits=True))
    every_second = (torch.stack([k, k + 1], 1)[:, 0], torch.stack([p, p], 1)[:, 1])
    check_rows(WITH_Q[operator], function(operator)(logits, *every_second, q, is_need_logits=True))
    rows = [row for row in WITHOUT_Q[operator] if row.logits == MIXED]
    one = torch.tensor([MIXED], dtype=dtype).npu().expand(len(rows), -1)
    _, k, p, _ = tensors_of(rows, dtype)
    check_rows(rows, function(operator)(one, k, p, is_need_logits=True))


@pytest.mark.parametrize("is_need_logits", [True, False])
@each_operator
def test_empty_batch_launches_nothing(emulated: None, operator: str, is_need_logits: bool) -> None:
    logits, k, p, q = (tensor[:0] for tensor in tensors_of(WITH_Q[operator]) if tensor is not None)
    with hostcann.profile() as counted:
        ids, kept, *_ = function(operator)(logits, k, p, q, is_need_logits=is_need_logits)
    assert counted.launches == {}
    assert (ids.shape, ids.dtype) == ((0,), torch.int64)
    assert kept.shape == ((0, len(MIXED)) if is_need_logits else (0,))


@each_operator
def test_executor_of_a_phase_1_that_fails(emulated: None, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CANN's generated operators give it before they look at the arguments: it stays the caller's."""
    tensors = tensors_of(WITH_Q[operator])
    function(operator)(*tensors)
    cann = aclnn_call.cann_of(operator)
    phase_1 = cann.get_workspace_size

    def failing(*arguments: object) -> int:
        assert phase_1(*arguments) == 0
        return 561002

    def executors() -> int:
        torch.npu.synchronize()  # torch_npu's own calls own theirs until its queue has run them
        return hostcann.live()["executor"]

    monkeypatch.setattr(cann, "get_workspace_size", failing)
    before = executors()
    with pytest.raises(RuntimeError, match=f"^{operator}: {OPERATORS[operator].phase_1} failed in workspace: 561002"):
        function(operator)(*tensors)
    assert executors() == before


@each_operator
def test_k_below_one_skips_top_k(npu: str, operator: str) -> None:
    logits, _, p, _ = tensors_of([WITHOUT_Q[operator][0]] * 3)
    k = torch.tensor([0, -1, -(2**31)], dtype=torch.int32).npu()
    _, kept, *_ = function(operator)(logits, k, p, is_need_logits=True)
    assert torch.equal(kept.cpu(), torch.tensor([MIXED] * 3))
    assert k.tolist() == [0, -1, -(2**31)], "the caller's k stays as it was"


@each_operator
def test_nothing_synchronises(emulated: None, operator: str) -> None:
    arguments = tensors_of(WITH_Q[operator])
    function(operator)(*arguments)
    with hostcann.profile() as counted:
        function(operator)(*arguments, is_need_logits=True)
    assert counted.synchronizations == {}
    launched = {OPERATORS[operator].name: 1}
    assert counted.launches == (launched if OPERATORS[operator].takes_any_k else launched | {"aclnnThreshold": 1})


@pytest.mark.parametrize("mode", ["normal", "delayed", "lazy"])
@each_operator
def test_runs_after_what_was_submitted_before(emulated: None, operator: str, mode: str) -> None:
    hostcann.set_stream_mode(mode)
    logits, k, p, _ = tensors_of([Row("", (0.0,) * 8, NO_K, NO_P, None, 0, ())])
    drawn = []
    for token in range(8):
        logits.zero_()
        logits[:, token] = 5.0
        drawn.append(function(operator)(logits, k, p)[0])
    logits.fill_(-1.0)  # and before what comes after
    assert torch.cat(drawn).tolist() == list(range(8))


@pytest.mark.parametrize("mode", ["normal", "delayed", "lazy"])
@each_operator
def test_side_stream(emulated: None, operator: str, mode: str) -> None:
    hostcann.set_stream_mode(mode)
    arguments = tensors_of(WITH_Q[operator])
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        result = function(operator)(*arguments, is_need_logits=True)
    stream.synchronize()
    check_rows(WITH_Q[operator], result)


@each_operator
def test_capture_and_replay(npu: str, operator: str) -> None:
    logits, k, p, q = tensors_of(WITH_Q[operator])
    function(operator)(logits, k, p, q)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = function(operator)(logits, k, p, q, is_need_logits=True)
    graph.replay()
    check_rows(WITH_Q[operator], result)
    logits.copy_(torch.tensor([list(reversed(MIXED))] * len(WITH_Q[operator]), dtype=logits.dtype))
    k.fill_(1)
    graph.replay()
    assert result[0].tolist() == [1] * len(WITH_Q[operator])
    assert result[1].isfinite().sum(1).tolist() == [1] * len(WITH_Q[operator])
    del graph, result


@each_operator
def test_threads_with_streams_of_their_own(npu: str, operator: str) -> None:
    results: list[list[int]] = []
    arguments = tensors_of(WITH_Q[operator])
    torch.npu.synchronize()

    def work() -> None:
        with torch.npu.stream(torch.npu.Stream()):
            for _ in range(10):
                results.append(function(operator)(*arguments)[0].tolist())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[row.token for row in WITH_Q[operator]]] * 30


@each_operator
def test_memory_of_a_call(npu: str, operator: str) -> None:
    rows, vocab_size = 16, 32000
    logits = torch.zeros(rows, vocab_size, dtype=torch.float16).npu()
    k, p = torch.full((rows,), 8, dtype=torch.int32).npu(), torch.ones(rows, dtype=torch.float16).npu()
    function(operator)(logits, k, p)  # takes the block that is kept from call to call
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    ids, kept, *_ = function(operator)(logits, k, p)
    kept_bytes = torch.npu.memory_allocated() - before
    assert kept.numel() == 0
    assert kept_bytes <= 1024 + ids.nbytes, "the workspace is released"


@each_operator
def test_public_function_can_be_forced_to_it(npu: str, operator: str) -> None:
    logits, k, p, q = tensors_of(WITH_Q[operator])
    with ascend_sample.use_backend("cffi"):
        assert ascend_sample.which_backend(logits, operator).backend == "cffi"
        result = getattr(ascend_sample, operator)(logits, k, p, q, is_need_logits=True)
    assert result.logits_top_kp_select is not None
    check_rows(WITH_Q[operator], (result.logits_select_idx, result.logits_top_kp_select))


class TestErrors:
    """Each error names operator, call, stage, code and shape, leaves nothing behind, and the next call works."""

    @pytest.fixture(autouse=True)
    def _nothing_stays(self, emulated: None) -> Iterator[None]:
        arguments = tensors_of(WITH_Q[SAMPLE])
        kinds = ("tensor", "executor")
        torch.npu.synchronize()
        before = [hostcann.live()[kind] for kind in kinds]
        yield
        torch.npu.synchronize()  # torch's own operators hold tensors and executors while they are queued
        assert [hostcann.live()[kind] for kind in kinds] == before
        check_rows(WITH_Q[SAMPLE], aclnn_cffi.launch(SAMPLE, *arguments, is_need_logits=True))
        assert hostcann.violations() == []

    @pytest.mark.parametrize(
        ("operator", "site", "text"),
        [
            (
                SAMPLE,
                "phase1",
                "top_k_top_p_sample: aclnnTopKTopPSampleGetWorkspaceSize failed in workspace: "
                "361001 ACLNN_ERR_RUNTIME_ERROR: aclnnTopKTopPSample: the message of CANN; logits=[4, 8] fp16",
            ),
            (
                SAMPLE,
                "phase2",
                "top_k_top_p_sample: aclnnTopKTopPSample failed in launch: "
                "361001 ACLNN_ERR_RUNTIME_ERROR: aclnnTopKTopPSample: the message of CANN; logits=[4, 8] fp16",
            ),
            (
                SAMPLE_V2,
                "phase1",
                "top_k_top_p_sample_v2: aclnnTopKTopPSampleV2GetWorkspaceSize failed in workspace: "
                "361001 ACLNN_ERR_RUNTIME_ERROR: aclnnTopKTopPSampleV2: the message of CANN; logits=[2, 8] fp16",
            ),
            (
                SAMPLE_V2,
                "phase2",
                "top_k_top_p_sample_v2: aclnnTopKTopPSampleV2 failed in launch: "
                "361001 ACLNN_ERR_RUNTIME_ERROR: aclnnTopKTopPSampleV2: the message of CANN; logits=[2, 8] fp16",
            ),
        ],
    )
    def test_phase(self, operator: str, site: str, text: str) -> None:
        hostcann.inject(site, OPERATORS[operator].name, message="the message of CANN")
        with pytest.raises(RuntimeError) as caught:
            function(operator)(*tensors_of(WITH_Q[operator]))
        assert str(caught.value) == text

    @each_operator
    def test_workspace_that_no_device_has(self, operator: str) -> None:
        hostcann.inject("workspace", OPERATORS[operator].name)
        with pytest.raises(torch.OutOfMemoryError, match=r"asks for a workspace of \d+ bytes.*logits=\[[24], 8\] fp16"):
            function(operator)(*tensors_of(WITH_Q[operator]))

    @each_operator
    def test_no_memory_for_the_workspace(self, operator: str) -> None:
        arguments = tensors_of(WITH_Q[operator])
        torch.npu.synchronize()
        scratch.release()  # it may hold a part of a large segment, as garbage may
        gc.collect()
        torch.npu.empty_cache()
        # The outputs are small and come from the cache's first segment; the workspace needs one of its own.
        hostcann.inject("malloc", nth=1, count=100)
        with pytest.raises(torch.OutOfMemoryError):
            function(operator)(*arguments)
        hostcann.clear_faults()

    @each_operator
    def test_rules_are_those_of_the_operator(self, operator: str) -> None:
        logits, k, p, q = tensors_of(WITH_Q[operator])
        with pytest.raises(TypeError, match="k must be int32"):
            function(operator)(logits, k.long(), p, q)
        with pytest.raises(ValueError, match="p must have one value for each row"):
            function(operator)(logits, k, p[1:], q)
        with pytest.raises(ValueError, match="k must be on the device of logits"):
            function(operator)(logits, k.cpu(), p, q)

    def test_blocked_memory_format(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch_npu

        fractal_nz = 29
        monkeypatch.setattr(torch_npu, "get_npu_format", lambda tensor: fractal_nz)
        with pytest.raises(ValueError, match=r"logits must have a plain memory format.*got format 29.*npu_format_cast"):
            aclnn_cffi.launch(SAMPLE, *tensors_of(WITH_Q[SAMPLE]))

    def test_storage_between_two_elements(self) -> None:
        logits, k, p, q = tensors_of(WITH_Q[SAMPLE])
        shifted = torch.empty(0, dtype=logits.dtype, device="npu")
        storage = torch.zeros(logits.numel() + 1, dtype=logits.dtype).npu().untyped_storage()[2:]
        shifted.set_(storage, 0, logits.shape)
        with pytest.raises(ValueError, match=r"logits must have a storage address that is a multiple of 32, got 0x"):
            aclnn_cffi.launch(SAMPLE, shifted, k, p, q)

    def test_no_stream_after_a_failed_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What some versions of torch_npu return instead of raising. A null stream would be CANN's default one.
        real = torch.npu.current_stream()
        names = ("stream_id", "device_index", "device_type", "device")
        stream = SimpleNamespace(npu_stream=0, **{name: getattr(real, name) for name in names})
        monkeypatch.setattr(torch.npu, "current_stream", lambda device=None: stream)
        with pytest.raises(RuntimeError, match=r"must follow torch_npu's task queue, got a queue that has failed"):
            aclnn_cffi.launch(SAMPLE, *tensors_of(WITH_Q[SAMPLE]))


def test_float32_goes_to_the_composite(npu: str) -> None:
    logits, k, p, _ = tensors_of([Row("", MIXED, 4, NO_P, ONES, 1, ())])
    with pytest.warns(UserWarning, match="not torch.float32"):
        ids, _ = aclnn_cffi.serve(SAMPLE, logits.float(), k, p.float())
    assert ids.tolist() == [1]
