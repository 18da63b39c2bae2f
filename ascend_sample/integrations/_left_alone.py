"""Says where an engine's own rejection sampler goes on verifying drafts."""

from __future__ import annotations

import warnings
from typing import Any


def say_left(sampler: Any, reason: str) -> None:
    """Warns, once for each sampler, that drafts are not verified here.

    Args:
        sampler: the engine's, which goes on.
        reason: why.
    """
    if not getattr(sampler, "is_left_alone", False):
        sampler.is_left_alone = True
        owner = type(sampler).__module__.partition(".")[0]
        warnings.warn(f"ascend_sample: {reason}, so drafts are verified by {owner}'s own sampler.", stacklevel=3)
