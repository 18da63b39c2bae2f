"""Requests whose answers are compared, with what it takes that prompts are read in chunks and that requests wait."""

from __future__ import annotations

from typing import Any, Final

from mixed_requests import PROMPTS
from serving import MOST_REQUESTS

LONG_PROMPT: Final = "The iterator returns the value of the argument when the function is called with the names. " * 5
"""About 100 tokens."""
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
)
SHORT: Final[tuple[dict[str, Any], ...]] = tuple(
    {"prompt": PROMPTS[place % len(PROMPTS)], "max_tokens": 40, "seed": 1000 + place, "ignore_eos": True}
    | SETTINGS[place % len(SETTINGS)]
    for place in range(MOST_REQUESTS)
)
LONG: Final = tuple(body | {"prompt": LONG_PROMPT, "max_tokens": 60} for body in SHORT)
"""In the end each needs two blocks of the cache of keys and values, 128 tokens each on a CPU."""
BATCHED_TOKENS: Final = 64
"""So many a step: prompts that are longer, or come together, are read in chunks."""
BLOCKS: Final = MOST_REQUESTS + 4
"""So few that requests have to wait for others' second block."""
