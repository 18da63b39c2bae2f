"""Noise: the generator's published vectors, one result everywhere, numbers as exponential as float32 can be.

That its numbers are independent follows from those of Philox: tests/statistics draws with them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.sampling.draws.noise import (
    Purpose,
    _exponential,
    _exponential_noise_torch,
    _philox,
    exponential_noise,
)

WORD = 2**32 - 1
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

# Counter, key and output of philox4x32 with 10 rounds, as published in Random123's kat_vectors.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

MOST_LAUNCHES = 140
"""Of a device that makes noise itself."""

# i of u = (2 i + 1) / 2^64: both ends, both sides of where the smaller of u and 1 - u changes, and powers between.
ENDS = [0, 1, 2, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 2, 2**63 - 1]
POWERS = [value for bit in range(2, 63) for value in (2**bit - 1, 2**bit, 2**bit + 1, 2**63 - 2**bit)]


def signed(number: int) -> int:
    """The int64 with the bits of an unsigned number."""
    return number - 2**64 if number >= 2**63 else number


def column(*numbers: int) -> Tensor:
    return torch.tensor([signed(number) for number in numbers], dtype=torch.int64)


def draw_one(counter: tuple[int, ...], key: tuple[int, ...], device: str = "cpu") -> Tensor:
    """The two lanes of a counter."""
    lane, purpose, low, high = counter
    seed, position = column(key[1] << 32 | key[0]).to(device), column(high << 32 | low).to(device)
    return exponential_noise(seed, position, 2, purpose=purpose, first_lane=2 * lane)[0].cpu()  # type: ignore[arg-type]


def counter_of(words: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox backwards: the counter that yields the words."""
    for step in reversed(range(10)):
        keys = [(key[i] + step * KEY_STEPS[i]) & WORD for i in (0, 1)]
        first, second = (words[3 - 2 * i] * pow(MULTIPLIERS[i], -1, 2**32) & WORD for i in (0, 1))
        words = (
            first,
            words[0] ^ (second * MULTIPLIERS[1] >> 32) ^ keys[0],
            second,
            words[2] ^ (first * MULTIPLIERS[0] >> 32) ^ keys[1],
        )
    return words


def exact(i: np.ndarray) -> np.ndarray:
    """-log1p(-u) for u = (2 i + 1) / 2^64, to float64's precision."""
    i = i.astype(np.uint64)
    is_low = i < np.uint64(2**62)
    mirrored = np.where(is_low, i, np.uint64(2**63 - 1) - i)
    t = (np.uint64(2) * mirrored + np.uint64(1)).astype(np.float64) * 2.0**-64
    return np.where(is_low, -np.log1p(-t), -np.log(t))


def exact_of(words: list[tuple[int, ...]]) -> np.ndarray:
    """The same for the lanes of counters, from their words."""
    return exact(np.array([(w[2 * lane] << 32 | w[2 * lane + 1]) >> 1 for w in words for lane in (0, 1)], np.uint64))


