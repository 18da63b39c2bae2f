"""The real torch_npu on top of hostcann: copies, streams, graphs and errors, each in a process of its own."""

from __future__ import annotations

import pytest
import torch

import hostcann
from tests.support.isolation import run_isolated

pytestmark = pytest.mark.usefixtures("npu")


def check_copies_streams_and_events() -> list[int]:
    """Returns what is left on the device."""
    side, done = torch.npu.Stream(), torch.npu.Event()
    pinned = torch.arange(8.0).pin_memory()
    a, b = torch.empty(8, device="npu"), torch.empty(8, device="npu")
    a.copy_(pinned, non_blocking=True)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        b.copy_(a)
        done.record()
    done.synchronize()
    assert done.query()
    assert b.cpu().tolist() == list(range(8))
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    begin.record()
    a.copy_(b)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    del a, b
    torch.npu.empty_cache()
    return [hostcann.live()["block"], torch.npu.memory_allocated()]


@pytest.mark.parametrize(
    ("mode", "queue"),
    [
        ("lazy", "1"),
        pytest.param("delayed:3", "0", marks=pytest.mark.long),
        pytest.param("normal", "2", marks=pytest.mark.long),
    ],
)
def test_copies_streams_and_events(mode: str, queue: str) -> None:
    finished = run_isolated(check_copies_streams_and_events, HOSTCANN_STREAM_MODE=mode, TASK_QUEUE_ENABLE=queue)
    finished.check_clean()
    assert finished.result == [0, 0]


def check_a_graph_replays() -> None:
    for mode in ("normal", "lazy"):
        hostcann.set_stream_mode(mode)
        pinned, a, b = torch.ones(4).pin_memory(), torch.empty(4, device="npu"), torch.empty(4, device="npu")
        graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
        with torch.npu.graph(graph):
            a.copy_(pinned, non_blocking=True)
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                b.copy_(a)
            torch.npu.current_stream().wait_stream(side)
        for value in (2.0, 3.0):
            pinned.fill_(value)
            graph.replay()
            torch.npu.synchronize()
            assert b.cpu().tolist() == [value] * 4
        with hostcann.profile() as counted:
            graph.replay()
        assert (counted.replays, counted.synchronizations) == (1, {})
        torch.npu.synchronize()


def test_a_graph_replays() -> None:
    run_isolated(check_a_graph_replays).check_clean()


def check_out_of_memory() -> None:
    """It becomes torch's own error, which can be survived; so does what is injected into torch_npu's own call."""
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(100 << 20, dtype=torch.uint8, device="npu")
    assert torch.ones(3).npu().cpu().sum().item() == 3
    hostcann.set_memory_capacity(1 << 30)
    assert torch.empty(100 << 20, dtype=torch.uint8, device="npu").numel() == 100 << 20
    for name in ("", "aclrtMallocAlign32"):
        hostcann.inject("malloc", name, count=10)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(200 << 20, dtype=torch.uint8, device="npu")
        hostcann.clear_faults()


def test_out_of_memory() -> None:
    run_isolated(check_out_of_memory, HOSTCANN_MEMORY="64M").check_clean()


def check_attention_of_other_lengths_in_a_graph() -> None:
    """The lengths are numbers of the host: between replays an update of the graph's task group replaces them."""
    import torch_npu

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, rows, 16, generator=generator) for heads, rows in ((4, 1), (2, 8), (2, 8)))
    on_npu = [x.half().npu() for x in (q, k, v)]
    options = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": 0.25}

    def expected(lengths: list[int]) -> torch.Tensor:
        mask = torch.arange(8) < torch.tensor(lengths)[:, None, None, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask, scale=0.25, enable_gqa=True)

    attended = torch_npu.npu_fused_infer_attention_score(*on_npu, actual_seq_lengths_kv=[3, 8], **options)[0]
    torch.testing.assert_close(attended.cpu().float(), expected([3, 8]), rtol=0, atol=2e-3)
    attended, lse = torch_npu.npu_fused_infer_attention_score(*on_npu, softmax_lse_flag=True, **options)
    scores = q @ k.repeat_interleave(2, 1).mT * 0.25
    torch.testing.assert_close(lse.cpu(), scores.logsumexp(-1, keepdim=True), rtol=0, atol=2e-3)

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        output = torch_npu.npu_fused_infer_attention_score_v2(
            *on_npu,
            num_query_heads=4,
            num_key_value_heads=2,
            input_layout="BNSD",
            softmax_scale=0.25,
            actual_seq_kvlen=[3, 8],
        )[0]
    for lengths in ([5, 1], [8, 2]):
        graph.update(cpu_update_input=[{"actual_seq_kvlen": lengths}])
        torch.npu.synchronize()  # the update has a stream of its own, for which torch_npu's graph does not wait
        graph.replay()
        torch.npu.synchronize()
        torch.testing.assert_close(output.cpu().float(), expected(lengths), rtol=0, atol=2e-3)


def test_attention_of_other_lengths_in_a_graph() -> None:
    run_isolated(check_attention_of_other_lengths_in_a_graph).check_clean()


def check_dropout_in_a_graph() -> None:
    graph, x = torch.npu.NPUGraph(), torch.ones(1000, device="npu")
    with torch.npu.graph(graph):
        y = torch.nn.functional.dropout(x, 0.25)
    drawn = []
    for _ in range(2):
        graph.replay()
        torch.npu.synchronize()
        drawn.append(y.cpu())
    assert not torch.equal(*drawn)
    assert all(0.65 < (values != 0).double().mean().item() < 0.85 for values in drawn)


def test_each_replay_drops_anew() -> None:
    run_isolated(check_dropout_in_a_graph).check_clean()
