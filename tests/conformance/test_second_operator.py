"""aclnnTopKTopPSampleV2: results that can be checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from .cann import Device
from .hand_worked import FOUR_EQUAL, NO_K, NO_P, ONES, STEEP, VOCAB_SIZE
from .test_phase_1 import BATCH, SECOND, valid_arguments

DTYPES = ("float16", "bfloat16", "float32")
QUARTERS = (0.25, 0.5, 0.0, 0.125, 0.0, 0.125, 0.0, 0.0)


def kept_ids(kept: np.ndarray, filler: float = -np.inf) -> list[list[int]]:
    return [np.flatnonzero(row != filler).tolist() for row in kept]


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_p_keeps_until_the_sum_reaches_p(device: Device, dtype: str) -> None:
    """Sums of 1/4, 1/2: two are enough. p of 0 and below keeps one."""
    p = [0.5, 0.5, 0.515625, 0.0, -1.0]
    k = [NO_K, 4, 4, NO_K, 4]
    _, kept = device.run(device.arguments_v2([FOUR_EQUAL] * 5, k, p, dtype=dtype))
    assert kept_ids(kept) == [[1, 3], [1, 3], [1, 3, 4], [1], [1]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_second_softmax(device: Device, dtype: str) -> None:
    """Ids 1 and 3 weigh 7.4 : 1; a noise of 0.4 does not make up for that, one of 0.1 does."""
    q = [(1.0, 0.4, *ONES[2:]), (1.0, 0.1, *ONES[2:])]
    ids, kept = device.run(device.arguments_v2([STEEP] * 2, [NO_K] * 2, [0.9] * 2, q, dtype=dtype))
    assert ids.tolist() == [1, 3]
    assert kept_ids(kept) == [[1, 3]] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_min_p(device: Device, dtype: str) -> None:
    """Of probabilities, so that the product is exact: 0.25 is half of 0.5."""
    min_p = [0.5, 0.51, 0.25, 1.0, 0.0, -1.0]
    arguments = device.arguments_v2([QUARTERS] * 6, [NO_K] * 6, [NO_P] * 6, None, min_p, dtype, input_is_logits=False)
    ids, kept = device.run(arguments)
    assert ids.tolist() == [1] * 6
    assert kept_ids(kept, 0.0) == [[0, 1], [1], [0, 1, 3, 5], [1], [0, 1, 3, 5], [0, 1, 3, 5]]


def test_q_of_min_p_alone_is_by_place(device: Device) -> None:
    """Kept are 0, 1, 3, 5: the fourth noise is id 5's."""
    q = (1.0, 1.0, 1.0, 1e-3, 1.0, 1.0, 1.0, 1.0)
    arguments = device.arguments_v2([QUARTERS], [NO_K], [NO_P], [q], [0.25], input_is_logits=False)
    assert device.run(arguments)[0].tolist() == [5]


def test_ks_max_is_rounded_up_to_a_multiple_of_8(device: Device) -> None:
    logits = [np.linspace(1.0, -1.0, 30)] * 2
    for ks_max, k, counts in ((1, [8, 16], [8, 30]), (9, [9, 16], [9, 16]), (1024, [9, 16], [9, 16])):
        _, kept = device.run(device.arguments_v2(logits, k, [NO_P] * 2, ks_max=ks_max))
        assert np.isfinite(kept).sum(axis=1).tolist() == counts


def test_sample_result(device: Device) -> None:
    expected = [
        (NO_K, NO_P, 0.0, list(range(VOCAB_SIZE))),
        (NO_K, NO_P, 0.25, [0, 1, 3, 5]),
        (3, NO_P, 0.0, [1, 0, 3]),
        (NO_K, 0.75, 0.0, [1, 0]),
        (3, 0.8, 0.3, [1, 0]),
    ]
    k, p, min_p, ids = zip(*expected, strict=True)
    options = {"is_need_sample_result": True, "is_need_logits": False, "input_is_logits": False}
    arguments = device.arguments_v2([QUARTERS] * len(ids), k, p, None, min_p, **options)
    arguments.kept.buffer.write(np.full(VOCAB_SIZE * len(ids), 7.0, np.float32))
    _, kept = device.run(arguments)
    assert (kept == 7.0).all(), "not wanted: not written"
    rows = zip(arguments.dense_ids.numpy(), arguments.dense_weights.numpy(), ids, strict=True)
    for dense_ids, weights, of_row in rows:
        assert dense_ids[: len(of_row)].tolist() == of_row
        assert weights.tolist() == [QUARTERS[token] for token in of_row] + [0.0] * (VOCAB_SIZE - len(of_row))


@pytest.mark.hostcann_only
def test_what_is_undefined_is_not_written(device: Device) -> None:
    """The ids behind the kept ones, and logitsSelectIdxOut beside a sample result: nobody may read them."""
    options = {"is_need_sample_result": True, "input_is_logits": False}
    arguments = device.arguments_v2([QUARTERS], [2], [NO_P], **options)
    arguments.dense_ids.buffer.write(np.full(VOCAB_SIZE, -5, np.int64))
    arguments.ids.buffer.write(np.full(1, -5, np.int64))
    ids, _ = device.run(arguments)
    assert ids.tolist() == [-5]
    assert arguments.dense_ids.numpy()[0].tolist() == [1, 0] + [-5] * 6


def test_unwanted_outputs_may_share_memory(device: Device) -> None:
    """The bindings rely on it: nothing is written there."""
    arguments = valid_arguments(device, SECOND)
    block = device.buffer(BATCH * VOCAB_SIZE * 8)
    block.write(np.full(BATCH * VOCAB_SIZE, -5, np.int64))
    shape = (BATCH, VOCAB_SIZE)
    shared = {
        "kept": device.view(block, "float32", shape),
        "dense_ids": device.view(block, "int64", shape),
        "dense_weights": device.view(block, "float32", shape),
    }
    ids, _ = device.run(replace(arguments, is_need_logits=False, **shared))
    assert ids.tolist() == [1] * BATCH
    assert (block.read(np.int64, BATCH * VOCAB_SIZE) == -5).all()
