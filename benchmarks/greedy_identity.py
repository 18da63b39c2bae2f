"""Greedy texts by speculation beside the model's own: a part of `python -m benchmarks.speculative`."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.speculation.drafters import Drafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling import SamplingParams
from benchmarks.cached_language_model import CachedLanguageModel
from benchmarks.native import ROOT

IDENTITY_PROMPTS, IDENTITY_TOKENS, IDENTITY_BATCH = 1000, 24, 125


def find_examples() -> None:
    """Let modules of the folder of examples be imported."""
    folder = str(ROOT / "examples")
    if folder not in sys.path:
        sys.path.insert(0, folder)


def identity(prompts: int = IDENTITY_PROMPTS) -> dict[str, Any]:
    """Greedy texts of the demo's model by speculation, beside its own, for prompts of different lengths in a batch."""
    find_examples()
    from language_model import corpus, encode_prompt
    from language_model import load_or_train as load_demo

    network, tokenizer = load_demo(progress=False)
    documents = corpus.collect_documents()
    every = max(1, len(documents) // prompts)
    chosen = [encode_prompt(tokenizer, text)[: 4 + number % 9] for number, text in enumerate(documents[::every])]
    return compare_greedy(network, chosen[:prompts], IDENTITY_TOKENS)


def compare_greedy(network: Any, chosen: list[list[int]], tokens: int) -> dict[str, Any]:
    """Greedy texts by speculation with a draft of the first two layers, and with n-grams, beside the model's own."""
    own, closest = greedy_texts(network, chosen, tokens)
    drafters: dict[str, StepModel | Drafter] = {
        "its first two layers": CachedLanguageModel(network, 2),
        "n-grams of the text": NGramDrafter(),
    }
    differing = dict.fromkeys(drafters, 0)
    rates: dict[str, list[float]] = {name: [] for name in drafters}
    for first in tqdm(range(0, len(chosen), IDENTITY_BATCH), desc="greedy texts", unit="batch"):
        rows = slice(first, first + IDENTITY_BATCH)
        ids, mask = _padded(chosen[rows])
        for name, drafter in drafters.items():
            output = speculative_sample(
                CachedLanguageModel(network),
                ids,
                SamplingParams(temperature=0),
                attention_mask=mask,
                drafter=drafter,
                gamma=4,
                max_new_tokens=tokens,
            )
            differing[name] += int((output.sequences != own[rows]).any(dim=1).sum())
            rates[name].append(output.stats.acceptance_rate() if output.stats else 0.0)
    return {
        "prompts": len(chosen),
        "tokens": tokens,
        "differing": differing,
        "acceptance": {name: statistics.mean(values) for name, values in rates.items()},
        "closest_logits": closest,
    }


@torch.no_grad()
def greedy_texts(network: Any, prompts: list[list[int]], tokens: int) -> tuple[Tensor, float]:
    """The model's own greedy texts by its own cache, and the least distance of a best logit from the second best."""
    texts, gap = torch.zeros(len(prompts), tokens, dtype=torch.int64), float("inf")
    for length in sorted({len(prompt) for prompt in prompts}):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        logits, cache = network(torch.tensor([prompts[row] for row in rows]))
        for place in range(tokens):
            best = logits[:, -1].topk(2, dim=1)
            gap = min(gap, float((best.values[:, 0] - best.values[:, 1]).min()))
            texts[rows, place] = best.indices[:, 0]
            if place + 1 < tokens:
                logits, cache = network(best.indices[:, :1], cache)
    return texts, gap


def _padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    return ids, mask
