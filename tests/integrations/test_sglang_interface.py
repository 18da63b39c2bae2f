"""The backend for SGLang where SGLang is not installed, on a class that looks like its sampler.

`nox -s integrations` runs it in SGLang's own class (sglang_backend.py).
"""

from __future__ import annotations

import enum
import itertools
import sys
import types
from typing import Any

import pytest
import torch

import hostcann
from ascend_sample.integrations import sglang as adapter
from ascend_sample.integrations import sglang_masks, sglang_positions
from ascend_sample.sampling import sample_rows
from tests.integrations.sglang_stand_ins import batch_info, batch_of, settings, speculation

ROWS, COLUMNS = 5, 30


class PlainSampler:
    """SGLang's sampler as far as it matters here: where Ascend's path draws, nobody may ask for masks."""

    sampling_mask_max_tokens = 6
    cp_sync_group = tp_sync_group = None

    def __init__(self) -> None:
        self.use_ascend_backend = False

    def forward(self, logits_output: Any, sampling_info: Any, positions: torch.Tensor) -> torch.Tensor:
        assert sampling_info.sampling_mask_batch_indices is None
        ids: torch.Tensor = self._forward_ascend_backend(  # type: ignore[attr-defined]
            logits_output.next_token_logits, sampling_info, False, False, positions
        )[0]
        return ids


def info(**changes: Any) -> Any:
    values = {
        "temperatures": torch.full((ROWS, 1), 0.8),
        "top_ks": torch.tensor([1, 2, 3, 1 << 30, 1 << 30], dtype=torch.int32),
        "top_ps": torch.tensor([1.0, 1.0, 0.5, 0.5, 1.0]),
        "min_ps": torch.zeros(ROWS),
        "need_min_p_sampling": False,
        "need_top_k_sampling": True,
        "need_top_p_sampling": True,
        "max_top_k": None,
        "sampling_seed": torch.arange(ROWS),
        "sampling_mask_batch_indices": None,
    }
    return types.SimpleNamespace(**(values | changes))


def moved(values: Any, device: str) -> Any:
    """The same on a device."""
    return types.SimpleNamespace(
        **{name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(values).items()}
    )


def forward(sampling_info: Any, is_simple: bool = False, return_logprob: bool = False, step: int = 0) -> Any:
    sampler = adapter.sampler_class(PlainSampler)()
    assert sampler.use_ascend_backend
    logits = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(ROWS) + step
    return logits, sampler._forward_ascend_backend(logits, sampling_info, is_simple, return_logprob, positions)


@pytest.mark.parametrize(
    ("changes", "is_simple", "filters"),
    [
        ({}, False, ("top_k", "top_p")),
        ({}, True, ()),
        ({"need_top_k_sampling": False, "need_top_p_sampling": False}, False, ()),
        ({"min_ps": torch.full((ROWS,), 0.4), "need_min_p_sampling": True}, False, ("top_k", "top_p", "min_p")),
        ({"min_ps": torch.full((ROWS,), 0.4)}, False, ("top_k", "top_p")),
    ],
)
def test_draws_are_those_of_sample_rows(changes: dict[str, Any], is_simple: bool, filters: tuple[str, ...]) -> None:
    """With the filters that some request asks for; logprobs are those at the temperature."""
    asked = info(**changes)
    given: dict[str, Any] = {name: getattr(asked, f"{name}s") for name in filters}
    for step in range(20):
        logits, (ids, logprobs) = forward(asked, is_simple, return_logprob=True, step=step)
        given |= {"temperature": asked.temperatures.view(-1), "seed": asked.sampling_seed}
        expected = sample_rows(logits, **given, position=torch.arange(ROWS) + step).token_ids
        assert ids.dtype == torch.int32
        assert torch.equal(ids.long(), expected)
        torch.testing.assert_close(logprobs, (logits / 0.8).log_softmax(1))


def test_without_seeds_draws_differ() -> None:
    unseeded = [forward(info(sampling_seed=None), is_simple=True)[1][0] for _ in range(5)]
    assert len({tuple(ids.tolist()) for ids in unseeded}) > 1


