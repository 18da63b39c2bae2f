"""How long, in what portions and how fast the models of the examples are trained."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number of steps, whose learning rate rises linearly and then falls to zero."""

    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    seed: int = 0

    def rate(self, step: int) -> float:
        """Returns the factor of the learning rate.

        Example:
            >>> [Schedule(steps=4, warmup_steps=2).rate(step) for step in range(5)]
            [0.5, 0.75, 0.5, 0.25, 0.0]
        """
        return min((step + 1) / self.warmup_steps, 1 - step / self.steps)
