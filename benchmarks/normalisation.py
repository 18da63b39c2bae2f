"""Logits that are filtered and normalised at once, and position by position: a part of `benchmarks.speculative`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.sampling import SamplingParams
from benchmarks.command import timed

SIZES = ((352, 1024), (352, 2048), (352, 4096), (352, 32000), (8, 2048))
"""Positions and vocabularies; 352 is the prompt of the source document, 2048 the vocabulary of the models here."""
JUDGED = "352 x 2048"


def loop_normalisation(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """One position after the other, by the operators of the source document's first version."""
    result = torch.empty_like(logits)
    for position in range(logits.shape[1]):
        row = logits[:, position] / temperature
        row[row < row.topk(top_k, dim=1).values[:, -1:]] = -torch.inf
        values, order = row.sort(dim=1, descending=True)
        drops = values.softmax(dim=1).cumsum(dim=1) > top_p
        drops[:, 1:] = drops[:, :-1].clone()
        drops[:, 0] = False
        row[drops.scatter(1, order, drops)] = -torch.inf
        result[:, position] = row.softmax(dim=1)
    return result


def measure_all() -> dict[str, Any]:
    """Time both ways for the prompt of the source document, and for a pass over 8 tokens."""
    params = SamplingParams(temperature=0.8, top_k=50, top_p=0.9)
    found: dict[str, Any] = {}
    for positions, vocab_size in tqdm(SIZES, desc="normalisation", unit="size"):
        logits = torch.randn(1, positions, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
        sampling = RowSampling([params] * positions, vocab_size, logits.device)
        options = (params.temperature, params.top_k or 0, params.top_p)
        torch.testing.assert_close(sampling.probabilities(logits[0]), loop_normalisation(logits, *options)[0])
        subjects: dict[str, Callable[[], object]] = {
            "at once": lambda s=sampling, x=logits[0]: s.probabilities(x),
            "one by one": lambda x=logits, o=options: loop_normalisation(x, *o),
        }
        record = timed(subjects, seconds=3.0)
        medians = {name: result["median"] for name, result in record["results"].items()}
        found[f"{positions} x {vocab_size}"] = medians | {"disturbed": record["disturbed"]}
    return found
