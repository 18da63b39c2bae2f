"""Every strategy by its name, to be called alike, and a model that all of them can search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample import decoding
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams

GREEDY: Final = SamplingParams(temperature=0)
DRAWN: Final = SamplingParams(seed=5, top_k=6)
STRATEGIES: Final[dict[str, Callable[..., DecodeOutput]]] = {
    "greedy_search": decoding.greedy_search,
    "sample": partial(decoding.sample, params=DRAWN),
    "sample_and_rank": partial(decoding.sample_and_rank, params=DRAWN, num_samples=3),
    "contrastive_search": decoding.contrastive_search,
    "speculative_sample": partial(decoding.speculative_sample, params=DRAWN, drafter=decoding.NGramDrafter(), gamma=2),
    "beam_search": partial(decoding.beam_search, num_beams=4),
    "beam_search in the beam": partial(decoding.beam_search, num_beams=4, finished="in_beam"),
    "beam_sample": partial(decoding.beam_sample, params=DRAWN, num_beams=4),
    "group_beam_search": partial(decoding.group_beam_search, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
}
"""With what each must be given; a caller's own options go before."""
BEAMS: Final = tuple(name for name in STRATEGIES if "beam" in name)
STEP_BY_STEP: Final = ("greedy_search", "sample", "contrastive_search")
"""Of which each step gives a row one token that stays."""
WITH_PROCESSORS: Final = tuple(name for name in STRATEGIES if name != "speculative_sample")
DRAWING: Final = tuple(name for name in STRATEGIES if "sample" in name)


def several(name: str) -> dict[str, Any]:
    """Returns the option that lets a search give more than the best of what it has found."""
    return {"num_return_sequences": 4 if name in BEAMS else 2} if name in (*BEAMS, "sample_and_rank") else {}


def drafted_by(name: str, model: Any) -> dict[str, Any]:
    """Returns the option that lets a model draft for speculative sampling."""
    return {"drafter": model} if name == "speculative_sample" else {}


def model_of(table: Tensor, device: str = "cpu") -> ModuleModel:
    """What follows a token is its row of the table, [vocab_size, vocab_size]; each token has a state of its own."""
    logits, states = table.to(device), torch.eye(len(table), device=device)
    return ModuleModel(lambda input_ids: (logits[input_ids], states[input_ids]))
