"""Adaptive gamma drafts more where drafts are accepted, and fewer where they are not."""

from __future__ import annotations

from ascend_sample._errors import check_integer, refuse


class AdaptiveGamma:
    """Chooses how many tokens `speculative_sample` drafts in the next round, from 1 to a limit.

    Two more after a round whose drafts were all accepted, in all rows, and one fewer after any other round. A round
    without drafts changes nothing. The choice depends on earlier places alone, so what is drawn stays exact.

    An object learns as long as it is used: give the same one to calls with the same models.

    Args:
        max_gamma: gamma is at most this.

    Attributes:
        gamma: how many tokens the next round drafts.

    Example:
        >>> control = AdaptiveGamma()
        >>> control.observe(looked=4, accepted=4)
        >>> control.gamma
        6
        >>> control.observe(looked=3, accepted=2)
        >>> control.gamma
        5

    Source: docs/decoding.md, section "Adaptive gamma"; `num_assistant_tokens_schedule="heuristic"` of transformers.
    """

    def __init__(self, max_gamma: int = 8) -> None:
        check_integer("AdaptiveGamma", "max_gamma", max_gamma, low=1)
        self.max_gamma = int(max_gamma)
        self.gamma = min(4, self.max_gamma)

    def observe(self, looked: int, accepted: int) -> None:
        """Learns from a round.

        Args:
            looked: how many draft tokens the target looked at, of all rows.
            accepted: how many of them it accepted.
        """
        if looked:
            self.gamma = min(self.gamma + 2, self.max_gamma) if accepted == looked else max(self.gamma - 1, 1)


def checked_gamma(strategy: str, gamma: object) -> int | AdaptiveGamma:
    """Returns how many tokens are drafted, or what chooses it, or raises unless it is given."""
    if isinstance(gamma, AdaptiveGamma):
        return gamma
    if gamma == "adaptive":
        return AdaptiveGamma()
    if isinstance(gamma, str):
        refuse(strategy, "gamma", "be an int, 'adaptive' or an AdaptiveGamma", repr(gamma), "Use 'adaptive'.")
    return check_integer(strategy, "gamma", gamma, low=0)
