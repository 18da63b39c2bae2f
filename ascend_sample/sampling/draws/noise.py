"""Exponential noise that is a function of a request's seed, its position in the sequence and the lane, of nothing else.

Counter-based: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns

    key      seed, its low and its high 32 bits
    counter  lane // 2, purpose, position: its low and its high 32 bits

into four words of 32 bits, two for the even lane and two for the odd one. Two words are a uniform number with 63
random bits, strictly between 0 and 1, and that is an exponential one, ``-log1p(-u)``, from 2^-64 to 64 ln 2. So the
race ``argmax(weight / noise)`` can draw a token that is 44 nats below the best one; 24-bit uniforms end at 16.6.

Everything here is made of integers that no operation lets overflow, of conversions that are exact, and of float32
``+ - * /``: every device and every instruction set gives the same bits. The CPU has it natively
(``csrc/cpu/draws/noise.h``); what follows is its specification in torch, and what other devices run.
"""

from __future__ import annotations

import enum
from typing import Final

import torch
from torch import Tensor

from ascend_sample._errors import check_instance, check_tensor, is_integer, refuse_type

OPERATOR_NAME: Final = "exponential_noise"

_WORD: Final = 2**32 - 1
_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)

# Of sqrt(1/2) as float32: what is added to its bits to get those of 1, and the bits.
_TO_ONE: Final = 0x3F800000 - 0x3F3504F3
_SQRT_HALF_BITS: Final = 0x3F3504F3
# ln 2 in two parts: up to 64 times the first is exact in float32.
_LN2_HIGH: Final = float.fromhex("0x1.62e4p-1")
_LN2_LOW: Final = float.fromhex("0x1.7f7d1cp-20")
# 2 atanh(s) = 2 s (1 + z P(z)) with z = s^2: least maximum of the relative error, 5e-9 for z up to 1/9.
_ATANH: Final = tuple(map(float.fromhex, ("0x1.555500p-2", "0x1.99d27cp-3", "0x1.1eb612p-3", "0x1.1ef870p-3")))


class Purpose(enum.IntEnum):
    """What noise is for. Equal seeds, positions and lanes of two purposes have nothing to do with one another."""

    DRAW = 0
    DRAFT = 1
    ACCEPTANCE = 2
    RESAMPLING = 3
    EXCLUSION = 4


def check_purpose(owner: str, purpose: object) -> None:
    """Raises unless purpose is one."""
    check_instance(owner, "purpose", purpose, Purpose, "Use Purpose.DRAW.")


def exponential_noise(
    seed: Tensor, position: Tensor, lanes: int, *, purpose: Purpose = Purpose.DRAW, first_lane: int = 0
) -> Tensor:
    """Draws exponentially distributed numbers, the same ones whatever the batch, the place in it and the device.

    Args:
        seed: int64 [batch], of each request.
        position: int64 [batch], of the token in its sequence.
        lanes: how many numbers a row gets.
        purpose: what they are for.
        first_lane: the lane of the first one, even; a row can be drawn in parts.

    Returns:
        float32 [batch, lanes] on the device of seed, each above 0 and at most 64 ln 2. The relative error against
        ``-log1p(-u)`` is below 2.5 units in the last place.

    Raises:
        TypeError: seed or position is no tensor, or not int64; purpose is no integer.
        ValueError: a wrong shape or device, a negative number of lanes, an odd first lane, or lanes beyond 2^33.

    Example:
        >>> seed, position = torch.tensor([7, 7]), torch.tensor([0, 1])
        >>> noise = exponential_noise(seed, position, 4)
        >>> torch.equal(noise[1, 2:], exponential_noise(seed[1:], position[1:], 2, first_lane=2)[0])
        True

    Source: docs/seeds.md, section "The noise": Philox 4x32-10 as in Salmon et al., SC 2011; the arithmetic after it is
    this project's.
    """
    for name, value in (("seed", seed), ("position", position)):
        check_tensor(OPERATOR_NAME, name, value)
    if not is_integer(purpose):  # the operator knows which ones there may be
        refuse_type(OPERATOR_NAME, "purpose", "be an int", purpose, "Use Purpose.DRAW.")
    if seed.device.type in ("cpu", "meta"):
        noise: Tensor = torch.ops.ascend_sample.exponential_noise(lanes, seed, position, int(purpose), first_lane)
        return noise
    torch.ops.ascend_sample.check_exponential_noise(lanes, seed, position, int(purpose), first_lane)
    return _exponential_noise_torch(seed, position, lanes, int(purpose), first_lane)


