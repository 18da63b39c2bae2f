"""Measures what top_k_top_p_sample makes of top-p without top-k, with the logits of a language model.

    python examples/flattening.py
    python examples/flattening.py --json docs/flattening.json

The operator keeps the right tokens, and then draws among them with softmax(their probabilities), which is nearly
uniform (docs/semantics.md, "The second softmax in plain words"). The sampling layer draws from the exact distribution
(docs/sampling.md). The language model of the demo reads text that it was not trained on; in each context both
distributions are computed in float64, and compared by

- the total variation distance: the share of draws that would have to change for one to become the other;
- the probability of the best token.

For one context, draws are counted too. Everything runs on the CPU. The JSON is what docs/pictures/make.py draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, NamedTuple

from ascend_sample import top_k_top_p_sample  # isort: skip  the first to import torch, safely
import torch
from language_model import LanguageModel, corpus, encode_prompt, load_or_train
from language_model.tokenizer import encode_documents
from language_model.training import TrainingConfig, split_documents
from tokenizers import Tokenizer
from torch import Tensor

from ascend_sample._options import file_to_write, whole_number
from ascend_sample.sampling import sample_rows

TEMPERATURES = (1.0, 0.6)
TOP_PS = (0.5, 0.8, 0.9, 0.95)
FIRST_POSITION, EVERY = 31, 16  # the model knows little at the beginning of a text; neighbours resemble one another
SHOWN_PROMPT = "Raised when an operation would"
SHOWN_TOP_P = 0.9
SHOWN_TOKENS = 10
BINS = 40
ROWS_AT_ONCE = 2000


class Distributions(NamedTuple):
    """Two distributions of the next token, each float64 [contexts, vocab_size], by rank: the best token comes first."""

    exact: Tensor
    operator: Tensor


def ranked_probabilities(logits: Tensor) -> Tensor:
    """The probabilities of the next token by rank, float64, of logits [contexts, vocab_size]."""
    return logits.double().softmax(dim=1).sort(dim=1, descending=True).values


def distributions(probabilities: Tensor, top_p: float) -> Distributions:
    """What top-p alone means, and what the operator draws from: the softmax of the kept tokens' probabilities.

    Args:
        probabilities: float64 [contexts, vocab_size], by rank.
        top_p: below 1.
    """
    is_kept = probabilities.cumsum(dim=1) - probabilities <= top_p
    exact = probabilities.where(is_kept, 0.0)
    operator = probabilities.exp().where(is_kept, 0.0)
    return Distributions(*(weights / weights.sum(dim=1, keepdim=True) for weights in (exact, operator)))


def total_variation(pair: Distributions) -> Tensor:
    """The distance between the two, from 0 (equal) to 1 (nothing in common): float64 [contexts]."""
    return (pair.exact - pair.operator).abs().sum(dim=1) / 2


@torch.inference_mode()
def unseen_logits(model: LanguageModel, tokenizer: Tokenizer) -> Tensor:
    """What the model says in many places of texts that it was not trained on: float32 [contexts, vocab_size]."""
    _, unseen = split_documents(corpus.collect_documents(), TrainingConfig())
    tokens = torch.tensor(encode_documents(tokenizer, unseen))
    length = model.config.context_size
    texts = tokens[: len(tokens) // length * length].view(-1, length)
    return torch.cat([model(text[None])[0][0, FIRST_POSITION::EVERY] for text in texts])


def compare(ranked: dict[float, Tensor]) -> list[dict[str, float]]:
    """The figures of each temperature, by which the probabilities are given, and top_p."""
    rows = []
    for temperature, probabilities in ranked.items():
        for top_p in TOP_PS:
            pair = distributions(probabilities, top_p)
            distance = total_variation(pair)
            low, median, high = distance.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
            rows.append(
                {
                    "temperature": temperature,
                    "top_p": top_p,
                    "kept": (pair.exact > 0).sum(dim=1).double().median().item(),
                    "distance": distance.mean().item(),
                    "distance_low": low,
                    "distance_median": median,
                    "distance_high": high,
                    "best_exact": pair.exact[:, 0].mean().item(),
                    "best_operator": pair.operator[:, 0].mean().item(),
                }
            )
    return rows


def histogram(probabilities: Tensor) -> list[int]:
    """How many contexts have which distance at `SHOWN_TOP_P`: `BINS` bins of [0, 1]."""
    distance = total_variation(distributions(probabilities, SHOWN_TOP_P))
    return torch.histc(distance.float(), bins=BINS, min=0.0, max=1.0).int().tolist()


def count_draws(logits: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """How often each token is drawn in one context, by the sampling layer and by the operator with top-p alone.

    Args:
        logits: float32 [vocab_size].
        draws: how many, by each.

    Returns:
        Two counts, int64 [vocab_size].
    """
    counts = torch.zeros(2, logits.shape[0], dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for first in range(0, draws, ROWS_AT_ONCE):
        positions = torch.arange(first, min(first + ROWS_AT_ONCE, draws))
        rows = logits.expand(len(positions), -1)
        one = torch.ones(len(positions))
        layer = sample_rows(
            rows, temperature=one, top_p=SHOWN_TOP_P * one, seed=torch.zeros_like(positions), position=positions
        )
        noise = torch.empty(rows.shape).exponential_(generator=generator)
        alone = top_k_top_p_sample(rows, p=SHOWN_TOP_P, q=noise)
        counts[0] += layer.token_ids.bincount(minlength=len(logits))
        counts[1] += alone.logits_select_idx.bincount(minlength=len(logits))
    return counts[0], counts[1]


@torch.inference_mode()
def show_context(model: LanguageModel, tokenizer: Tokenizer, draws: int) -> dict[str, Any]:
    """The first ranks of one context: probabilities and counted draws."""
    logits = model(torch.tensor([encode_prompt(tokenizer, SHOWN_PROMPT)]))[0][0, -1]
    pair = distributions(ranked_probabilities(logits[None]), SHOWN_TOP_P)
    ids = logits.sort(descending=True, stable=True).indices[:SHOWN_TOKENS]
    by_layer, by_operator = count_draws(logits, draws)
    return {
        "prompt": SHOWN_PROMPT,
        "top_p": SHOWN_TOP_P,
        "kept": int((pair.exact > 0).sum()),
        "distance": total_variation(pair).item(),
        "tokens": [tokenizer.decode([token]).strip() for token in ids.tolist()],
        "exact": pair.exact[0, :SHOWN_TOKENS].tolist(),
        "operator": pair.operator[0, :SHOWN_TOKENS].tolist(),
        "draws": draws,
        "drawn_by_layer": by_layer[ids].tolist(),
        "drawn_by_operator": by_operator[ids].tolist(),
    }


def report(figures: dict[str, Any]) -> None:
    """Prints what was measured."""
    print(f"top-p alone in {figures['contexts']} contexts: exact, and by top_k_top_p_sample (two softmaxes)\n")
    print("temperature  top_p  tokens kept  total variation distance   best token drawn")
    print("                       (median)    mean  (5 % to 95 %)       exact  operator")
    for row in figures["table"]:
        print(
            f"{row['temperature']:11.1f}  {row['top_p']:5.2f}  {row['kept']:11.0f}  {row['distance']:6.2f}  "
            f"({row['distance_low']:.2f} to {row['distance_high']:.2f})    "
            f"{row['best_exact']:8.1%}  {row['best_operator']:8.1%}"
        )
    shown = figures["shown"]
    print(
        f"\n{shown['prompt']!r}, top_p = {shown['top_p']}: {shown['kept']} tokens are kept, the distance is "
        f"{shown['distance']:.2f}; of {shown['draws']} draws each:\n"
    )
    print("token        exact   by the sampling layer   operator   by the operator")
    columns = ("tokens", "exact", "drawn_by_layer", "operator", "drawn_by_operator")
    for token, exact, by_layer, operator, by_operator in zip(*(shown[name] for name in columns), strict=True):
        print(f"{token:<10} {exact:7.2%} {by_layer / shown['draws']:23.2%} {operator:10.2%} ", end="")
        print(f"{by_operator / shown['draws']:17.2%}")


def rounded(value: Any) -> Any:
    """Figures with as many digits as they are shown with, so that the file changes only where they do."""
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return round(value, 4) if isinstance(value, float) else value


def main() -> int:
    """Measures, prints, and writes what it is asked to; returns the exit status."""
    parser = argparse.ArgumentParser(description="How far top-p alone is from what it means, with real logits.")
    parser.add_argument("--draws", type=whole_number(1), default=20000, help="counted in one context, by each")
    parser.add_argument("--json", type=file_to_write, help="write the figures to this file")
    arguments = parser.parse_args()
    model, tokenizer = load_or_train()
    shown = show_context(model, tokenizer, arguments.draws)
    logits = unseen_logits(model, tokenizer)
    ranked = {temperature: ranked_probabilities(logits / temperature) for temperature in TEMPERATURES}
    histograms = [histogram(probabilities) for probabilities in ranked.values()]
    figures = {"contexts": len(logits), "table": compare(ranked), "histograms": histograms, "shown": shown}
    report(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(rounded(figures), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
