"""Rows on which every code path of the CPU kernel must give the same bits: 20,000 and more, of every kind.

Batches come from `ascend_sample.parity.cases`; here they get the sizes at which vectors, chunks and segments end, the
kinds of k, p, q and eps that are undefined or unpromised on a device and therefore no part of `verify`, and rows that
lie further apart than their length.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from batch_file import Call

from ascend_sample.parity import Result
from ascend_sample.parity.cases import Batch, draw_batch
from ascend_sample.parity.families import FAMILIES, Family

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INF, NAN = float("inf"), float("nan")


def _subnormal(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """The least numbers of float32 or float16, with zeros of both signs between them."""
    least = torch.tensor([2.0**-149, 2.0**-24])[torch.randint(2, (batch_size, 1), generator=generator)]
    return least * torch.randint(-9, 10, (batch_size, vocab_size), generator=generator)


def _any_bits(generator: torch.Generator, batch_size: int, vocab_size: int) -> torch.Tensor:
    """Whatever float32 can hold; half of the rows within reach of the 16-bit types."""
    bits = torch.randint(-(2**31), 2**31, (batch_size, vocab_size), generator=generator).to(torch.int32)
    values = bits.view(torch.float32)
    near = torch.rand((batch_size, 1), generator=generator) < 0.5
    return torch.where(near, values.abs().log2() * 300.0, values)


OWN_FAMILIES = (Family("subnormal", _subnormal), Family("any bits", _any_bits))

_UNITS = (16, 32, 64, 128, 256, 512, 1024)
_TAILS = tuple(sorted({unit * times + off for unit in _UNITS for times in (1, 2, 3) for off in (-1, 0, 1)}))
_LONG = (4095, 4096, 4097, 8191, 8192, 8193, 16383, 16385, 24577)
_LARGE = (32000, 50257, 65535, 65537, 128256, 151936, 200_000)


def shapes(rows: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
    """Batch and vocabulary sizes, until there are so many rows; long rows are few."""
    made = 0
    while made < rows:
        for vocab_size in range(1, 67):
            yield 8, vocab_size
        for vocab_size in _TAILS:
            yield 12, vocab_size
        for _ in range(40):
            drawn = float(torch.rand((), generator=generator))
            yield 1 + int(torch.randint(20, (), generator=generator)), int(3000.0**drawn)
        for vocab_size in _LONG:
            yield 2, vocab_size
        for vocab_size in 2 * _LARGE:
            yield 1, vocab_size
        made += 8 * 66 + 12 * len(_TAILS) + 40 + 2 * len(_LONG) + 2 * len(_LARGE)


def make_calls(rows: int = 20_000, seed: int = 0) -> list[Call]:
    """Batches of at least so many rows, the same ones for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    families = itertools.cycle((*FAMILIES, *OWN_FAMILIES))
    calls = []
    for index, (batch_size, vocab_size) in enumerate(shapes(rows, generator)):
        dtype = DTYPES[int(torch.randint(len(DTYPES), (), generator=generator))]
        batch = draw_batch(generator, batch_size, vocab_size, next(families), dtype, seed, index)
        calls.append(_vary(batch, generator))
    return calls


def _vary(batch: Batch, generator: torch.Generator) -> Call:
    """A call with the batch's tensors, some of them replaced by more unusual ones."""

    def one_in(times: int) -> bool:
        return int(torch.randint(times, (), generator=generator)) == 0

    batch_size, vocab_size = batch.shape
    logits, k, p = batch.logits.view(), batch.k.view(), batch.p.view()
    q = None if batch.q is None else batch.q.view()
    if one_in(6):
        logits = _further_apart(logits)
    if one_in(4):
        k = _pick([1, 2, 15, 16, 17, 31, 33, 127, 511, 1000, 1023, 1024, vocab_size, vocab_size - 1], k, generator)
    if one_in(4):
        info = torch.finfo(p.dtype)
        near = [info.smallest_normal, info.tiny / 4, 1 - info.eps / 2, 1 - info.eps, 1 - 4 * info.eps, 2**-7, 127 / 128]
        p = _pick(near, p, generator)
    if q is not None:
        if one_in(8):
            special = _pick([0.0, -0.0, INF, -INF, NAN, 1e-45, 3e38, -1.0], torch.empty(batch_size), generator)
            struck = torch.rand(q.shape, generator=generator) < float(_pick([0.02, 0.5, 1.0], q[:1, 0], generator))
            q = torch.where(struck, special[:, None], q)
        if one_in(6):
            q = _further_apart(q)
    eps = 0.0 if one_in(4) else batch.eps
    return Call(logits, k, p, q, eps, batch.is_need_logits)


def _pick(values: list[float] | list[int], like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One of the values for each element of a vector, in its dtype."""
    chosen = torch.randint(len(values), like.shape, generator=generator)
    return torch.tensor(values, dtype=torch.float64)[chosen].to(like.dtype)


def _further_apart(matrix: torch.Tensor) -> torch.Tensor:
    """The same rows, with other values between them."""
    wider = torch.full((matrix.shape[0], matrix.shape[1] + 5), 99.0, dtype=matrix.dtype)
    wider[:, 3:-2] = matrix
    return wider[:, 3:-2]


class Recomposed:
    """The rows of some calls in another company: rows of one shape are mixed, in another order, in batches of seven.

    Attributes:
        calls: the new batches, contiguous.
    """

    def __init__(self, calls: list[Call], seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        alike: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for index, call in enumerate(calls):
            key = (call.logits.shape[1], call.logits.dtype, call.q is None, call.eps, call.is_need_logits)
            alike[key] += [(index, row) for row in range(call.logits.shape[0])]
        self._sources: list[list[tuple[int, int]]] = []
        self.calls: list[Call] = []
        for places in alike.values():
            mixed = [places[i] for i in torch.randperm(len(places), generator=generator).tolist()]
            for start in range(0, len(mixed), 7):
                sources = mixed[start : start + 7]
                self._sources.append(sources)
                self.calls.append(self._gather([(calls[index], row) for index, row in sources]))

    @staticmethod
    def _gather(rows: list[tuple[Call, int]]) -> Call:
        first = rows[0][0]
        q = None if first.q is None else torch.stack([call.q[row] for call, row in rows if call.q is not None])
        return Call(
            torch.stack([call.logits[row] for call, row in rows]),
            torch.stack([call.k[row] for call, row in rows]),
            torch.stack([call.p[row] for call, row in rows]),
            q,
            first.eps,
            first.is_need_logits,
        )

    def put_back(self, results: list[Result], like: list[Result]) -> list[Result]:
        """The new batches' results, row by row where the rows came from."""
        back = [
            Result(torch.full_like(old.ids, -1), None if old.kept is None else old.kept.clone().fill_(NAN))
            for old in like
        ]
        for sources, result in zip(self._sources, results, strict=True):
            for place, (index, row) in enumerate(sources):
                target = back[index]
                target.ids[row] = result.ids[place]
                if target.kept is not None and result.kept is not None:
                    target.kept[row] = result.kept[place]
        return back
