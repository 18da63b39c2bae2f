"""Seeds for rows that have none of their own: random ones, and those of the copies of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._errors import check_integer

_MOST_SEED: Final = 2**63 - 1
_WORD: Final = 2**64 - 1


def random_seeds(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draws seeds for rows that were given none, all at once.

    Args:
        count: how many.
        generator: on the CPU; None uses torch's default one.

    Returns:
        int64 [count] on the CPU, of all 2^64 values.

    Example:
        >>> len(set(random_seeds(1000, torch.Generator().manual_seed(3)).tolist()))
        1000

    Source: docs/seeds.md, section "Where seeds come from".
    """
    return torch.empty(count, dtype=torch.int64, device="cpu").random_(-(2**63), None, generator=generator)


def seeds_of(given: Sequence[int | None], generator: torch.Generator | None = None) -> NDArray[np.int64]:
    """Returns the seeds of rows, of which some have none: these are drawn at once, in the order of the rows.

    Args:
        given: in [0, 2^64), or None.
        generator: as for `random_seeds`.

    Returns:
        int64 [rows], the bits of the seeds.

    Example:
        >>> seeds_of([7, 2**64 - 1]).tolist()
        [7, -1]
    """
    seeds = np.array([seed or 0 for seed in given], np.uint64).view(np.int64)
    missing = [index for index, seed in enumerate(given) if seed is None]
    if missing:
        seeds[missing] = random_seeds(len(missing), generator).numpy()
    return seeds


def seed_bits(seed: int) -> int:
    """Returns the int64 with the bits of a seed in [0, 2^64); a negative seed is taken as the bits it has.

    Example:
        >>> seed_bits(7), seed_bits(2**64 - 1)
        (7, -1)
    """
    word = int(seed) & _WORD
    return word - 2**64 if word > _MOST_SEED else word


def derive_seeds(seed: int, count: int) -> list[int]:
    """Returns the seeds of the copies of a seeded request, of which `n` or `num_return_sequences` asks for several.

    The first is the seed itself, so that a request alone draws as its first copy. The others are far from it and from
    those of neighbouring seeds: were they seed + 1, seed + 2, ..., as vLLM has them, then the copies of a request with
    the next seed would repeat them.

    Args:
        seed: of the request, in [0, 2**64).
        count: how many copies there are.

    Returns:
        `count` seeds in [0, 2**64): those of fewer copies are the first of those of more.

    Raises:
        TypeError: an argument is no int.
        ValueError: one is out of range.

    Example:
        >>> derive_seeds(7, 3)
        [7, 7191089600892374487, 309689372594955804]
        >>> len(set(derive_seeds(7, 9) + derive_seeds(8, 9)))
        18

    Source: docs/seeds.md, section "Where seeds come from".
    """
    check_integer("derive_seeds", "seed", seed, low=0, high=_WORD)
    check_integer("derive_seeds", "count", count, low=0)
    # The finaliser of SplitMix64, a bijection of 64-bit words, over steps of its odd constant.
    with np.errstate(over="ignore"):
        word = np.uint64(seed) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    seeds: list[int] = word.tolist()
    return [int(seed), *seeds[1:]] if seeds else []
