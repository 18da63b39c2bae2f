"""NPUGraph: what was captured gives new results for new inputs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import ascend_sample
import hostcann
from ascend_sample.npu import scratch
from tests.support.isolation import OWN_HANDLES, run_isolated

from .batches import VARIANTS, Batch, check_equal, make_batch, sample, use_variant
from .conftest import ROUTES

REPLAYS = 3


def copy_inputs(target: Batch, source: Batch) -> None:
    """New values where a captured call reads."""
    for old, new in zip(target.tensors, source.tensors, strict=True):
        if old is not None and new is not None:
            old.copy_(new)


def shuffled(seed: int) -> Batch:
    """Another batch, with the scenarios on other rows."""
    batch = make_batch(seed)
    return Batch(batch.logits, batch.k.roll(seed), batch.p.roll(seed), batch.q, batch.min_p)


def capture(batch: Batch, is_need_logits: bool = True) -> tuple[torch.npu.NPUGraph, Any]:
    batch.sample(is_need_logits)  # what is looked up or allocated once is not part of the graph
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = batch.sample(is_need_logits)
    return graph, result


def check_replays() -> None:
    batch = make_batch().to("npu")
    for is_need_logits in (True, False):
        graph, result = capture(batch, is_need_logits)
        for seed in range(1, 1 + REPLAYS):
            host = shuffled(seed)
            copy_inputs(batch, host)
            graph.replay()
            assert (result.logits_top_kp_select is not None) == is_need_logits
            check_equal(result, host.expected())
        graph.reset()


def test_replays_follow_their_inputs(route: str) -> None:
    check_replays()


def test_scalars_and_none(route: str) -> None:
    """What they are converted into is made inside the graph."""
    for k, p in ((5, 0.9), (None, None), (None, 0.6), (7, None)):
        batch = make_batch().to("npu")
        sample(batch.logits, k, p, batch.noise, is_need_logits=True)
        torch.npu.synchronize()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            result = sample(batch.logits, k, p, batch.noise, is_need_logits=True)
        for seed in range(REPLAYS):
            host = make_batch(seed)
            copy_inputs(batch, host)
            graph.replay()
            with ascend_sample.use_backend("reference"):
                check_equal(result, sample(host.logits, k, p, host.noise, is_need_logits=True))


def replayed(graph: torch.npu.NPUGraph) -> tuple[int, dict[str, int], dict[str, int]]:
    """Replays a graph; returns how often, and what the host has launched and waited for meanwhile."""
    with hostcann.profile() as counted:
        for _ in range(REPLAYS):
            graph.replay()
    return counted.replays, counted.launches, counted.synchronizations


def test_replay_launches_nothing_anew(route: str, emulated: None) -> None:
    """No host work a replay but torch_npu's own, and nothing is left when the graph has gone."""
    batch = make_batch().to("npu")
    graph, result = capture(batch)
    other = torch.npu.NPUGraph()
    with torch.npu.graph(other):
        batch.logits.clone()
    of_torch_npu = replayed(other)  # of 2.9: it fills in the seed and the offset of its generator
    assert of_torch_npu[1].keys() <= {"aclnnInplaceFillScalar"}
    assert replayed(graph) == of_torch_npu
    assert of_torch_npu[::2] == (REPLAYS, {})
    other.reset()
    check_equal(result, batch.expected())
    graph.reset()
    torch.npu.synchronize()
    live = hostcann.live()
    assert {kind: live[kind] for kind in OWN_HANDLES} == dict.fromkeys(OWN_HANDLES, 0)
    assert hostcann.violations() == []


def capture_everywhere() -> int:
    captured = 0
    for variant, route in itertools.product(VARIANTS, ROUTES):
        with ascend_sample.use_backend(route), use_variant(variant):
            for mode in ("normal", "delayed", "lazy"):
                hostcann.set_stream_mode(mode)
                check_replays()
                captured += 1
    return captured


@pytest.mark.long
@pytest.mark.parametrize("queue", ["0", "1"])
def test_capture_in_queue_and_stream_modes(emulated: None, queue: str) -> None:
    """torch_npu itself refuses to capture with TASK_QUEUE_ENABLE=2."""
    finished = run_isolated(capture_everywhere, TASK_QUEUE_ENABLE=queue)
    finished.check_clean()
    assert finished.result == 3 * len(VARIANTS) * len(ROUTES)


def compile_into_graphs() -> dict[str, dict[str, list[bool]]]:
    """torch_npu's graph trees: a compiled function is warmed up in a graph's pool, captured there, and replayed."""
    batch = make_batch().to("npu")
    found: dict[str, dict[str, list[bool]]] = {}
    for variant, route in itertools.product(VARIANTS, ROUTES):
        torch.compiler.reset()
        scratch.release()
        with torch.no_grad(), ascend_sample.use_backend(route), use_variant(variant):

            def of_doubled(logits: torch.Tensor) -> torch.Tensor:
                ids: torch.Tensor = Batch(logits * 2, batch.k, batch.p, batch.q, batch.min_p).sample()[0]
                return ids

            expected = of_doubled(batch.logits)
            scratch.release()
            compiled = torch.compile(of_doubled, backend="npugraphs")
            equal = found.setdefault(variant, {})[route] = []
            for _ in range(1 + REPLAYS):
                torch.compiler.cudagraph_mark_step_begin()
                equal.append(torch.equal(compiled(batch.logits), expected))
    return found


@pytest.mark.long
def test_compiled_into_graphs(emulated: None) -> None:
    """What is kept from call to call is in no graph's pool, though it may first be allocated while one is made."""
    finished = run_isolated(compile_into_graphs)
    assert finished.result == {variant: dict.fromkeys(ROUTES, [True] * (1 + REPLAYS)) for variant in VARIANTS}
    assert finished.report["violations"] == []


def test_scratch_of_a_graph(route: str, emulated: None) -> None:
    """A replay writes to memory of its own, not to what the stream keeps from call to call and may give back."""
    host = make_batch(9)
    batch = host.to("npu")
    scratch.release()
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        batch.sample(is_need_logits=False)  # now this stream has a block
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=side):
        result = batch.sample(is_need_logits=False)
    scratch.release()
    fill = 0x5A
    sizes = [32 + batch.logits.numel() * bytes_of_a_logit for bytes_of_a_logit in (4, 8)] * 4
    with torch.npu.stream(side):
        others = [torch.full((size,), fill, dtype=torch.uint8, device="npu") for size in sizes]
    torch.npu.synchronize()
    for _ in range(REPLAYS):
        graph.replay()
        check_equal(result, host.expected())
    assert all(bool((tensor == fill).all()) for tensor in others)
    assert hostcann.violations() == []
    graph.reset()