def distance_in_ulp(noise: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.abs(noise.astype(np.float64) - expected) / np.spacing(expected.astype(np.float32))


def seeds_and_positions(rows: int) -> tuple[Tensor, Tensor]:
    """Of all magnitudes: seeds with either sign, positions up to 2^63 - 1."""
    generator = torch.Generator().manual_seed(1)
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    positions = torch.randint(0, 2**63 - 1, (rows,), generator=generator) >> torch.arange(rows) % 64
    seeds[:4] = column(0, 1, 2**64 - 1, 2**63)[:rows]
    positions[:4] = column(2**63 - 1, 0, 2**32, 2**32 - 1)[:rows]
    return seeds, positions


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_published_vectors(device: str, counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    given = (counter[2], counter[0]), (counter[3], counter[1]), key[::-1]
    evens, odds = _philox(*(torch.tensor(halves, device=device).view(2, 1, 1) for halves in given))
    (word_2, word_0), (word_3, word_1) = evens.flatten().tolist(), odds.flatten().tolist()
    assert (word_0, word_1, word_2, word_3) == words
    assert counter_of(words, key) == counter
    noise = draw_one(counter, key, device).numpy()
    assert distance_in_ulp(noise, exact_of([words])).max() < 2.5


def test_a_device_makes_it_in_few_launches(counting: None, npu: str) -> None:
    seeds, positions = (each.to(npu) for each in seeds_and_positions(20))
    with hostcann.profile() as counted:
        exponential_noise(seeds, positions, 50)
    assert counted.totals.launches <= MOST_LAUNCHES
    assert not counted.synchronizations
    assert not counted.totals.copies


def test_torch_and_native_agree() -> None:
    seeds, positions = seeds_and_positions(300)
    table = torch.stack((seeds, positions), 1)
    first_lanes = (0, 6, 2**20, 2**33 - 1024)
    for lanes, (number, purpose) in itertools.product((0, 1, 2, 3, 15, 16, 17, 1001), enumerate([*Purpose, WORD])):
        first_lane = first_lanes[(number + lanes) % 4]
        native = exponential_noise(table[:, 0], table[:, 1], lanes, purpose=purpose, first_lane=first_lane)  # type: ignore[arg-type]
        assert (native.shape, native.dtype, native.is_contiguous()) == ((300, lanes), torch.float32, True)
        specified = _exponential_noise_torch(seeds, positions, lanes, purpose, first_lane)
        assert torch.equal(native.view(torch.int32), specified.view(torch.int32))


def test_devices_agree(accelerator: str) -> None:
    table = torch.stack(seeds_and_positions(200), 1)
    for lanes, purpose, first_lane in ((77, Purpose.DRAW, 0), (64, Purpose.RESAMPLING, 2**20)):
        here, there = (
            exponential_noise(each[:, 0], each[:, 1], lanes, purpose=purpose, first_lane=first_lane)
            for each in (table, table.to(accelerator))
        )
        assert there.device.type == accelerator
        assert torch.equal(here, there.cpu())


def test_parts_agree() -> None:
    seeds, positions = seeds_and_positions(3)
    whole = exponential_noise(seeds, positions, 50_000)
    parts = [exponential_noise(seeds, positions, 1250, first_lane=first) for first in range(0, 50_000, 1250)]
    assert torch.equal(whole, torch.cat(parts, 1))
    assert torch.equal(exponential_noise(seeds.flip(0)[::2], positions.flip(0)[::2], 9), whole.flip(0)[::2, :9])


def test_ends(device: str) -> None:
    """Every step of the way, at the numbers where it might go wrong; the words come from Philox backwards."""
    key = (0x01234567, 0x89ABCDEF)
    for i, other in zip(ENDS[:4], ENDS[:3:-1], strict=True):
        words = tuple(word for number in (2 * i, 2 * other + 1) for word in (number >> 32, number & WORD))
        noise = draw_one(counter_of(words, key), key, device).numpy()
        assert distance_in_ulp(noise, exact_of([words])).max() < 2.5
        if i == 0:
            assert noise[0] == 2.0**-64
            assert noise[1] == np.float32(64 * math.log(2))


def test_accuracy() -> None:
    """Of numbers that lie everywhere in the range; of 2.7 million such the largest error was 2.22 ulp."""
    generator = np.random.default_rng(2)
    random = generator.integers(0, 2**63, 300_000, np.uint64) >> generator.integers(0, 63, 300_000, np.uint64)
    near = generator.integers(2**62 - 2**50, 2**62 + 2**50, 50_000, dtype=np.uint64)
    i = np.concatenate([np.array(ENDS + POWERS, np.uint64), random, np.uint64(2**63 - 1) - random, near])
    words = i << np.uint64(1)
    high, low = (torch.from_numpy(part.astype(np.int64)) for part in (words >> np.uint64(32), words & np.uint64(WORD)))
    noise = _exponential(high, low).numpy()
    assert torch.equal(_exponential(high, low | 1), _exponential(high, low))  # the last bit is not read
    error = distance_in_ulp(noise, exact(i))
    assert error.max() < 2.5
    assert noise.min() == 2.0**-64
    assert noise.max() == np.float32(64 * math.log(2))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"seed": 3}, TypeError, "exponential_noise: seed must be a torch.Tensor, got int"),
    ({"position": None}, TypeError, "position must be a torch.Tensor, got NoneType"),
    ({"purpose": "DRAW"}, TypeError, "exponential_noise: purpose must be an int, got str 'DRAW'"),
    ({"lanes": -1}, ValueError, "lanes must be >= 0, got -1"),
    ({"first_lane": 3}, ValueError, "first_lane must be even and >= 0, got 3"),
    ({"first_lane": 2**33, "lanes": 1}, ValueError, r"must end at 2\^33"),
    ({"purpose": -1}, ValueError, r"purpose must be between 0 and 2\^32 - 1, got -1"),
]


def test_bad_arguments(device: str, npu: str) -> None:
    numbers = torch.arange(3, device=device)
    for wrong, error, message in BAD:
        with pytest.raises(error, match=message):
            exponential_noise(**{"seed": numbers, "position": numbers, "lanes": 4} | wrong)
    with pytest.raises(ValueError, match="position must be on the device of seed"):
        exponential_noise(torch.arange(3, device=npu), torch.arange(3), 4)
