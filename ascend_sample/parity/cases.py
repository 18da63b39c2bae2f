"""The batches that `verify` runs: a stream that depends on a seed alone, so that any batch can be made again by itself.

Batch i of a seed is the same whatever the number of rows asked for. The stream goes round in cycles: each holds every
small vocabulary with every batch size, and a few rows of the large ones; the family of logits moves on by one from
cycle to cycle. What a batch has as a whole (a kind of q, or none) is dealt out, so that no combination of it with a
dtype is left to chance. Rows of one batch mix the scenarios of the operator (top-k and top-p on or off).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .families import FAMILIES, Family
from .operands import Layout, Operand

VOCAB_SIZES = (1, 2, 31, 1000, 1024, 1025, 8191, 8192, 8193, 32000, 151936, 2**20)
BATCH_SIZES = (1, 3, 64)
SEEDS = 2**37
"""So many seeds begin streams that have no generator's seed in common."""
BATCHES = 2**24
"""So many batches a stream may have."""
GUESSES = (1, 32, 1024, 5000)
EPSILONS = (1e-8, 1e-8, 1e-8, 1e-3, 1.0)
SCENARIO_NAMES = {
    "C": "softmax-argmax",
    "A": "top-k",
    "Bp": "top-p",
    "Ap": "top-k top-p",
    "Cq": "sample",
    "Aq": "top-k sample",
    "Bpq": "top-p sample",
    "Apq": "top-k top-p sample",
}
"""The scenarios in words, in the order of the operator's table."""
NOISES = ("none", "none", "exponential", "exponential", "exponential", "signed", "powers of two", "NaN")
"""The kinds of q, as often as each is dealt out."""
SCENARIOS = tuple(SCENARIO_NAMES)
MAX_TOP_K = 1024
INT32_MAX = 2**31 - 1

_LARGE = 32000
_SMALL_SHAPES = tuple(itertools.product((v for v in VOCAB_SIZES if v < _LARGE), BATCH_SIZES))
_SMALL_VOCABULARIES = len(_SMALL_SHAPES) // len(BATCH_SIZES)
_CYCLE_LENGTH = len(_SMALL_SHAPES) + 3
_EFFECTIVE_P = (1e-4, 0.1, 0.5, 0.9, 0.999)
_SKIPPING_P = (-0.1, 0.0, 1.0, 1.5, float("nan"))
LOWEST_SAFE_MAXIMUM = -80.0  # float32 exponentials of anything lower are denormal or 0


