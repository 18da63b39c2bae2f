"""What SGLang's batches, settings and verification of drafts look like from outside, for tests without SGLang."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascend_sample.integrations import sglang as adapter
from ascend_sample.integrations import sglang_drafts, sglang_settings
from tests.integrations.drafting_trees import follow


def speculation(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Puts the modules that the adapter looks at in their places; returns `eagle_utils`.

    Args:
        monkeypatch: takes them away again.
        changes: what the server was started with.
    """
    names = (sglang_drafts.UTILS, sglang_drafts.CONTEXT, "sglang.srt.layers.dp_attention", *sglang_drafts.IMPORTERS)
    made: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    utils, context = made[sglang_drafts.UTILS], made[sglang_drafts.CONTEXT]
    asked = {"sampling_backend": "ascend_sample", "speculative_use_rejection_sampling": False, "world_size": 1}
    asked |= {"speculative_algorithm": "EAGLE"}
    thresholds = {"speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0}
    settings = SimpleNamespace(**(asked | thresholds | changes))
    group = SimpleNamespace(world_size=settings.world_size, broadcast=lambda tensor, src: tensor.fill_(5))
    context.get_exec = lambda: SimpleNamespace(kernel=settings)
    context.get_spec = lambda: settings
    context.get_parallel = lambda: SimpleNamespace(tp_group=group, attn_tp_group=None)
    made["sglang.srt.layers.dp_attention"].is_dp_attention_enabled = lambda: False

    def eagle_sample(verify_input: Any, batch: Any, logits_output: Any, *, watermark_state: Any = None) -> Any:
        logits, requests = logits_output.next_token_logits, len(batch.seq_lens)
        if not utils._verify_uses_greedy(is_all_greedy=batch.sampling_info.is_all_greedy):
            return "its own"
        predicts, accept_index, counts = utils.verify_tree_greedy_func(
            predicts=torch.zeros(len(logits), dtype=torch.int32),
            accept_index=torch.full((requests, verify_input.max_tree_depth), -1, dtype=torch.int32),
            accept_token_num=torch.empty(requests, dtype=torch.int32),
            candidates=verify_input.draft_token.view(requests, -1),
            retrieve_index=verify_input.retrieve_index,
            retrieve_next_token=verify_input.retrieve_next_token,
            retrieve_next_sibling=verify_input.retrieve_next_sibling,
            target_predict=logits.argmax(1).view(requests, -1),
            topk=verify_input.tree_topk,
        )
        return predicts, counts + 1, accept_index

    utils.eagle_sample, utils.verify_tree_greedy_func = eagle_sample, follow
    utils._verify_uses_greedy = lambda *, is_all_greedy: is_all_greedy
    for name in sglang_drafts.IMPORTERS:
        made[name].eagle_sample = eagle_sample
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return utils


def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the modules that set SGLang's backend in their places; returns what resolves the one that was asked for."""
    names = (sglang_settings.DECLARATIONS, sglang_settings.PLATFORMS, sglang_settings.DETERMINISM)
    declarations, platforms, determinism = (types.ModuleType(name) for name in names)

    def declare_resolution(server_args: Any, source: str, **fields: Any) -> None:
        server_args.resolved |= fields

    def handle_cpu_backends(server_args: Any) -> None:
        if server_args.device == "cpu":
            declare_resolution(server_args, "its own", sampling_backend="pytorch")

    def _deterministic_sampling_backend(view: Any) -> dict[str, Any]:
        return {"sampling_backend": "pytorch"} if view.is_deterministic else {}

    declarations.declare_resolution = declare_resolution  # type: ignore[attr-defined]
    platforms.handle_cpu_backends = handle_cpu_backends  # type: ignore[attr-defined]
    determinism._deterministic_sampling_backend = _deterministic_sampling_backend  # type: ignore[attr-defined]
    for module in (declarations, platforms, determinism):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def resolved(
        asked: str, device: str = "cpu", *, is_deterministic: bool = False, rl_on_policy_target: str | None = None
    ) -> str:
        args = SimpleNamespace(sampling_backend=asked, device=device, resolved={})
        platforms.handle_cpu_backends(args)
        view = SimpleNamespace(
            sampling_backend=args.resolved.get("sampling_backend", asked),
            is_deterministic=is_deterministic or rl_on_policy_target is not None,
            rl_on_policy_target=rl_on_policy_target,
        )
        declared = determinism._deterministic_sampling_backend(view)
        return str(declared.get("sampling_backend", view.sampling_backend))

    return resolved


def batch_info(is_noted: bool = False) -> type[Any]:
    """Makes a class like SGLang's, whose three methods do what SGLang's do with the tensors of a batch.

    Args:
        is_noted: as it is with the backend: the host knows what the tensors hold.
    """

    class SamplingBatchInfo:
        need_top_k_sampling = need_top_p_sampling = need_min_p_sampling = True
        max_top_k = sampling_mask_batch_indices = None

        @classmethod
        def from_schedule_batch(cls, batch: Any, vocab_size: int) -> Any:
            info: Any = cls()
            for name, tensor in adapter.TENSORS.items():
                values = torch.tensor([getattr(request.sampling_params, name) for request in batch.reqs])
                kind = torch.int32 if name == "top_k" else torch.float32
                setattr(info, tensor, values.to(kind).to(batch.device, non_blocking=True))
            info.temperatures = info.temperatures.view(-1, 1)
            info.sampling_seed = None
            if getattr(batch, "is_deterministic", True):
                info.sampling_seed = torch.arange(len(batch.reqs), device=batch.device)
            return info

        def filter_batch(self, keep_indices: list[int], keep_indices_device: torch.Tensor) -> None:
            for name in (*adapter.TENSORS.values(), "sampling_seed"):
                if getattr(self, name) is not None:
                    setattr(self, name, getattr(self, name)[keep_indices_device])

        def merge_batch(self, other: Any) -> None:
            for name in (*adapter.TENSORS.values(), "sampling_seed"):
                if getattr(self, name) is not None:
                    setattr(self, name, torch.cat((getattr(self, name), getattr(other, name))))

    for _ in range(2 * is_noted):
        adapter.note_host_values(SamplingBatchInfo, lambda: True)
    return SamplingBatchInfo


def batch_of(kind: type[Any], requests: Any, device: str, seeds: Sequence[int | None] = (), copies: int = 1) -> Any:
    """Makes a batch of requests, each a temperature, top-k, top-p and min-p.

    Args:
        kind: the class, of `batch_info`.
        requests: at most as many as there are seeds, where there are some.
        device: of its tensors.
        seeds: of the requests, without SGLang's `enable_deterministic_inference`; none: SGLang has them.
        copies: of each request.
    """
    asked = [dict(zip(adapter.TENSORS, request, strict=True)) for request in requests]
    for values, seed in zip(asked, seeds, strict=False):
        values |= {"sampling_seed": seed, "n": copies}
    reqs = [SimpleNamespace(sampling_params=SimpleNamespace(**values)) for values in asked]
    return kind.from_schedule_batch(SimpleNamespace(reqs=reqs, device=device, is_deterministic=not seeds), 30)
