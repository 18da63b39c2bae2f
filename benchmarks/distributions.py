"""Logits as a language model makes them, logits of normal distributions, and rows that are hard for a sampler."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch

LANGUAGE_MODEL = "language model"
UNSURE_MODEL = "language model, T=1"
NORMAL = "N(0, 3)"
FLAT = "N(0, 0.5)"
DEVIATIONS = {NORMAL: 3.0, FLAT: 0.5}
TEMPERATURES = {LANGUAGE_MODEL: 0.6, UNSURE_MODEL: 1.0}
"""The demo's model is small and as unsure as its perplexity of about 100 says: the least tokens that hold 90 % are
hundreds. A temperature of 0.6, usual where models are served, brings its perplexity to about 10 and the median of that
number to about 10, as with the models that people serve. Both are measured."""

_CONTEXT = 192  # tokens of each text that the model reads
_JITTER = 0.25


@functools.cache
def language_model_rows() -> torch.Tensor:
    """The demo's language model reads some of the text that it was not trained on; float32 [rows, 4096].

    A row is what the model says about the next token: the first tokens of each text are left out, since it knows
    little there.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from language_model import corpus, load_or_train
    from language_model.tokenizer import encode_documents
    from language_model.training import TrainingConfig, split_documents

    model, tokenizer = load_or_train()
    _, unseen = split_documents(corpus.collect_documents(), TrainingConfig())
    tokens = torch.tensor(encode_documents(tokenizer, unseen))
    texts = tokens[: len(tokens) // _CONTEXT * _CONTEXT].view(-1, _CONTEXT)[:16]
    with torch.inference_mode():
        logits, _ = model(texts)
    return logits[:, _CONTEXT // 4 :].flatten(0, 1).clone()


def language_model(rows: int, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of the demo's model, made longer where the vocabulary is larger than its 4096 tokens.

    The model's own logits stay, so the head of a row, its nucleus and the ties are real. Each further token gets
    the logit of a token of the row's lower half, jittered, and lowered so that all of them together weigh what the
    lower half weighs: a longer tail of about the same mass. One permutation scatters the tokens over the ids. A
    smaller vocabulary takes the model's first tokens, which are the frequent ones.
    """
    own = language_model_rows()
    own = own[torch.randint(own.shape[0], (rows,), generator=generator)]
    further = vocab_size - own.shape[1]
    if further <= 0:
        return own[:, :vocab_size].contiguous()
    lower = own.sort(dim=1).values[:, : own.shape[1] // 2]
    source = torch.randint(lower.shape[1], (further,), generator=generator)
    tail = lower[:, source]
    tail += torch.randn(further, generator=generator) * _JITTER
    tail -= torch.log(torch.tensor(further / lower.shape[1]))
    ids = torch.randperm(vocab_size, generator=generator)
    return torch.cat((own, tail), dim=1)[:, ids]


def normal(rows: int, vocab_size: int, deviation: float, generator: torch.Generator) -> torch.Tensor:
    """Independent normal logits."""
    return torch.randn((rows, vocab_size), generator=generator).mul_(deviation)


def make(name: str, rows: int, vocab_size: int) -> torch.Tensor:
    """Float32 logits [rows, vocab_size] of one of the distributions."""
    generator = torch.Generator().manual_seed(0)
    if name in TEMPERATURES:
        return language_model(rows, vocab_size, generator).div_(TEMPERATURES[name])
    return normal(rows, vocab_size, DEVIATIONS[name], generator)


def _with_allowed(values: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(~allowed, -torch.inf)


def _allow_ten(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    ids = torch.randint(values.shape[1], (values.shape[0], 10), generator=generator)
    return _with_allowed(values, torch.zeros_like(values, dtype=torch.bool).scatter_(1, ids, True))


def adversarial(vocab_size: int, rows: int) -> dict[str, torch.Tensor]:
    """Rows that are hard for one way of sampling or another, float32 [rows, vocab_size], by name."""
    generator = torch.Generator().manual_seed(0)
    ordinary = normal(rows, vocab_size, 3.0, generator)
    uniform = torch.rand((rows, vocab_size), generator=generator)
    some = uniform < 1e-3
    return {
        "all equal": torch.full((rows, vocab_size), 1.5),
        "all -inf": torch.full((rows, vocab_size), -torch.inf),
        "two values, half and half": torch.where(uniform < 0.5, 1.0, 2.0),
        "two values, few of the larger": torch.where(some, 1.0, 0.0),
        "few values": (uniform * 7).floor(),
        "+0 and -0": torch.where(uniform < 0.5, 0.0, -0.0),
        "-inf in half of the ids": _with_allowed(ordinary, uniform < 0.5),
        "-inf in all but ten ids": _allow_ten(ordinary, generator),
        "ascending": ordinary.sort(dim=1).values,
        "descending": ordinary.sort(dim=1, descending=True).values,
        "clusters": (uniform * 20).floor() + 1e-3 * ordinary,
        "one cluster and an outlier": (1e-4 * ordinary).index_fill_(1, torch.tensor([vocab_size // 3]), 4.0),
        "scale 1e30": ordinary * 1e30,
        "N(0, 3)": ordinary,
        "flat": ordinary / 6,
        "nearly uniform": ordinary / 1e3,
        "NaN in half of the ids": ordinary.masked_fill(uniform < 0.5, torch.nan),
        "all NaN": torch.full((rows, vocab_size), torch.nan),
        "+inf in some ids": ordinary.masked_fill(some, torch.inf),
        "one +inf": ordinary.index_fill(1, torch.tensor([vocab_size // 2]), torch.inf),
    }
