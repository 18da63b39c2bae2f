"""The store of keys and values: what is in its columns, on both devices, and what that costs."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

import hostcann
from ascend_sample.decoding.models.transformers_cache import AlignedCache, live_columns
from ascend_sample.decoding.places import ROLLBACKS_BEFORE_TRIM, repeated_rows


def store(lengths: list[int], device: str) -> AlignedCache:
    """Token t of row r has the key 10 r + t and the value -(10 r + t); holes have 99. One head of size 1."""
    width = max(lengths)
    tokens = torch.arange(width) - (width - torch.tensor(lengths))[:, None]
    keys = (10 * torch.arange(len(lengths))[:, None] + tokens).where(tokens >= 0, 99).float()
    own, cross = DynamicCache(), DynamicCache()
    own.update(keys[:, None, :, None].to(device), -keys[:, None, :, None].to(device), 0)
    rows = torch.arange(len(lengths)).float()[:, None, None, None].to(device)
    cross.update(rows, -rows, 0)
    past = EncoderDecoderCache(own, cross)
    return AlignedCache(past, torch.tensor(lengths, device=device), width, min(lengths) < width)


def tokens_in(cache: AlignedCache) -> list[list[int]]:
    """What the rows hold, after a look at whether keys and values agree."""
    layer = cache.past.self_attention_cache.layers[0]
    assert layer.keys.shape[2] == cache.width
    live = live_columns(cache.lengths, cache.width)

    def rows(values: Tensor) -> list[list[int]]:
        pairs = zip(values.squeeze(3).squeeze(1).cpu(), live.cpu(), strict=True)
        return [row[kept].int().tolist() for row, kept in pairs]

    assert rows(layer.keys) == rows(-layer.values)
    return rows(layer.keys)


def test_rows_move_and_are_rolled_back(device: str) -> None:
    place = functools.partial(torch.tensor, device=device)
    cache = store([3, 1, 4], device)
    assert tokens_in(cache) == [[0, 1, 2], [10], [20, 21, 22, 23]]
    cache = cache.reordered(place([2, 0, 1, 2]))
    assert tokens_in(cache) == [[20, 21, 22, 23], [0, 1, 2], [10], [20, 21, 22, 23]]
    assert cache.past.cross_attention_cache.layers[0].keys.flatten().tolist() == [2, 0, 1, 2]
    cache = cache.rolled_back(place([2, 3, 0, 1]))
    assert tokens_in(cache) == [[20, 21], [0, 1, 2], [], [20]]
    cache = cache.reordered(repeated_rows(cache.lengths, 2))
    assert tokens_in(cache) == [[20, 21], [20, 21], [0, 1, 2], [0, 1, 2], [], [], [20], [20]]
    assert cache.lengths.tolist() == [2, 2, 3, 3, 0, 0, 1, 1]
    assert cache.positions(2)[1:3].tolist() == [[2, 3], [3, 4]]
    assert tokens_in(store([2, 1], device).rolled_back(place([0, 0]))) == [[], []]
    # Rows of one length have no holes.
    cache = store([3, 3], device)
    assert cache.attention_mask(2) is None
    cache = cache.rolled_back(place([1, 2]))
    assert cache.attention_mask(1)[:, -3:].tolist() == [[False, True, True], [True, True, True]]


def test_columns_that_no_row_uses_any_more_are_cut(device: str) -> None:
    for kept in (1, 2):  # nothing need be taken back for it
        cache = store([4, 2], device).reordered(torch.tensor([1], device=device))
        assert cache.width == 4
        cache = cache.rolled_back(torch.tensor([kept], device=device))
        assert tokens_in(cache) == [[10, 11][:kept]]
        assert cache.width == (kept if device == "cpu" else 4)  # it is not read there yet


def test_a_device_is_read_at_every_eighth_rollback_only(counting: None, npu: str) -> None:
    cache = store([20, 18], npu)
    reads, widths = [], []
    for _ in range(ROLLBACKS_BEFORE_TRIM + 1):
        lengths = cache.lengths - 1
        with hostcann.profile() as counted:
            cache = cache.rolled_back(lengths)
        reads.append(counted.copies.get("d2h", 0))
        widths.append(cache.width)
    assert reads == [0] * (ROLLBACKS_BEFORE_TRIM - 1) + [1, 0]
    assert widths == [20] * (ROLLBACKS_BEFORE_TRIM - 1) + [12, 12]
    assert tokens_in(cache) == [list(range(11)), list(range(10, 19))]
