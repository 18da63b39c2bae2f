"""Counts, in a worker of vLLM, the steps in which vLLM samples: beside the counter of the plugin, and without it.

vLLM's option ``worker_extension_cls`` names the class. Nothing here knows what the plugin replaces: what is wrapped is
the method of vLLM's sampler that asks for draws.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from vllm.v1.sample.sampler import Sampler

from ascend_sample.integrations.vllm_served import WorkerExtension

sampled: Counter[str] = Counter()
own = Sampler.sample


@functools.wraps(own)
def sample(self: Sampler, logits: Any, sampling_metadata: Any, *arguments: Any, **named: Any) -> Any:
    if not sampling_metadata.all_greedy:  # greedy tokens are the best ones, and nobody draws
        sampled.update(steps=1, rows=len(logits))
    return own(self, logits, sampling_metadata, *arguments, **named)


Sampler.sample = sample


class Counting(WorkerExtension):
    """What the checks ask a worker."""

    def counted(self) -> dict[str, dict[str, int]]:
        return {"sampled": {name: sampled[name] for name in ("steps", "rows")}, "served": self.ascend_sample_served()}
