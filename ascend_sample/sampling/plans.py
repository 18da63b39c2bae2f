"""Where a batch keeps what samplers have made for it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

MOST_PLANS: Final = 32


class Plans(dict[Hashable, Any]):
    """What samplers keep for a batch as it is: of each kind, and for each set of rows that a step's bitmask is for.

    These may be others in each step, so few are kept.

    Example:
        >>> plans = Plans()
        >>> for rows in range(100):
        ...     plans[rows] = "a plan"
        >>> len(plans), min(plans)
        (32, 68)
    """

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Keeps one more, and forgets the oldest."""
        if key not in self and len(self) == MOST_PLANS:
            del self[next(iter(self))]
        super().__setitem__(key, value)
