"""Noise: the generator's published vectors, one result everywhere, numbers as exponential as float32 can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.sampling.draws.noise import (
    Purpose,
    _exponential,
    _exponential_noise_torch,
    _philox,
    exponential_noise,
)
from tests.support.code_paths import assert_same_on_all_code_paths

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


def test_columns_of_a_table(device: str) -> None:
    table = torch.stack(seeds_and_positions(20), 1).to(device)
    expected = exponential_noise(*seeds_and_positions(20), 9)
    assert torch.equal(exponential_noise(table[:, 0], table[:, 1], 9).cpu(), expected)
    assert torch.equal(_exponential_noise_torch(table[:, 0], table[:, 1], 9, 0, 0).cpu(), expected)


@pytest.mark.parametrize("lanes", [0, 1, 2, 3, 15, 16, 17, 50, 1001])
def test_torch_and_native_agree(lanes: int) -> None:
    seeds, positions = seeds_and_positions(300)
    first_lanes = (0, 6, 2**20, 2**33 - 1024)
    for number, purpose in enumerate([*Purpose, WORD]):
        first_lane = first_lanes[(number + lanes) % 4]
        native = exponential_noise(seeds, positions, lanes, purpose=purpose, first_lane=first_lane)  # type: ignore[arg-type]
        assert native.shape == (300, lanes)
        assert native.dtype == torch.float32
        assert native.is_contiguous()
        specified = _exponential_noise_torch(seeds, positions, lanes, purpose, first_lane)
        assert torch.equal(native.view(torch.int32), specified.view(torch.int32))


def test_devices_agree(accelerator: str) -> None:
    seeds, positions = seeds_and_positions(200)
    for lanes, purpose, first_lane in ((77, Purpose.DRAW, 0), (64, Purpose.RESAMPLING, 2**20)):
        here = exponential_noise(seeds, positions, lanes, purpose=purpose, first_lane=first_lane)
        there = exponential_noise(
            seeds.to(accelerator), positions.to(accelerator), lanes, purpose=purpose, first_lane=first_lane
        )
        assert there.device.type == accelerator
        assert torch.equal(here, there.cpu())


def test_instruction_sets_agree() -> None:
    script = (
        "import hashlib, torch; from ascend_sample.sampling.draws.noise import exponential_noise;"
        "numbers = torch.arange(-500, 500) * 1234567890123457;"
        "noise = exponential_noise(numbers, numbers.flip(0), 333);"
        "print(hashlib.sha256(noise.numpy().tobytes()).hexdigest())"
    )
    assert_same_on_all_code_paths(script)


def test_threads_and_parts_agree() -> None:
    seeds, positions = seeds_and_positions(3)
    whole = exponential_noise(seeds, positions, 50_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = exponential_noise(seeds, positions, 50_000)
    torch.set_num_threads(threads)
    assert torch.equal(whole, alone)
    parts = [exponential_noise(seeds, positions, 1250, first_lane=first) for first in range(0, 50_000, 1250)]
    assert torch.equal(whole, torch.cat(parts, 1))
    assert torch.equal(exponential_noise(seeds.flip(0)[::2], positions.flip(0)[::2], 9), whole.flip(0)[::2, :9])
    strided = torch.stack((seeds, positions), 1)
    assert torch.equal(exponential_noise(strided[:, 0], strided[:, 1], 50_000), whole)


def test_ends(device: str) -> None:
    """Every step of the way, at the numbers where it might go wrong; the words come from Philox backwards."""
    key = (0x01234567, 0x89ABCDEF)
    for i, other in ((0, 2**63 - 1), (2**62 - 1, 2**62), (1, 2**63 - 2)):
        words = tuple(word for number in (2 * i, 2 * other + 1) for word in (number >> 32, number & WORD))
        noise = draw_one(counter_of(words, key), key, device).numpy()
        assert distance_in_ulp(noise, exact_of([words])).max() < 2.5
        if i == 0:
            assert noise[0] == 2.0**-64
            assert noise[1] == np.float32(64 * math.log(2))


def test_accuracy() -> None:
    """The largest error of 2.7 million numbers, which lie everywhere in the range, is 2.22 ulp."""
    generator = np.random.default_rng(2)
    random = generator.integers(0, 2**63, 1_500_000, dtype=np.uint64) >> generator.integers(
        0, 63, 1_500_000, dtype=np.uint64
    )
    near = generator.integers(2**62 - 2**50, 2**62 + 2**50, 200_000, dtype=np.uint64)
    i = np.concatenate([np.array(ENDS + POWERS, np.uint64), random, np.uint64(2**63 - 1) - random[:1_000_000], near])
    words = i << np.uint64(1)
    high, low = (torch.from_numpy(part.astype(np.int64)) for part in (words >> np.uint64(32), words & np.uint64(WORD)))
    noise = _exponential(high, low).numpy()
    assert torch.equal(_exponential(high, low | 1), _exponential(high, low))  # the last bit is not read
    error = distance_in_ulp(noise, exact(i))
    print(f"largest error {error.max():.3f} ulp, of {i.size} numbers")
    assert error.max() < 2.5
    assert noise.min() == 2.0**-64
    assert noise.max() == np.float32(64 * math.log(2))


def test_native_accuracy_over_the_range() -> None:
    """The native kernel at chosen numbers, each by its own counter."""
    key = (7, 9)
    words = [
        tuple(word for number in (2 * i, 2 * (2**63 - 1 - i)) for word in (number >> 32, number & WORD))
        for i in ENDS + POWERS
    ]
    noise = torch.cat([draw_one(counter_of(each, key), key) for each in words]).numpy()
    assert distance_in_ulp(noise, exact_of(words)).max() < 2.5


def kolmogorov_smirnov(noise: Tensor) -> float:
    """sqrt(n) times the largest distance from the exponential distribution: beyond 2.7 once in a million."""
    probabilities = -torch.expm1(-noise.double().flatten().sort().values)
    count = probabilities.numel()
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = torch.maximum((probabilities - steps[:-1]).abs().max(), (steps[1:] - probabilities).abs().max())
    return float(distance) * math.sqrt(count)


def rows(count: int, *, seed: int = 5, position: int = 0) -> tuple[Tensor, Tensor]:
    return torch.full((count,), seed), torch.full((count,), position)


def test_distribution() -> None:
    numbers = torch.arange(1_000_000)
    zeros = torch.zeros_like(numbers)
    along = {
        "lanes": exponential_noise(*rows(1), 1_000_000),
        "positions": exponential_noise(zeros, numbers, 1),
        "seeds": exponential_noise(numbers, zeros, 1),
        "odd lanes": exponential_noise(numbers, numbers, 2)[:, 1],
        "high seeds": exponential_noise(numbers << 32, zeros, 1),
    }
    for name, noise in along.items():
        assert kolmogorov_smirnov(noise) < 2.7, name
        counts = torch.histc(-torch.expm1(-noise.double()), 1000, 0, 1)
        expected = noise.numel() / 1000
        chi_square = float(((counts - expected) ** 2).sum()) / expected
        assert abs(chi_square - 999) < 5 * math.sqrt(2 * 999), name
    assert kolmogorov_smirnov(along["lanes"] * 1.01) > 2.7  # what it would find


def test_independence() -> None:
    """Whatever differs between two numbers, they are not correlated; nor are whether they are small."""
    count = 200_000
    seeds, positions = torch.arange(count) * 7919, torch.arange(count) % 977
    both = exponential_noise(seeds, positions, 4)
    others = {
        "the other half of a counter": both[:, 1],
        "the next counter": both[:, 2],
        "the next position": exponential_noise(seeds, positions + 1, 1)[:, 0],
        "a far position": exponential_noise(seeds, positions + 2**32, 1)[:, 0],
        "the next seed": exponential_noise(seeds + 1, positions, 1)[:, 0],
        "a far seed": exponential_noise(seeds + 2**32, positions, 1)[:, 0],
        **{
            purpose.name: exponential_noise(seeds, positions, 1, purpose=purpose)[:, 0]
            for purpose in Purpose
            if purpose != Purpose.DRAW
        },
        "seed and position exchanged": exponential_noise(positions, seeds, 1)[:, 0],
        "rows": both[:, 0].roll(1),
    }
    uniform = torch.expm1(-both[:, 0].double())
    for name, noise in others.items():
        pair = torch.stack((uniform, torch.expm1(-noise.double())))
        assert abs(float(torch.corrcoef(pair)[0, 1])) * math.sqrt(count) < 5, name
        are_small = (both[:, 0] < 0.01) & (noise < 0.01)
        expected = count * (1 - math.exp(-0.01)) ** 2
        assert abs(float(are_small.sum()) - expected) < 5 * math.sqrt(expected), name
        assert not torch.equal(both[:, 0], noise), name


def misses_of_tail(noise: Tensor) -> int:
    """How many bands of small numbers, each half as wide as the last, have a wrong count, or are multiples of 2^-24."""
    misses = 0
    for bit in range(8, 20):
        band = noise[(noise < 2.0**-bit) & (noise >= 2.0 ** -(bit + 1))]
        expected = noise.numel() * (math.exp(-(2.0 ** -(bit + 1))) - math.exp(-(2.0**-bit)))
        steps = -torch.expm1(-band.double()) * 2.0**24
        is_on_grid = (steps - steps.round()).abs() < 0.01
        misses += abs(band.numel() - expected) > 5 * math.sqrt(expected)
        misses += band.numel() > 20 and float(is_on_grid.float().mean()) > 0.5
    return misses


def test_tail() -> None:
    """Small noise draws unlikely tokens: it is as fine as float32, not as coarse as 24-bit uniforms."""
    noise = exponential_noise(torch.arange(64), torch.zeros(64, dtype=torch.int64), 2**18)
    assert misses_of_tail(noise) == 0
    coarse = -torch.log1p(-torch.rand(2**24, generator=torch.Generator().manual_seed(0)))
    assert misses_of_tail(coarse) > 3
    assert noise.min() > 0
    assert torch.isfinite(noise).all()


BAD = [
    (lambda g: g | {"seed": 3}, TypeError, "exponential_noise: seed must be a torch.Tensor, got int"),
    (lambda g: g | {"position": None}, TypeError, "position must be a torch.Tensor, got NoneType"),
    (lambda g: g | {"purpose": "DRAW"}, TypeError, "exponential_noise: purpose must be an int, got str 'DRAW'"),
    (lambda g: g | {"lanes": -1}, ValueError, "lanes must be >= 0, got -1"),
    (lambda g: g | {"first_lane": 3}, ValueError, "first_lane must be even and >= 0, got 3"),
    (lambda g: g | {"first_lane": -2}, ValueError, "first_lane must be even and >= 0, got -2"),
    (lambda g: g | {"first_lane": 2**33, "lanes": 1}, ValueError, r"must end at 2\^33"),
    (lambda g: g | {"purpose": -1}, ValueError, r"purpose must be between 0 and 2\^32 - 1, got -1"),
    (lambda g: g | {"purpose": 2**32}, ValueError, "purpose must be between"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_arguments(device: str, change, error: type[Exception], message: str) -> None:
    good = {
        "seed": torch.arange(3, device=device),
        "position": torch.arange(3, device=device),
        "lanes": 4,
        "purpose": Purpose.DRAW,
        "first_lane": 0,
    }
    exponential_noise(**good)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        exponential_noise(**change(good))


def test_arguments_on_two_devices(npu: str) -> None:
    with pytest.raises(ValueError, match="position must be on the device of seed"):
        exponential_noise(torch.arange(3, device=npu), torch.arange(3), 4)


def test_on_meta() -> None:
    numbers = torch.arange(5, device="meta")
    noise = exponential_noise(numbers, numbers, 7)
    assert (noise.shape, noise.dtype) == ((5, 7), torch.float32)
