"""Says where an engine goes on drawing, or verifying drafts, by itself."""

from __future__ import annotations

import warnings
from typing import Any, Final

DRAWING: Final = "tokens are drawn"


def say_left(owner: Any, reason: str, engine: str, what: str = "drafts are verified") -> None:
    """Warns, once for each owner, that something is not done here.

    Args:
        owner: what does it in the engine; it can have attributes.
        reason: why.
        engine: who goes on doing it.
        what: it is that is done.
    """
    if not getattr(owner, "is_left_alone", False):
        owner.is_left_alone = True
        warnings.warn(f"ascend_sample: {reason}, so {what} by {engine}'s own sampler.", stacklevel=4)
