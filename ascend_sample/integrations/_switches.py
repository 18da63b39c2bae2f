"""Switches in the environment of an engine."""

from __future__ import annotations

import os

from ascend_sample._errors import refuse, show


def is_on(variable: str, *, default: bool) -> bool:
    """Returns whether a variable of the environment is 1, and not 0.

    Raises:
        ValueError: it is something else.
    """
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        refuse("ascend_sample", variable, "be 0 or 1", show(value), f"Leave it out for {int(default)}.")
    return value == "1" if value else default
