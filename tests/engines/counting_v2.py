"""As `counting`, for vLLM's V2 runner, whose sampler is asked in every step."""

from __future__ import annotations

import functools
from typing import Any

from counting import Counting as Counting
from counting import sampled
from vllm.v1.worker.gpu.sample.sampler import Sampler

own = Sampler.__call__


@functools.wraps(own)
def call(self: Sampler, logits: Any, *arguments: Any, **named: Any) -> Any:
    sampled.update(steps=1, rows=len(logits))
    return own(self, logits, *arguments, **named)


Sampler.__call__ = call
