"""vLLM's own rejection sampler of the V1 runner with the plugin installed: seeded texts, logprobs, the target's law.

`nox -s integrations` runs this in environments that have vLLM; there is no accelerator in them.
"""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.v1.sample import rejection_sampler as vllm_rejection
from vllm.v1.sample import sampler as vllm_sampler
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from ascend_sample.integrations import vllm as adapter
from tests.integrations.drafting_checks import DraftChecks
from tests.integrations.without_pinning import do_without_pinning


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's classes, with the plugin installed as in any process of vLLM."""
    do_without_pinning(monkeypatch)
    adapter.register()
    return types.SimpleNamespace(
        Sampler=vllm_sampler.Sampler,
        RejectionSampler=vllm_rejection.RejectionSampler,
        SamplingMetadata=SamplingMetadata,
        SpecDecodeMetadata=SpecDecodeMetadata,
        LogitsProcessors=LogitsProcessors,
        MinTokensLogitsProcessor=MinTokensLogitsProcessor,
        BatchUpdate=BatchUpdate,
    )


class TestInVllm(DraftChecks):
    """All that must hold, of vLLM's classes."""
