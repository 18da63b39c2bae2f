"""Counts, in a worker of vLLM, the steps in which vLLM samples: beside the counter of the plugin, and without it.

vLLM's option ``worker_extension_cls`` names the class. Nothing here knows what the plugin replaces: what is wrapped is
the method of vLLM's sampler that asks for draws.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from vllm.v1.sample.sampler import Sampler

from ascend_sample.integrations import vllm_drafts
from ascend_sample.integrations.vllm_served import WorkerExtension

sampled: Counter[str] = Counter()
verified: Counter[str] = Counter()
"""Tokens that requests got from verifications of their drafts, and how many of these there were."""
own, own_verify = Sampler.sample, vllm_drafts._verify


@functools.wraps(own)
def sample(self: Sampler, logits: Any, sampling_metadata: Any, *arguments: Any, **named: Any) -> Any:
    if not sampling_metadata.all_greedy:  # greedy tokens are the best ones, and nobody draws
        sampled.update(steps=1, rows=len(logits))
    return own(self, logits, sampling_metadata, *arguments, **named)


def verify(*arguments: Any) -> Any:
    output = own_verify(*arguments)
    of_requests = output.sampled_token_ids
    verified.update(tokens=int((of_requests != -1).sum()), requests=len(of_requests))
    return output


Sampler.sample, vllm_drafts._verify = sample, verify


class Counting(WorkerExtension):
    """What the checks ask a worker."""

    def counted(self) -> dict[str, dict[str, int]]:
        return {
            "sampled": {name: sampled[name] for name in ("steps", "rows")},
            "served": self.ascend_sample_served(),
            "verified": {name: verified[name] for name in ("tokens", "requests")},
        }
