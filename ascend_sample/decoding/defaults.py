"""A model may say something about its texts itself, which counts where a caller says nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ascend_sample.decoding.request import LogitsProcessor, Request


@dataclass(frozen=True)
class GenerationDefaults:
    """Says what a `StepModel` wants of its texts; the type of its attribute `generation_defaults`.

    Source: docs/decoding.md, section "Models".
    """

    eos_token_id: tuple[int, ...] = ()  # the tokens that end a text, unless the caller names others, or none with ()
    pad_token_id: int | None = None  # the token that fills rows, unless the caller names another one
    rules: tuple[str, ...] = ()  # the settings that the processors come from, for messages: "repetition_penalty=1.2"
    # a function of the request, whose tokens and prompts are checked, that returns what comes before the caller's
    # logits_processor. It is called for each request, so what it returns may know the prompts.
    processors: Callable[[Request], Sequence[LogitsProcessor]] = lambda request: ()


NO_DEFAULTS: Final = GenerationDefaults()


def defaults_of(model: object) -> GenerationDefaults:
    """Returns what the model says, or `NO_DEFAULTS` if it says nothing."""
    found = getattr(model, "generation_defaults", NO_DEFAULTS)
    return found if isinstance(found, GenerationDefaults) else NO_DEFAULTS