@pytest.mark.parametrize("rows_of_each", [1, 2])
def test_a_greedy_row_gets_the_id_of_its_nan(rows_of_each: int) -> None:
    """As SGLang's argmax takes it in a batch of greedy requests; what is drawn passes it over."""
    logits = torch.tensor([1.0, 3.0, torch.nan, 2.0]).repeat(rows_of_each * 2, 1)
    greedy = info(
        temperatures=torch.ones(2, 1),
        top_ks=torch.tensor([1, 2], dtype=torch.int32),
        top_ps=torch.tensor([1.0, 0.1]),
        min_ps=torch.zeros(2),
        sampling_seed=torch.arange(2),
    )
    found = adapter._drawn(logits, greedy, torch.arange(2 * rows_of_each), rows_of_each)
    assert found.tolist() == [2] * rows_of_each + [1] * rows_of_each


@pytest.mark.parametrize(("largest", "is_sorted"), [(20, False), (None, True), (1500, True)])
def test_a_bound_of_all_top_k_saves_the_sort_on_a_device(
    counting: None, npu: str, largest: int | None, is_sorted: bool
) -> None:
    sampler, columns = adapter.sampler_class(PlainSampler)(), 1400
    logits = torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(1))
    values = info(
        temperatures=torch.tensor([[1.0], [0.2], [2.0], [1.0], [5.0]]),
        top_ks=torch.tensor([1, 20, 7, 3, 20 if largest == 20 else 1200], dtype=torch.int32),
        max_top_k=largest,
    )
    there = moved(values, npu)
    for step in range(20):
        positions = torch.arange(ROWS) + step
        with hostcann.profile() as counters:
            ids, _ = sampler._forward_ascend_backend(logits.to(npu), there, False, False, positions.to(npu))
        assert ("aclnnSort" in counters.launches) is is_sorted
        expected, _ = sampler._forward_ascend_backend(logits, values, False, False, positions)
        assert torch.equal(ids.cpu(), expected)


class SamplingMaskStatus(enum.IntEnum):
    OK = 0
    OVERFLOW = 1
    INVALID = 2


