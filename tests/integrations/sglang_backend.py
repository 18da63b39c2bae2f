"""The backend inside SGLang: made by SGLang's own factory, run by its own `Sampler.forward`.

`nox -s integrations` runs this in an environment that has SGLang; there is no accelerator in it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchvision_without_cuda  # noqa: F401  before SGLang
from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput, SamplingMaskStatus
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch import Tensor

from ascend_sample.integrations import sglang as adapter

ROWS, COLUMNS = 400, 120
DEVICE = "cpu"
"""Where tensors are: `sglang_npu.py` puts them elsewhere."""


@pytest.fixture(scope="module")
def sampler() -> Iterator[Any]:
    load_plugins()  # finds the package's entry point
    assert adapter.BACKEND in sglang_sampler._CUSTOM_SAMPLER_FACTORIES
    from sglang.srt.server_args import SAMPLING_BACKEND_CHOICES

    assert adapter.BACKEND in SAMPLING_BACKEND_CHOICES
    adapter.register()
    group = types.SimpleNamespace(device_group=None)
    context = get_context().override_server_args(sampling_backend=adapter.BACKEND)
    with context, get_parallel().override(tp_group=group):
        yield sglang_sampler.create_sampler()


def parameters(seed: int | None = 1, **changes: Any) -> SamplingBatchInfo:
    generator = torch.Generator().manual_seed(8)
    values: dict[str, Any] = {
        "temperatures": torch.rand(ROWS, 1, generator=generator) + 0.5,
        "top_ks": torch.randint(1, COLUMNS, (ROWS,), generator=generator, dtype=torch.int32),
        "top_ps": torch.ones(ROWS),
        "min_ps": torch.zeros(ROWS),
        "is_all_greedy": False,
        "is_any_greedy": False,
        "need_top_p_sampling": False,
        "need_top_k_sampling": True,
        "need_min_p_sampling": False,
        "vocab_size": COLUMNS,
        "sampling_seed": None if seed is None else torch.arange(ROWS) + seed,
    }
    values |= changes
    return SamplingBatchInfo(**{name: there(value) for name, value in values.items()})


def there(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, Tensor) else value


def logits() -> Tensor:
    return (torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2)) * 3).to(DEVICE)


def forward(sampler: Any, info: SamplingBatchInfo, return_logprob: bool = False, start: int = 0) -> tuple[Tensor, Any]:
    output = LogitsProcessorOutput(next_token_logits=logits())
    positions = there(torch.arange(ROWS) + start)
    ids = sampler(output, info, return_logprob, [0] * ROWS, [None] * ROWS, positions)
    return ids, output


def test_only_what_top_k_keeps_is_drawn(sampler: Any) -> None:
    info = parameters()
    ranks = logits().argsort(1, descending=True).argsort(1)
    for start in range(20):
        ids, _ = forward(sampler, info, start=start)
        assert ids.dtype == torch.int32
        assert (ranks.gather(1, ids.long()[:, None]).squeeze(1) < info.top_ks).all()


def test_greedy_requests(sampler: Any) -> None:
    ids, _ = forward(sampler, parameters(is_all_greedy=True, top_ks=torch.ones(ROWS, dtype=torch.int32)))
    assert torch.equal(ids.long(), logits().argmax(1))
    mixed = parameters(is_any_greedy=True)
    mixed.top_ks[::2] = 1
    ids, _ = forward(sampler, mixed)
    assert torch.equal(ids.long()[::2], logits().argmax(1)[::2])


def test_logprobs(sampler: Any) -> None:
    info = parameters()
    ids, output = forward(sampler, info, return_logprob=True)
    expected = (logits() / info.temperatures).log_softmax(1).gather(1, ids.long()[:, None]).squeeze(1)
    torch.testing.assert_close(output.next_token_logprobs, expected, atol=1e-5, rtol=0)


def test_logprobs_of_named_ids(sampler: Any) -> None:
    info, output = parameters(), LogitsProcessorOutput(next_token_logits=logits())
    named = [None if row % 3 == 0 else [row % COLUMNS, 7, 7][: row % 3 + 1] for row in range(ROWS)]
    sampler(output, info, True, [0] * ROWS, named, there(torch.arange(ROWS)))
    assert output.next_token_token_ids_logprobs_idx == [ids or [] for ids in named]
    expected = (logits() / info.temperatures).log_softmax(1)
    for row, (ids, found) in enumerate(zip(named, output.next_token_token_ids_logprobs_val, strict=True)):
        torch.testing.assert_close(torch.as_tensor(found).cpu(), expected[row, ids or []].cpu(), atol=1e-5, rtol=0)


def test_kept_sets_of_top_k_or_top_p_alone(sampler: Any) -> None:
    """What SGLang's own torch sampler draws is drawn here too. Together the filters mean another thing there."""
    logits_of_one = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])
    probabilities = logits_of_one.softmax(1)
    for top_k, top_p in ((2, 1.0), (1 << 30, 0.8), (1 << 30, 0.3)):
        count = 3000
        k, p = torch.full((count,), top_k, dtype=torch.int32), torch.full((count,), top_p)
        own = sglang_sampler.top_k_top_p_min_p_sampling_from_probs_torch(
            probabilities.repeat(count, 1), k.clamp(max=5), p, torch.zeros(count), False, None, torch.arange(count)
        )
        info = types.SimpleNamespace(
            temperatures=there(torch.ones(count, 1)),
            top_ks=there(k),
            top_ps=there(p),
            min_ps=there(torch.zeros(count)),
            need_min_p_sampling=False,
            need_top_k_sampling=True,
            need_top_p_sampling=True,
            max_top_k=None,
            sampling_seed=there(torch.arange(count)),
            sampling_mask_batch_indices=None,
        )
        ids, _ = sampler._forward_ascend_backend(
            there(logits_of_one.repeat(count, 1)), info, False, False, there(torch.arange(count))
        )
        assert set(ids.tolist()) == set(own.tolist())


def test_sampling_masks(sampler: Any) -> None:
    """The scheduler reads what was kept of the requests that ask, in order, and their log-probabilities."""
    asks = [row % 3 == 0 for row in range(ROWS)]
    rows = torch.arange(0, ROWS, 3)
    with_all = torch.arange(0, len(rows), 2)
    info = parameters(
        return_sampling_masks=asks, sampling_mask_batch_indices=rows, sampling_support_logprobs_capture_indices=with_all
    )
    info.top_ks.clamp_(max=60)
    ids, output = forward(sampler, info)
    info.sampling_mask_batch_indices = None
    assert torch.equal(forward(sampler, info)[0], ids)
    modes = ["selected" if row % 6 else "support" for row in range(ROWS)]
    requests = [
        types.SimpleNamespace(return_sampling_mask=asked, sampling_logprobs_mode=mode)
        for asked, mode in zip(asks, modes, strict=True)
    ]
    SchedulerBatchResultProcessor.materialize_sampling_mask_output(requests, output)
    assert [mask is not None for mask in output.next_token_sampling_mask_idx] == asks
    for row in rows.tolist():
        assert output.next_token_sampling_mask_status[row] == SamplingMaskStatus.OK
        kept = output.next_token_sampling_mask_idx[row].tolist()
        assert kept == sorted(logits()[row].topk(int(info.top_ks[row])).indices.tolist())
        expected = (logits()[row, kept].cpu().double() / info.temperatures[row].cpu()).log_softmax(0)
        if row % 6:
            expected = expected[kept.index(int(ids[row]))].view(1)
        found = torch.as_tensor(output.next_token_sampling_logprobs[row]).double()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=2**-22)