def _exponential_noise_torch(seed: Tensor, position: Tensor, lanes: int, purpose: int, first_lane: int) -> Tensor:
    """Draws the noise by its specification in torch, on any device."""
    pairs = torch.arange(first_lane // 2, (first_lane + lanes + 1) // 2, dtype=torch.int64, device=seed.device)
    shape = (len(seed), len(pairs))
    (position_low, position_high), key = (_words(number).unsqueeze(2) for number in (position, seed))
    evens = torch.stack((position_low.expand(shape), pairs.expand(shape)))
    odds = torch.stack((position_high.expand(shape), torch.full_like(pairs, purpose).expand(shape)))
    odd_lanes, even_lanes = _exponential(*_philox(evens, odds, key.flip(0)))
    return torch.stack((even_lanes, odd_lanes), dim=-1).flatten(1)[:, :lanes].contiguous()


def _words(number: Tensor) -> Tensor:
    """Returns the low and the high 32 bits of int64, as int64 [2, count] that are not negative."""
    return (number.contiguous().view(torch.int32).to(torch.int64) & _WORD).view(-1, 2).t()


def _philox(evens: Tensor, odds: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Applies Philox 4x32-10 to words of 32 bits in int64: both halves of a round at once, in half the launches.

    Args:
        evens: [2, rows, pairs], the words 2 and 0.
        odds: [2, rows, pairs], the words 3 and 1.
        key: [2, rows, 1], its second word and its first.

    Returns:
        As ``evens`` and as ``odds``.
    """
    borrowed, steps = (
        torch.stack([torch.full((1, 1), number, dtype=torch.int64, device=key.device) for number in numbers])
        for numbers in ([multiplier - 2**32 for multiplier in _MULTIPLIERS], reversed(_KEY_STEPS))
    )
    rounds = torch.arange(_ROUNDS, dtype=torch.int64, device=key.device).view(-1, 1, 1, 1)
    for key_of_round in ((key + rounds * steps) & _WORD).unbind():
        # word * multiplier = word * 2^32 + word * borrowed: the product would not fit, and what is added does.
        word = evens.flip(0)
        added = word * borrowed
        evens, odds = (word + _high_word(added)) ^ odds ^ key_of_round, added & _WORD
    return evens, odds


def _high_word(number: Tensor) -> Tensor:
    """Returns the signed high half of int64.

    There is no shift: on an NPU a shift by a number would copy that number to the device each time.
    """
    return number.view(torch.int32)[..., 1::2].to(torch.int64)


def _exponential(high: Tensor, low: Tensor) -> Tensor:
    """Returns ``-log1p(-u)`` for u = (2 i + 1) / 2^64, i being the first 63 of the 64 bits of the two words.

    Of u and 1 - u the smaller one is t, so that neither end of the interval is rounded.
    """
    is_low = high < 2**31
    high = torch.where(is_low, high, _WORD - high)
    low = torch.where(is_low, low, _WORD - low) | 1
    t = _fraction(high, low)
    # t = m / 2^e, m from sqrt(1/2) to sqrt(2).
    bits = t.view(torch.int32) + _TO_ONE
    fraction = bits & 0x7FFFFF
    exponent = torch.where(is_low, 0.0, 127.0 - (bits - fraction).to(torch.float32) * 2.0**-23)
    m = (fraction + _SQRT_HALF_BITS).view(torch.float32)
    # -log(1 - t) = 2 atanh(t / (2 - t)), and -log(t) = e ln 2 + 2 atanh((1 - m) / (1 + m)).
    s = torch.where(is_low, t, 1.0 - m) / torch.where(is_low, 2.0 - t, 1.0 + m)
    z = s * s
    polynomial = ((_ATANH[3] * z + _ATANH[2]) * z + _ATANH[1]) * z + _ATANH[0]
    twice = s + s
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + (twice + twice * (z * polynomial)))


def _fraction(high: Tensor, low: Tensor) -> Tensor:
    """Returns (high * 2^32 + low) / 2^64 as float32, for high < 2^31.

    It is made of parts of at most 24 bits, which convert exactly.
    """
    least_of_high, least_of_low = high & 0xFF, low & 0xFFFF
    first = (high - least_of_high).to(torch.float32) * 2.0**-32
    second = (least_of_high * 2**32 + (low - least_of_low)).to(torch.float32) * 2.0**-64
    third = least_of_low.to(torch.float32) * 2.0**-64
    return (first + second) + third