@pytest.mark.parametrize("with_log_probs", [None, torch.tensor([0, 2])])
def test_sampling_masks(with_log_probs: torch.Tensor | None, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(SamplingMaskStatus=SamplingMaskStatus, SamplingMaskOutput=types.SimpleNamespace)
    monkeypatch.setitem(sys.modules, sglang_masks.OUTPUTS, module)
    asks = [True, False, True, True, True]
    rows = torch.tensor([0, 2, 3, 4]).to(device)
    values = info(
        return_sampling_masks=asks,
        sampling_mask_batch_indices=rows,
        sampling_support_logprobs_capture_indices=None if with_log_probs is None else with_log_probs.to(device),
        is_all_greedy=False,
    )
    values.top_ps[3] = 0.3
    logits = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    logits[0, :] = -torch.inf  # its status is no good: SGLang ends the request
    there = moved(values, device)
    sampler = adapter.sampler_class(PlainSampler)()
    output = types.SimpleNamespace(next_token_logits=logits.to(device))
    positions = torch.arange(ROWS).to(device)
    ids = sampler.forward(output, there, positions).cpu()
    masks = output.sampling_mask_output
    assert there.sampling_mask_batch_indices is rows
    without = info(sampling_mask_batch_indices=None, is_all_greedy=False, top_ps=values.top_ps)
    assert torch.equal(ids, forward_of(logits, without))
    assert masks.statuses.tolist() == [2, 0, 0, 1]  # the last one keeps all
    assert masks.statuses.dtype == masks.lengths.dtype == masks.token_ids.dtype == torch.int32
    for place, row in enumerate((2, 3), start=1):
        length = int(masks.lengths[place])
        kept = masks.token_ids[place, :length].tolist()
        probabilities = (logits[row, kept].double() / 0.8).log_softmax(0)
        drawn = float(probabilities[kept.index(ids[row])])
        assert kept == sorted(logits[row].topk(length).indices.tolist())
        assert float(masks.selected_logprobs[place]) == pytest.approx(drawn, abs=2e-6)
        if with_log_probs is not None and place == 2:
            torch.testing.assert_close(
                masks.support_logprobs[1, :length].cpu().double(), probabilities, atol=2e-6, rtol=0
            )
    assert (masks.support_logprobs is None) is (with_log_probs is None)
    assert sampler.kept is sampler.masked_rows is None


def forward_of(logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
    """What the forward pass draws where nobody asks for masks; it leaves none."""
    output = types.SimpleNamespace(next_token_logits=logits)
    ids: torch.Tensor = adapter.sampler_class(PlainSampler)().forward(output, sampling_info, torch.arange(ROWS))
    assert not hasattr(output, "sampling_mask_output")
    return ids


@pytest.mark.parametrize("version", [adapter.TESTED_VERSIONS[0], "0.5.23.post1", "0.5.23+site", "9.9"])
def test_register(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factories: dict[str, Any] = {}
    package, module = types.ModuleType("sglang"), types.ModuleType("sglang.srt.layers.sampler")
    package.__version__ = version  # type: ignore[attr-defined]
    module._CUSTOM_SAMPLER_FACTORIES = factories  # type: ignore[attr-defined]
    module.Sampler = PlainSampler  # type: ignore[attr-defined]
    calls: list[str] = []

    def register_sampler_backend(name: str, factory: Any) -> None:
        calls.append(name)
        factories[name] = factory

    module.register_sampler_backend = register_sampler_backend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", package)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.sampler", module)
    batches = types.ModuleType("sglang.srt.sampling.sampling_batch_info")
    batches.SamplingBatchInfo = batch_info()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, batches.__name__, batches)
    runner: Any = type("ModelRunner", (), {"sample": lambda self, logits_output, forward_batch: None})
    monkeypatch.setitem(sys.modules, sglang_positions.RUNNER, types.SimpleNamespace(ModelRunner=runner))
    utils, resolved = speculation(monkeypatch), settings(monkeypatch)
    if version == "9.9":
        with pytest.warns(UserWarning, match=r"the version of SGLang must be one of .*0\.5\.23, got 9\.9"):
            adapter.register()
        assert not calls
        assert not hasattr(utils.eagle_sample, "replaced")
        return
    assert resolved("ascend_sample") == "pytorch"
    adapter.register()
    adapter.register()
    assert calls == ["ascend_sample"]
    for device, is_deterministic in itertools.product(("cpu", "npu"), (False, True)):
        assert resolved("ascend_sample", device, is_deterministic=is_deterministic) == "ascend_sample"
    assert resolved("flashinfer") == "pytorch"
    assert resolved("flashinfer", "cuda") == "flashinfer"
    assert resolved("flashinfer", "cuda", is_deterministic=True) == "pytorch"
    with pytest.warns(UserWarning, match="rl_on_policy_target asks for the trainer's log-probabilities"):
        assert resolved("ascend_sample", "npu", rl_on_policy_target="fsdp") == "pytorch"
    assert isinstance(factories["ascend_sample"](), PlainSampler)
    speculation(monkeypatch, speculative_algorithm="dspark")
    with pytest.warns(UserWarning, match="DSPARK has functions of its own, so drafts are verified by sglang's own"):
        factories["ascend_sample"]()
    assert not hasattr(batches.SamplingBatchInfo.filter_batch.replaced, "replaced"), "it is wrapped once"
    assert not hasattr(utils.eagle_sample.replaced, "replaced"), "it is wrapped once"
    assert not hasattr(runner.sample.replaced, "replaced"), "it is wrapped once"


REQUESTS = (  # temperature, top-k, top-p, min-p
    (1.0, 1, 1.0, 0.0),
    (0.7, 20, 0.9, 0.0),
    (1.0, 7, 1.0, 0.0),
    (0.5, 1 << 30, 1.0, 0.1),
    (1.0, 1 << 30, 0.8, 0.0),
)


def drawn(info: Any, device: str, step: int) -> tuple[list[int], Any]:
    sampler = adapter.sampler_class(PlainSampler)()
    rows = len(info.temperatures)
    logits = torch.randn(rows, 1400, generator=torch.Generator().manual_seed(rows)).to(device)
    with hostcann.profile() as counters:
        ids = sampler._forward_ascend_backend(logits, info, False, False, (torch.arange(rows) + step).to(device))[0]
    return ids.tolist(), counters


def stepped(kind: type[Any], device: str) -> list[tuple[list[int], Any]]:
    """Steps of a batch that is made, filtered, and merged with another."""
    info = batch_of(kind, REQUESTS, device)
    found = [drawn(info, device, 0)]
    keep = [4, 1, 3]
    info.filter_batch(keep, torch.tensor(keep, device=device))
    found.append(drawn(info, device, 1))
    info.merge_batch(batch_of(kind, REQUESTS[:3], device))
    return [*found, drawn(info, device, 2)]


def test_what_requests_ask_for_is_known_on_the_host(counting: None, npu: str) -> None:
    on_cpu = [ids for ids, _ in stepped(batch_info(), "cpu")]
    for (ids, counted), (slow_ids, slow), expected in zip(
        stepped(batch_info(is_noted=True), npu), stepped(batch_info(), npu), on_cpu, strict=True
    ):
        assert ids == slow_ids == expected
        assert "aclnnSort" not in counted.launches
        assert "aclnnSort" in slow.launches


def test_nodes_of_drafts_take_the_routes_of_their_requests(counting: None, npu: str) -> None:
    kind, rows = batch_info(is_noted=True), len(REQUESTS) * 3
    logits = torch.randn(rows, 1400, generator=torch.Generator().manual_seed(rows))
    positions = torch.arange(rows) // 2
    expected = adapter._drawn(logits, batch_of(kind, REQUESTS, "cpu"), positions, 3)
    info, there = batch_of(kind, REQUESTS, npu), positions.to(npu)
    for _ in range(2):  # the first run makes what the others find
        on_npu = logits.to(npu)
        with hostcann.profile() as counters:
            found = adapter._drawn(on_npu, info, there, 3)
    assert torch.equal(found.cpu(), expected)
    assert "aclnnSort" not in counters.launches
    assert not counters.synchronizations


def test_what_is_written_to_a_tensor_is_not_known(accelerator: str) -> None:
    kind = batch_info(is_noted=True)
    info, merged = (batch_of(kind, REQUESTS, accelerator) for _ in range(2))
    assert adapter._noted(info) is not None
    info.top_ks.fill_(3)
    assert adapter._noted(info) is None
    info.filter_batch([0, 1], torch.tensor([0, 1], device=accelerator))
    assert adapter._noted(info) is None
    merged.merge_batch(info)
    assert adapter._noted(merged) is None


def seeded(kind: type[Any], seeds: list[int | None], copies: int = 1) -> Any:
    """A batch as SGLang makes it without `enable_deterministic_inference`: of requests without filters."""
    return batch_of(kind, [(1.0, 1 << 30, 1.0, 0.0)] * len(seeds), "cpu", seeds, copies)


def texts(info: Any) -> list[tuple[int, ...]]:
    """Of each row what twenty steps draw from the same logits."""
    rows = len(info.temperatures)
    steps = [adapter._drawn(torch.zeros(rows, 1400), info, torch.full((rows,), step)) for step in range(20)]
    return list(zip(*(step.tolist() for step in steps), strict=True))


def test_a_seed_decides_alone_and_in_any_batch() -> None:
    kind = batch_info(is_noted=True)
    alone = {seed: texts(seeded(kind, [seed]))[0] for seed in (3, 8)}
    info = seeded(kind, [None, 3, None, 8])
    found = texts(info)
    assert (found[1], found[3]) == (alone[3], alone[8])
    assert len(set(found)) == 4
    assert texts(info) == found, "a request without a seed keeps the one that it got"
    info.filter_batch([3, 0], torch.tensor([3, 0]))
    assert texts(info) == [found[3], found[0]]
    info.merge_batch(seeded(kind, [3]))
    assert texts(info) == [found[3], found[0], alone[3]]
    large = texts(seeded(kind, [2**64 - 8, 2**63, -8]))
    assert large[0] == large[2] != large[1], "it may lie beyond int64"
    assert len(set(texts(seeded(kind, [5, 5, 5], copies=3)))) == 3, "copies of a request are other texts"


def test_another_backend_of_sglang_has_nothing_of_ours() -> None:
    kind = batch_info()
    adapter.note_host_values(kind, lambda: False)
    state = torch.get_rng_state()
    info = seeded(kind, [5])
    assert adapter._noted(info) is None
    assert torch.equal(torch.get_rng_state(), state), "its own draws stay what they are"
    assert texts(info)[0] != texts(info)[0], "a random seed in each step"
