"""Results that can be checked by hand, for every scenario, layout and dtype."""

from typing import Any

import numpy as np
import pytest

from .cann import Arguments, Device, encode
from .hand_worked import FOUR_EQUAL, MIXED, NO_K, NO_P, SCENARIOS, UNUSUAL, VOCAB_SIZE, Row

DTYPES = ("float16", "bfloat16")


def expected_kept(row: Row) -> np.ndarray:
    """The row of logitsTopKpSelect."""
    kept = np.full(VOCAB_SIZE, -np.inf, np.float32)
    for token in row.kept:
        kept[token] = row.logits[token]
    return kept


def run_rows(device: Device, rows: list[Row], dtype: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """The rows as one batch; q is given when the rows have it, all of them or none."""
    arguments = device.arguments(
        [row.logits for row in rows],
        [row.k for row in rows],
        [row.p for row in rows],
        None if rows[0].q is None else [row.q for row in rows],
        dtype,
        **options,
    )
    return device.run(arguments)


def check_rows(rows: list[Row], ids: np.ndarray, kept: np.ndarray) -> None:
    """Names the row that differs."""
    for row, token, row_kept in zip(rows, ids, kept, strict=True):
        assert token == row.token, row.name
        np.testing.assert_array_equal(row_kept, expected_kept(row), row.name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scenarios_mixed_in_one_batch(device: Device, dtype: str) -> None:
    for with_q in (False, True):
        rows = [row for row in SCENARIOS if (row.q is not None) == with_q] * 16
        check_rows(rows, *run_rows(device, rows, dtype))


@pytest.mark.hostcann_only
def test_unusual_input(device: Device) -> None:
    for row in UNUSUAL:
        check_rows([row], *run_rows(device, [row], "float16"))


def test_guess_changes_nothing(device: Device) -> None:
    rows = [row for row in SCENARIOS if row.q is None]
    for guess in (1, 2, 32, 1024, 5000):
        check_rows(rows, *run_rows(device, rows, "float16", top_k_guess=guess))


def test_select_is_not_written_when_not_wanted(device: Device) -> None:
    arguments = device.arguments([MIXED], [4], [NO_P], is_need_logits=False)
    untouched = np.arange(VOCAB_SIZE, dtype=np.float32)
    arguments.kept.buffer.write(untouched)
    ids, kept = device.run(arguments)
    assert ids.tolist() == [1]
    np.testing.assert_array_equal(kept, [untouched])


def test_order_of_ties_is_by_id_across_segments(device: Device) -> None:
    # Segments are 8192 long: the second equal value lies in another one, and the largest in the last.
    logits = np.zeros((1, 3 * 8192 + 1), np.float32)
    logits[0, [8191, 8192, 2 * 8192]] = 5.0
    logits[0, -1] = 6.0
    ids, kept = device.run(device.arguments(logits, [3], [NO_P]))
    assert ids.tolist() == [logits.shape[1] - 1]
    assert np.flatnonzero(np.isfinite(kept[0])).tolist() == [8191, 8192, logits.shape[1] - 1]


def test_k_is_on_up_to_1024(device: Device) -> None:
    k = [1, 1024, 1025, 2000, NO_K]
    _, kept = device.run(device.arguments([np.linspace(4.0, -4.0, 2000)] * 5, k, [NO_P] * 5))
    assert np.isfinite(kept).sum(axis=1).tolist() == [1, 1024, 2000, 2000, 2000]


def test_vocabulary_of_one(device: Device) -> None:
    ids, kept = device.run(device.arguments([[1.5], [-2.0]], [1, NO_K], [0.5, NO_P], [[1.0], [1.0]]))
    assert ids.tolist() == [0, 0]
    assert kept.tolist() == [[1.5], [-2.0]]


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

    def test_bfloat16_bits(self, device: Device) -> None:
        # 1.0078125 is the bfloat16 after 1: truncation instead of rounding anywhere would lose it.
        logits = device.tensor([[1.0, 1.0078125, *FOUR_EQUAL[:6]]], "bfloat16")
        assert encode(1.0078125, "bfloat16") == 0x3F81
        arguments = device.arguments([MIXED], [1], [NO_P], dtype="bfloat16")
        arguments.logits = logits
        ids, kept = device.run(arguments)
        assert ids.tolist() == [3]  # 2.0, of FOUR_EQUAL
        assert kept[0, 3] == 2.0