@dataclass(frozen=True)
class Batch:
    """Inputs of one call, and what is needed to make or to name them again."""

    seed: int  # the seed of the stream
    index: int  # the place in the stream
    family: str  # how the logits were made
    tie_heavy: bool  # whether equal scores or exact boundaries are the point of the batch
    logits: Operand  # `[B, V]`
    k: Operand  # int32 `[B]`
    p: Operand  # `[B]`, the dtype of the logits
    q: Operand | None  # float32 `[B, V]` or None
    eps: float  # for the operator
    is_need_logits: bool  # for the operator
    top_k_guess: int  # for the operator

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the batch size and the vocabulary size."""
        batch_size, vocab_size = self.logits.view().shape
        return batch_size, vocab_size

    def tensors(self, device: str) -> tuple[torch.Tensor | None, ...]:
        """Returns copies of logits, k, p and q on a device, in their layouts."""
        q = None if self.q is None else self.q.view(device)
        return self.logits.view(device), self.k.view(device), self.p.view(device), q

    @property
    def options(self) -> dict[str, Any]:
        """Returns the other arguments, by their names."""
        return {"eps": self.eps, "is_need_logits": self.is_need_logits, "top_k_guess": self.top_k_guess}

    def scenarios(self) -> list[str]:
        """Returns each row's scenario: its branch (A top-k, B top-p alone, C neither), then p and q where they join."""
        _, vocab_size = self.shape
        k, p = self.k.view(), self.p.view().float()
        uses_k = ((k >= 1) & (k <= min(vocab_size, MAX_TOP_K))).tolist()
        uses_p = ((p > 0) & (p < 1)).tolist()
        suffix = "" if self.q is None else "q"
        names = {(True, True): "Ap", (True, False): "A", (False, True): "Bp", (False, False): "C"}
        return [names[row] + suffix for row in zip(uses_k, uses_p, strict=True)]

    def undefined_on_device(self) -> list[bool]:
        """Tells which rows a real device gives no promise for (docs/semantics.md, section 5).

        NaN or +inf logits, a row of -inf, NaN in q; and where nothing selects a few logits first (branches B and C), a
        row so low that float32 exponentials vanish, because the device's row maximum starts at 0.
        """
        top = self.logits.view().float().amax(dim=1)
        whole_row = torch.tensor([scenario[0] != "A" for scenario in self.scenarios()])
        undefined = undefined_values(self) | (whole_row & (top < LOWEST_SAFE_MAXIMUM))
        return list(undefined.tolist())

    def describe(self, row: int) -> str:
        """Describes the parameters of one row, for a report of a failure."""
        batch_size, vocab_size = self.shape
        q = "None" if self.q is None else f"float32 {self.q.layout.value}"
        return (
            f"seed={self.seed} batch={self.index} row={row}: {self.family} logits [{batch_size}, {vocab_size}] "
            f"{self.logits.dtype_name} {self.logits.layout.value}, "
            f"k={int(self.k.view()[row])} ({self.k.layout.value}), "
            f"p={float(self.p.view()[row]):.9g} ({self.p.layout.value}), q={q}, eps={self.eps:g}, "
            f"is_need_logits={self.is_need_logits}, top_k_guess={self.top_k_guess}"
        )


def undefined_values(batch: Batch) -> torch.Tensor:
    """Tells which rows hold NaN or +inf, nothing but -inf, or NaN in q."""
    logits = batch.logits.view().float()
    undefined = logits.isnan().any(dim=1) | logits.amax(dim=1).isinf()
    return undefined if batch.q is None else undefined | batch.q.view().isnan().any(dim=1)


def stream(
    seed: int, rows: int, dtypes: tuple[torch.dtype, ...], make: Callable[..., Any] | None = None
) -> Iterator[Any]:
    """Yields whole batches until they hold at least `rows` rows; `make` them as `make_batch` does."""
    made = 0
    for index in itertools.count():
        if made >= rows:
            return
        batch = (make or make_batch)(seed, index, dtypes)
        made += batch.shape[0]
        yield batch


def count_rows(rows: int) -> int:
    """Returns how many rows `stream` yields when it is asked for `rows`."""
    made = index = 0
    while made < rows:
        made += shape_of(index)[1]
        index += 1
    return made


def shape_of(index: int) -> tuple[int, int]:
    """Returns the vocabulary and batch size of a place in the stream; large vocabularies come with few rows."""
    cycle, place = divmod(index, _CYCLE_LENGTH)
    if place < len(_SMALL_SHAPES):
        return _SMALL_SHAPES[place]
    match place - len(_SMALL_SHAPES):
        case 0:
            return 32000, 64 if cycle % 8 == 1 else (1, 3)[cycle % 2]
        case 1:
            return 151936, 64 if cycle % 16 == 2 else (1, 3)[cycle % 2]
        case _ if cycle % 4 == 0:
            return 2**20, 1
        case _ if cycle % 16 == 5:
            return 2**20, 3
        case _:
            return 32000, 1


