"""Filters keep what llama.cpp's keep, with the same probabilities: whole requests of its server, on random rows.

A request is one that `from_llama_cpp(strict=True)` takes: it promises that nothing differs but ties and rounding.
"""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ascend_sample.requests import from_llama_cpp
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from tests.llama_cpp.comparison import EQUAL, Tally, kept_by_reference, reason_of
from tests.llama_cpp.samplers import OFF, server_chain

SIZES: Final = {16: 2000, 61: 2000, 257: 2000, 1000: 2000, 4096: 2000, 151936: 16}
"""How many rows of each vocabulary; 10,016 in all."""
EXACT: Final = 3e-5
"""How far, relatively, a probability may be from llama.cpp's."""
Choices = dict[str, tuple[Any, ...]]
XTC: Final[Choices] = {"xtc_probability": (1.0,), "xtc_threshold": (0.02, 0.1, 0.5)}
KINDS: Final[dict[str, Choices]] = {
    "top-k": {"top_k": (2, 5, 40, 500)},
    "top-p": {"top_p": (0.3, 0.9, 0.95, 0.999)},
    "min-p": {"min_p": (0.02, 0.05, 0.3)},
    "typical": {"typical_p": (0.2, 0.9, 0.999)},
    "top-n-sigma": {"top_n_sigma": (0.5, 1.0, 2.0)},
    "xtc": XTC,
    "top-k, top-p, min-p": {"top_k": (5, 40), "top_p": (0.5, 0.95), "min_p": (0.0, 0.05)},
    "top-n-sigma, top-k, top-p, min-p": {
        **{"top_n_sigma": (1.0, 2.0), "top_k": (5, 40), "top_p": (0.5, 0.95), "min_p": (0.0, 0.05)}
    },
    "temperature": {"temperature": (0.3, 0.8, 1.7)},
    "temperature, top-n-sigma, top-k": {
        **{"temperature": (0.3, 0.8, 1.7), "top_n_sigma": (0.5, 1.0, 2.0), "top_k": (5, 40)}
    },
}


def rows_of(count: int, vocab_size: int, is_masked: bool) -> torch.Tensor:
    """From nearly flat to one that has nearly everything; some of them rounded, some masked in part."""
    generator = torch.Generator().manual_seed(vocab_size)
    spreads = torch.rand(count, 1, generator=generator) * 7 + 0.05
    logits = torch.randn(count, vocab_size, generator=generator) * spreads
    logits[1::4] = logits[1::4].round()
    if is_masked:
        logits[2::4, ::3] = -torch.inf
    return logits


def requests_of(kind: str, count: int) -> list[dict[str, Any]]:
    rng = random.Random(kind)
    return [OFF | {name: rng.choice(values) for name, values in KINDS[kind].items()} for _ in range(count)]


def compare(kind: str, vocab_size: int, count: int, references: Tally, libraries: Tally) -> None:
    """Compares rows with the float64 reference, and with what the library's step has kept."""
    logits = rows_of(count, vocab_size, is_masked=kind != "typical")
    requests = requests_of(kind, count)
    params = [from_llama_cpp(request | {"seed": 1}, strict=True) for request in requests]
    batch = SamplingBatch(vocab_size)
    batch.extend([SamplingParams(**one.to_mapping() | {"return_sampling_mask": True}) for one in params])
    kept = Sampler()(logits, batch).kept
    for row, (request, one) in enumerate(zip(requests, params, strict=True)):
        with server_chain(request, vocab_size) as chain:
            left = chain(logits[row].numpy())
        processed = logits[row].double().numpy()
        references.add(reason_of(processed, one, kept_by_reference(processed, one), left.ids))
        ids, logprobs = (each.numpy() for each in kept.of_row(row))
        reason = reason_of(processed, one, ids.astype(np.int64), left.ids)
        libraries.add(reason, difference_of(logprobs, left.probabilities) if reason == EQUAL else 0.0)


def difference_of(logprobs: npt.NDArray[np.float32], probabilities: npt.NDArray[np.float32]) -> float:
    """The largest relative difference of two rows' probabilities, of those that float32 holds in full."""
    has_digits = probabilities > np.finfo(np.float32).tiny
    return float(np.abs(np.exp(logprobs[has_digits].astype(np.float64)) / probabilities[has_digits] - 1).max())


@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_and_probabilities(kind: str) -> None:
    references, libraries = Tally(), Tally()
    for vocab_size, count in SIZES.items():
        compare(kind, vocab_size, count, references, libraries)
    assert libraries.largest <= EXACT
    print(f"\n{kind}\n  reference  {references}\n  library    {libraries}")


# ---- what differs, by hand: docs/requests.md names each ----


def both_kept(request: dict[str, Any], row: list[float]) -> tuple[list[int], list[int]]:
    """What this package keeps, and what llama.cpp does."""
    logits = np.array(row, np.float32)
    with server_chain(OFF | request, len(row)) as chain:
        theirs = chain(logits).ids.tolist()
    params = from_llama_cpp(OFF | request)
    return kept_by_reference(logits.astype(np.float64), params).tolist(), theirs


@pytest.mark.parametrize(
    ("request_", "row", "ours", "theirs"),
    [
        ({"top_k": 2}, [0, 1, 1, 2], [1, 3], [2, 3]),
        ({"top_p": 0.3}, [1] * 17, [0, 1, 2, 3, 4, 5], None),
        ({"typical_p": 0.15}, [0, 1, 1, 2], [1, 2], [1]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, [0, 1, 1, 2], [0, 1, 2], [0, 2]),
    ],
)
def test_equal_values(request_: dict[str, Any], row: list[float], ours: list[int], theirs: list[int] | None) -> None:
    """Top-k and top-p take the lower ids here; typical and XTC keep equal values together. llama.cpp sorts anyhow."""
    found = both_kept(request_, row)
    assert found[0] == ours
    assert found[1] != ours if theirs is None else found[1] == theirs
    assert {row[token] for token in found[1]} == {row[token] for token in ours}


def test_a_sum_that_is_exactly_p() -> None:
    """llama.cpp's top-p ends where the sum reaches p, this package's where it exceeds p."""
    ours, theirs = both_kept({"top_p": 0.5}, [0.0, 0.0])
    assert (len(ours), len(theirs)) == (2, 1)


def test_typical_beside_masks() -> None:
    """An id of probability 0 makes llama.cpp's entropy NaN, and then it keeps others than those that are typical."""
    row = np.log([0.1, 0.2, 0.3, 0.4]).tolist()
    assert both_kept({"typical_p": 0.45}, row) == ([1, 2], [1, 2])
    assert both_kept({"typical_p": 0.45}, [*row, -np.inf]) == ([1, 2], [2, 3])
    assert both_kept({"typical_p": 0.45}, [*row, -200.0]) == ([1, 2], [2, 3])
