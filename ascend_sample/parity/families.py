"""The families of logits that a parity run covers: what rows look like before their dtype rounds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

INFINITY = float("inf")


@dataclass(frozen=True)
class Family:
    """One kind of logits."""

    name: str  # in reports
    make: Callable[[torch.Generator, int, int], torch.Tensor]  # float32 `[batch_size, vocab_size]` from a generator
    tie_heavy: bool = False  # whether equal values are so common that many results can be explained by them
    exact_sums: bool = False  # whether rows hold 2^m equal logits and nothing else of weight, and want k and p to match
    exceeds_dtypes: bool = False  # whether finite values may be too large for a dtype, and must be clamped to its range


def _choose(generator: torch.Generator, values: tuple[float, ...], count: int) -> torch.Tensor:
    """Draws one of the values for each row, as a column."""
    return torch.tensor(values)[torch.randint(len(values), (count, 1), generator=generator)]


def _normal(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    noise = torch.randn((batch_size, vocab_size), generator=generator)
    return noise * _choose(generator, (0.1, 1.0, 3.0, 10.0), batch_size)


def _language_model(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws a heavy head and a long tail: logits that fall with the logarithm of the rank, in random order."""
    slope = _choose(generator, (1.2, 2.0, 3.0), batch_size)
    falling = 15.0 - slope * torch.arange(1, vocab_size + 1).log()
    falling = falling[:, torch.randperm(vocab_size, generator=generator)]
    return falling + 0.3 * torch.randn((batch_size, vocab_size), generator=generator)


def _few_values(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    steps = torch.randint(7, (batch_size, vocab_size), generator=generator)
    return steps * _choose(generator, (0.25, 1.0, 4.0), batch_size)


def _all_equal(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    return _choose(generator, (-3.0, 0.0, 11.5), batch_size).repeat(1, vocab_size)


def _exact_binary(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws 2^m equal logits at random ids, the others without weight: -inf, or too far below for any exponential."""
    log_equal = torch.randint(vocab_size.bit_length(), (batch_size, 1), generator=generator)
    offsets = torch.randint(vocab_size, (batch_size, 1), generator=generator)
    places = (torch.randperm(vocab_size, generator=generator) + offsets) % vocab_size
    others = _choose(generator, (-INFINITY, -1000.0), batch_size)
    return torch.where(places < 2**log_equal, _choose(generator, (0.0, 2.5, -7.0), batch_size), others)


def _masked(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws logits that are -inf everywhere but in a share of the ids; one id at least stays."""
    share = _choose(generator, (0.5, 0.05, 0.001), batch_size)
    drawn = torch.rand((batch_size, vocab_size), generator=generator)
    allowed = (drawn < share) | (drawn == drawn.amin(dim=1, keepdim=True))
    return _normal(generator, batch_size, vocab_size).masked_fill(~allowed, -INFINITY)


def _special_values(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws rows with NaN, with +inf, of nothing but -inf or NaN, and ordinary rows between them."""
    logits = _normal(generator, batch_size, vocab_size)
    struck = torch.rand((batch_size, vocab_size), generator=generator) < 0.1
    kinds = torch.randint(6, (batch_size,), generator=generator).tolist()
    for row, kind in enumerate(kinds):
        match kind:
            case 0:
                logits[row, struck[row]] = float("nan")
            case 1:
                logits[row, struck[row]] = INFINITY
            case 2:
                logits[row] = -INFINITY
            case 3:
                logits[row] = float("nan")
            case 4:
                logits[row, struck[row]] = float("nan")
                logits[row, -1] = INFINITY
                logits[row, 0] = -INFINITY
    return logits


def _ascending(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws the worst case of a rolling top-k: every segment displaces all entries kept so far."""
    return _normal(generator, batch_size, vocab_size).sort(dim=1).values


def _descending(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    return _normal(generator, batch_size, vocab_size).sort(dim=1, descending=True).values


def _huge(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws values up to the greatest finite ones; the caller clamps what a dtype cannot hold to its range."""
    noise = torch.randn((batch_size, vocab_size), generator=generator)
    return noise * _choose(generator, (1e3, 2e4, 1e30), batch_size)


def _shifted(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws values far from 0: exponentials overflow or vanish unless the row's maximum is taken off first."""
    return _normal(generator, batch_size, vocab_size) + _choose(generator, (-500.0, -60.0, 60.0, 500.0), batch_size)


def _signed_zeros(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws +0 and -0, which are equal in the order and come back with their sign, and a few others between them."""
    signs = torch.randint(2, (batch_size, vocab_size), generator=generator) * 2.0 - 1.0
    small = torch.rand((batch_size, vocab_size), generator=generator) < 0.1
    return torch.where(small, signs * 0.5, signs * 0.0)


def _one_peak(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws rows in which one id holds nearly everything."""
    logits = torch.randn((batch_size, vocab_size), generator=generator)
    peak = torch.randint(vocab_size, (batch_size, 1), generator=generator)
    return logits.scatter(1, peak, 25.0)


def _two_values(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws one value for a few ids, or for most, and a smaller one for all others: every cut lies among ties."""
    share = _choose(generator, (0.001, 0.5, 0.999), batch_size)
    greater = torch.rand((batch_size, vocab_size), generator=generator) < share
    return torch.where(greater, _choose(generator, (0.001, 1.0, 20.0), batch_size), torch.zeros(()))


def _clusters(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws values that are neighbours in float32, around a few centres: ranges of equal width do not part them."""
    centre = torch.randint(1, 5, (batch_size, vocab_size), generator=generator) * 3.0
    return centre * (1.0 + 2.0**-23 * torch.randint(64, (batch_size, vocab_size), generator=generator))


def _flat(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Draws almost equal values: a nucleus takes the share p of the whole vocabulary."""
    spread = _choose(generator, (1e-5, 1e-3, 0.05), batch_size)
    return 1.0 + spread * torch.rand((batch_size, vocab_size), generator=generator)


LANGUAGE_MODEL = Family("language model", _language_model)
FAMILIES = (
    Family("normal", _normal),
    LANGUAGE_MODEL,
    Family("few values", _few_values, tie_heavy=True),
    Family("masked", _masked),
    Family("exact binary", _exact_binary, tie_heavy=True, exact_sums=True),
    Family("special values", _special_values),
    Family("ascending", _ascending),
    Family("all equal", _all_equal, tie_heavy=True),
    Family("huge", _huge, exceeds_dtypes=True),
    Family("descending", _descending),
    Family("shifted", _shifted),
    Family("signed zeros", _signed_zeros, tie_heavy=True),
    Family("one peak", _one_peak),
    Family("two values", _two_values, tie_heavy=True),
    Family("clusters", _clusters, tie_heavy=True),
    Family("flat", _flat, tie_heavy=True),
)