def dtype_of(index: int, dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    """Returns the dtype of a place in the stream; the dtypes take turns, with the large batches too."""
    cycle, place = divmod(index, _CYCLE_LENGTH)
    return dtypes[(cycle + sum(divmod(place, len(BATCH_SIZES)))) % len(dtypes)]


def deal(seed: int, index: int, n_dtypes: int, n_hands: int) -> int:
    """Tells which of `n_hands` combinations a place in the stream has.

    Of the batches of one dtype and one batch size, every `n_hands` in a row have each combination once. Their order is
    drawn from the seed, so that no combination always meets the same vocabularies or families.
    """
    cycle, place = divmod(index, _CYCLE_LENGTH)
    vocabulary, series = divmod(place, len(BATCH_SIZES))
    # Of `n_dtypes` neighbours in a series each has another dtype.
    neighbour = cycle * _SMALL_VOCABULARIES + vocabulary
    if place >= len(_SMALL_SHAPES):
        neighbour, series = cycle, place
    deal_number, place_in_deal = divmod(neighbour // n_dtypes, n_hands)
    generator = torch.Generator().manual_seed(SEEDS * BATCHES + seed * BATCHES + deal_number * _CYCLE_LENGTH + series)
    return int(torch.randperm(n_hands, generator=generator)[place_in_deal])


def make_batch(seed: int, index: int, dtypes: tuple[torch.dtype, ...], *, noises: tuple[str, ...] = ()) -> Batch:
    """Makes one batch of the stream.

    Args:
        seed: the seed of the stream, at least 0.
        index: the place in the stream, at least 0.
        dtypes: the dtypes that logits may have; they are part of the stream's identity.
        noises: kinds of q of which one is drawn; all are dealt out when none is named.

    Returns:
        The batch, on the CPU.
    """
    generator = torch.Generator().manual_seed(seed * BATCHES + index)
    cycle, place = divmod(index, _CYCLE_LENGTH)
    family = FAMILIES[(cycle + place) % len(FAMILIES)]
    drawn_vocab_size, drawn_batch_size = shape_of(index)
    noises = noises or (NOISES[deal(seed, index, len(dtypes), len(NOISES))],)
    dtype = dtype_of(index, dtypes)
    return draw_batch(generator, drawn_batch_size, drawn_vocab_size, family, dtype, seed, index, noises)


def draw_batch(
    generator: torch.Generator,
    batch_size: int,
    vocab_size: int,
    family: Family,
    dtype: torch.dtype,
    seed: int = 0,
    index: int = 0,
    noises: tuple[str, ...] = NOISES,
) -> Batch:
    """Draws one batch of a given shape, whose rows mix the scenarios.

    Args:
        generator: of everything that is drawn.
        batch_size: B.
        vocab_size: V.
        family: of the logits.
        dtype: of the logits.
        seed: of the stream that the batch is part of.
        index: in that stream.
        noises: kinds of q, of which one is drawn.

    Returns:
        The batch, on the CPU.
    """
    return _Maker(generator, batch_size, vocab_size).make(seed, index, family, dtype, noises)


class _Maker:
    """Draws the parts of one batch from one generator, always in the same order."""

    def __init__(self, generator: torch.Generator, batch_size: int, vocab_size: int) -> None:
        self.generator = generator
        self.batch_size = batch_size
        self.vocab_size = vocab_size

    def make(self, seed: int, index: int, family: Family, dtype: torch.dtype, noises: tuple[str, ...]) -> Batch:
        largest = torch.finfo(dtype).max
        drawn = family.make(self.generator, self.batch_size, self.vocab_size)
        logits = (drawn.clamp(-largest, largest) if family.exceeds_dtypes else drawn).to(dtype)
        uses_k = self.integers(2, self.batch_size).bool()
        uses_p = self.integers(2, self.batch_size).bool()
        k = torch.where(uses_k, self.effective_k(), self.skipping_k())
        p = torch.where(uses_p, self.effective_p(), self.pick(_SKIPPING_P))
        if family.exact_sums:
            k, p = self.make_exact(logits, uses_k, uses_p, k, p)
        below_one = 1.0 - torch.finfo(dtype).eps / 2  # bfloat16(0.999) is 1.0, which would switch top-p off
        p = torch.where(uses_p, p.clamp(max=below_one), p).to(dtype)
        noise = noises[self.integer(len(noises))]
        q = self.noise(noise)
        layout = self.layout()
        return Batch(
            seed=seed,
            index=index,
            family=family.name,
            tie_heavy=family.tie_heavy or noise == "powers of two",
            logits=Operand.arrange(logits, layout, filler=1e4),
            k=Operand.arrange(k.to(torch.int32), self.layout(), filler=7),
            p=Operand.arrange(p, self.layout(), filler=0.05),
            q=None if q is None else Operand.arrange(q, self.layout(), filler=0.0),
            eps=EPSILONS[self.integer(len(EPSILONS))],
            is_need_logits=bool(self.integer(2)),
            top_k_guess=GUESSES[self.integer(len(GUESSES))],
        )

    def integer(self, bound: int) -> int:
        return int(torch.randint(bound, (), generator=self.generator))

    def integers(self, bound: int, count: int) -> torch.Tensor:
        return torch.randint(bound, (count,), generator=self.generator)

    def pick(self, values: tuple[float, ...]) -> torch.Tensor:
        """Draws one of the values for each row."""
        return torch.tensor(values, dtype=torch.float64)[self.integers(len(values), self.batch_size)]

    def layout(self) -> Layout:
        """Draws a layout, contiguous as often as all the others together."""
        return list(Layout)[max(0, self.integer(2 * len(Layout) - 2) - len(Layout) + 2)]

    def effective_k(self) -> torch.Tensor:
        limit = min(self.vocab_size, MAX_TOP_K)
        choices = [float(k) for k in (1, 2, 50, MAX_TOP_K, self.vocab_size, 1 + self.integer(limit)) if k <= limit]
        return self.pick(tuple(choices))

    def skipping_k(self) -> torch.Tensor:
        above = [k for k in (MAX_TOP_K + 1, self.vocab_size) if k > MAX_TOP_K]
        return self.pick((-1.0, 0.0, float(self.vocab_size + 1), float(INT32_MAX), *map(float, above)))

    def effective_p(self) -> torch.Tensor:
        return self.pick((*_EFFECTIVE_P, 0.01 + 0.98 * float(torch.rand((), generator=self.generator))))

    def make_exact(
        self, logits: torch.Tensor, uses_k: torch.Tensor, uses_p: torch.Tensor, k: torch.Tensor, p: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Makes k a power of two and p a multiple of 2^-m, for rows that hold a power of two of equal logits."""
        equal = (logits == logits.amax(dim=1, keepdim=True)).sum(dim=1)
        log_k = self.integers(min(self.vocab_size, MAX_TOP_K).bit_length(), self.batch_size)
        log_equal = equal.double().log2().long()
        log_candidates = torch.where(uses_k, torch.minimum(log_k, log_equal), log_equal)
        # Six bits, so that p is exact in bfloat16 too.
        parts = 2.0 ** log_candidates.clamp(1, 6)
        fraction = torch.rand(self.batch_size, generator=self.generator, dtype=torch.float64)
        multiple = (1 + (fraction * (parts - 1)).floor()) / parts
        return torch.where(uses_k, 2.0**log_k, k), torch.where(uses_p, multiple, p)

    def noise(self, kind: str) -> torch.Tensor | None:
        """Draws q."""
        shape = (self.batch_size, self.vocab_size)
        if kind == "none":
            return None
        if kind == "powers of two":
            return (2.0 ** self.integers(3, shape[0] * shape[1]).float()).reshape(shape)
        q = torch.empty(shape).exponential_(generator=self.generator)
        if kind == "signed":  # negative ones count by their absolute value, zeros are divided by eps alone
            share = torch.rand(shape, generator=self.generator)
            return q.where(share > 0.1, -q).where(share > 0.02, torch.zeros(()))
        if kind == "NaN":  # in some rows: a device promises nothing for them
            struck = torch.rand(shape, generator=self.generator) < self.pick((0.0, 0.0, 0.2)).unsqueeze(1)
            q = q.masked_fill(struck, float("nan"))
            q[self.integer(self.batch_size)] = float("nan")
        return q
