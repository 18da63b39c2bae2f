"""Results of both operators that can be checked by hand, for every scenario and layout."""

from dataclasses import replace
from typing import Any

import numpy as np

from .hand_worked import FOUR_EQUAL, MIXED, NO_K, NO_P, SCENARIOS, VOCAB_SIZE, Row
from .sampler import Arguments, Device
from .test_phase_1 import BATCH, SECOND, valid_arguments

QUARTERS = (0.25, 0.5, 0.0, 0.125, 0.0, 0.125, 0.0, 0.0)


def expected_kept(row: Row) -> np.ndarray:
    """The row of logitsTopKpSelect."""
    kept = np.full(VOCAB_SIZE, -np.inf, np.float32)
    for token in row.kept:
        kept[token] = row.logits[token]
    return kept


def check_rows(rows: list[Row], ids: np.ndarray, kept: np.ndarray) -> None:
    """Names the row that differs."""
    for row, token, row_kept in zip(rows, ids, kept, strict=True):
        assert token == row.token, row.name
        np.testing.assert_array_equal(row_kept, expected_kept(row), row.name)


def test_scenarios_mixed_in_one_batch(device: Device) -> None:
    """q is given when the rows have it, all of them or none; the guess of k changes nothing."""
    for dtype in ("float16", "bfloat16"):
        for with_q, guess in ((False, 1), (False, 5000), (True, 32)):
            rows = [row for row in SCENARIOS if (row.q is not None) == with_q] * 16
            q = [row.q for row in rows] if with_q else None
            columns = ([getattr(row, name) for row in rows] for name in ("logits", "k", "p"))
            check_rows(rows, *device.run(device.arguments(*columns, q, dtype, top_k_guess=guess)))


def test_select_is_not_written_when_not_wanted(device: Device) -> None:
    arguments = device.arguments([MIXED], [4], [NO_P], is_need_logits=False)
    untouched = np.arange(VOCAB_SIZE, dtype=np.float32)
    arguments.kept.buffer.write(untouched)
    ids, kept = device.run(arguments)
    assert ids.tolist() == [1]
    np.testing.assert_array_equal(kept, [untouched])


class TestLayouts:
    """Views of larger storages: strides, offsets and broadcast rows."""

    ROWS = tuple(row for row in SCENARIOS if row.q is not None)
    """Those that read all inputs."""

    def check(self, device: Device, **replaced: object) -> None:
        """Runs ROWS with some of the tensors replaced by views of equal contents."""
        arguments = device.arguments(
            [row.logits for row in self.ROWS],
            [row.k for row in self.ROWS],
            [row.p for row in self.ROWS],
            [row.q for row in self.ROWS],
        )
        check_rows(list(self.ROWS), *device.run(Arguments(**(vars(arguments) | replaced))))

    def test_inputs(self, device: Device) -> None:
        """Transposed; inside a padded storage; every second element; one row for all."""
        logits, q = ([getattr(row, name) for row in self.ROWS] for name in ("logits", "q"))
        shape, pad = (len(self.ROWS), VOCAB_SIZE), 3
        layout: dict[str, Any] = {"shape": shape, "strides": (1, shape[0])}
        transposed = device.tensor(np.transpose(logits), "float16", **layout)
        self.check(device, logits=transposed, q=device.tensor(np.transpose(q), "float32", **layout))

        wide = np.pad(np.array(logits), ((1, 1), (pad, pad)), constant_values=100.0)
        layout = {"shape": shape, "strides": (wide.shape[1], 1), "offset": wide.shape[1] + pad}
        self.check(device, logits=device.tensor(wide, "float16", **layout))

        layout = {"shape": shape[:1], "strides": (2,), "offset": 1}
        k = device.tensor([value for row in self.ROWS for value in (1, row.k)], "int32", **layout)
        p = device.tensor([value for row in self.ROWS for value in (0.01, row.p)], "float16", **layout)
        self.check(device, k=k, p=p)

        rows = [row for row in SCENARIOS if row.q is None and row.logits == MIXED]
        arguments = device.arguments([row.logits for row in rows], [row.k for row in rows], [row.p for row in rows])
        arguments.logits = device.tensor([MIXED], "float16", shape=(len(rows), VOCAB_SIZE), strides=(0, 1))
        check_rows(rows, *device.run(arguments))

    def test_strided_outputs(self, device: Device) -> None:
        count, columns = len(self.ROWS), VOCAB_SIZE + 5
        ids = device.tensor(np.full(2 * count, -7), "int64", shape=(count,), strides=(2,), offset=1)
        kept = device.tensor(
            np.full((count, columns), 77.0), "float32", shape=(count, VOCAB_SIZE), strides=(columns, 1), offset=2
        )
        self.check(device, ids=ids, kept=kept)
        # What lies between the elements of a view belongs to somebody else.
        assert (ids.buffer.read(np.int64, 2 * count)[::2] == -7).all()
        around = kept.buffer.read(np.float32, count * columns).reshape(count, columns)
        assert (np.delete(around, np.s_[2 : 2 + VOCAB_SIZE], axis=1) == 77.0).all()


# ---- the second operator ----


def kept_ids(kept: np.ndarray, filler: float = -np.inf) -> list[list[int]]:
    return [np.flatnonzero(row != filler).tolist() for row in kept]


def test_top_p_keeps_until_the_sum_reaches_p(device: Device) -> None:
    """Sums of 1/4, 1/2: two are enough. p of 0 and below keeps one."""
    for dtype in ("float16", "bfloat16", "float32"):
        p = [0.5, 0.5, 0.515625, 0.0, -1.0]
        _, kept = device.run(device.arguments_v2([FOUR_EQUAL] * 5, [NO_K, 4, 4, NO_K, 4], p, dtype=dtype))
        assert kept_ids(kept) == [[1, 3], [1, 3], [1, 3, 4], [1], [1]]


def test_min_p(device: Device) -> None:
    """Of probabilities, so that the product is exact: 0.25 is half of 0.5. With it alone q is by place."""
    min_p = [0.5, 0.51, 0.25, 1.0, 0.0, -1.0]
    arguments = device.arguments_v2([QUARTERS] * 6, [NO_K] * 6, [NO_P] * 6, None, min_p, input_is_logits=False)
    ids, kept = device.run(arguments)
    assert ids.tolist() == [1] * 6
    assert kept_ids(kept, 0.0) == [[0, 1], [1], [0, 1, 3, 5], [1], [0, 1, 3, 5], [0, 1, 3, 5]]
    q = (1.0, 1.0, 1.0, 1e-3, 1.0, 1.0, 1.0, 1.0)  # kept are 0, 1, 3, 5: the fourth noise is id 5's
    arguments = device.arguments_v2([QUARTERS], [NO_K], [NO_P], [q], [0.25], input_is_logits=False)
    assert device.run(arguments)[0].tolist() == [5]


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
