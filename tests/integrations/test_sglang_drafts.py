"""Drafts of SGLang where SGLang is not installed: on stand-ins for its functions.

`nox -s integrations` runs the same checks inside SGLang (sglang_drafts_parity.py).
"""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import sglang as adapter
from ascend_sample.integrations import sglang_drafts
from tests.integrations.drafting_trees import NODES, REQUESTS, TreeChecks, Trees
from tests.integrations.sglang_stand_ins import speculation


def made(utils: Any) -> Any:
    """Returns what makes `Trees`, with the adapter installed twice, which is as good as once."""
    sglang_drafts.install(adapter._drawn, adapter.BACKEND)
    first = utils.eagle_sample
    sglang_drafts.install(adapter._drawn, adapter.BACKEND)
    assert utils.eagle_sample is first
    assert [sys.modules[name].eagle_sample for name in sglang_drafts.IMPORTERS] == [first] * 2, "by name too"

    def sample(logits: Tensor, info: Any, positions: Tensor) -> Tensor:
        return adapter._forward(SimpleNamespace(masked_rows=None), logits, info, False, False, positions)[0]

    def info(**values: Any) -> Any:
        return SimpleNamespace(
            **values, max_top_k=None, sampling_mask_batch_indices=None, has_watermark_candidates=True
        )

    return sample, utils.eagle_sample, info


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    return made(speculation(monkeypatch))


class TestStandIns(TreeChecks):
    """All that must hold."""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"speculative_algorithm": "UNO"}, "UNO draws the first token of each tree itself"),
        ({"speculative_use_rejection_sampling": True}, "drafts are judged by their probabilities"),
        ({"speculative_accept_threshold_single": 0.5}, "a threshold accepts what the target would not draw"),
        ({"speculative_accept_threshold_acc": 0.9}, "a threshold accepts what the target would not draw"),
        ({"watermark_state": 1}, "tokens are watermarked"),
        ({"masks": 1}, "requests ask for sampling masks"),
    ],
)
def test_what_stays_sglangs(settings: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name: settings[name] for name in ("watermark_state",) if name in settings}
    _, verify, info = made(speculation(monkeypatch, **settings))
    batch = step_of(info)
    batch.sampling_info.sampling_mask_batch_indices = settings.get("masks")
    arguments = (SimpleNamespace(positions=None), batch, SimpleNamespace(next_token_logits=torch.zeros(1, 1)))
    with pytest.warns(UserWarning, match=f"ascend_sample: {reason}, so drafts are verified by sglang's own"):
        assert verify(*arguments, **named) == "its own"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verify(*arguments, **named) == "its own"


def step_of(info: Any) -> Any:
    return SimpleNamespace(
        seq_lens=torch.zeros(1),
        sampling_info=info(is_all_greedy=False),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
    )


@pytest.mark.parametrize("is_idle", [False, True])
def test_other_backends_and_idle_steps(is_idle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {} if is_idle else {"sampling_backend": "pytorch"}
    _, verify, info = made(speculation(monkeypatch, **changes))
    batch = step_of(info)
    batch.forward_mode.is_idle = lambda: is_idle
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verify(None, batch, SimpleNamespace(next_token_logits=torch.zeros(1, 1))) == "its own"


def test_ranks_follow_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = Trees(*made(speculation(monkeypatch, world_size=2)))
    trees.step([[(1, node - 1) for node in range(NODES)] for _ in REQUESTS])
    assert [each.output for each in trees.requests] == [[5]] * len(REQUESTS)  # what the stand-in's first rank has
