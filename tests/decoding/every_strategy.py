"""The table of strategies: how each is called, and what holds for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from ascend_sample import decoding
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams

GREEDY: Final = SamplingParams(temperature=0)
DRAWN: Final = SamplingParams(seed=5, top_k=6)


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    Attributes:
        search: the function with what it must be given; a caller's own options go before.
        greedy: the options that make it find what greedy search finds; None: none do.
        several: the options that let it give more than the best of what it has found.
        is_drawn: it draws, by params.
        has_beams: it keeps beams.
        is_streamed: its tokens are told as they come.
        takes_processors: it takes processors, criteria and return_scores.
        warns_of: what its warnings number.
    """

    search: Callable[..., DecodeOutput]
    greedy: dict[str, Any] | None = None
    several: dict[str, Any] = field(default_factory=dict)
    is_drawn: bool = False
    has_beams: bool = False
    is_streamed: bool = False
    takes_processors: bool = True
    warns_of: str = "rows"

    def drafted_by(self, model: Any) -> dict[str, Any]:
        """Returns the option that lets a model draft, where this strategy has drafts."""
        return {} if self.takes_processors else {"drafter": model}


def _of_beams(search: Callable[..., DecodeOutput], **own: Any) -> Strategy:
    is_drawn = "params" in own
    several = {"num_return_sequences": 4}
    call = partial(search, num_beams=4, **own)
    return Strategy(call, None, several, is_drawn, has_beams=True, warns_of="prompts")


STRATEGIES: Final = {
    "greedy_search": Strategy(partial(decoding.greedy_search), {}, is_streamed=True),
    "sample": Strategy(partial(decoding.sample, params=DRAWN), {"params": GREEDY}, is_drawn=True, is_streamed=True),
    "sample_and_rank": Strategy(
        partial(decoding.sample_and_rank, params=DRAWN, num_samples=3),
        several={"num_return_sequences": 2},
        is_drawn=True,
        warns_of="prompts",
    ),
    "contrastive_search": Strategy(partial(decoding.contrastive_search), {"penalty_alpha": 0.0}, is_streamed=True),
    "speculative_sample": Strategy(
        partial(decoding.speculative_sample, params=DRAWN, drafter=decoding.NGramDrafter(), gamma=2),
        {"params": GREEDY, "gamma": 3},
        is_drawn=True,
        is_streamed=True,
        takes_processors=False,
    ),
    "beam_search": _of_beams(decoding.beam_search),
    "beam_search in the beam": _of_beams(decoding.beam_search, finished="in_beam"),
    "beam_sample": _of_beams(decoding.beam_sample, params=DRAWN),
    "group_beam_search": _of_beams(decoding.group_beam_search, num_beam_groups=2, diversity_penalty=0.5),
}
FUNCTIONS: Final = tuple(dict.fromkeys(name.split()[0] for name in STRATEGIES))
"""The public names."""


def names(**properties: Any) -> tuple[str, ...]:
    """Returns the names of the strategies that have these properties."""
    return tuple(
        name
        for name, strategy in STRATEGIES.items()
        if all(getattr(strategy, key) == value for key, value in properties.items())
    )


EACH: Final = pytest.mark.parametrize("name", STRATEGIES)
OF_BEAMS: Final = pytest.mark.parametrize("name", names(has_beams=True))
PROCESSED: Final = pytest.mark.parametrize("name", names(takes_processors=True))
STEP_BY_STEP: Final = names(is_streamed=True, takes_processors=True)
"""Of which each step gives a row one token that stays."""
