"""Says where an engine goes on verifying drafts by itself."""

from __future__ import annotations

import warnings
from typing import Any


def say_left(verifier: Any, reason: str, engine: str) -> None:
    """Warns, once for each verifier, that drafts are not verified here.

    Args:
        verifier: what takes the drafts; it can have attributes.
        reason: why.
        engine: who goes on verifying them.
    """
    if not getattr(verifier, "is_left_alone", False):
        verifier.is_left_alone = True
        warnings.warn(f"ascend_sample: {reason}, so drafts are verified by {engine}'s own sampler.", stacklevel=4)
