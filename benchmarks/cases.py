"""What `make bench` measures: the parameters of the sampler, and a plan that covers the grid without all its product.

The operator and the floor are measured in every cell. Peers that take hundreds of milliseconds a call are measured
where they tell something: all of them at a batch of 64, vLLM's at 256 too, the two fastest wherever the gates ask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from benchmarks import distributions
from benchmarks.distributions import FLAT, LANGUAGE_MODEL, NORMAL, UNSURE_MODEL

OPERATOR = "ascend_sample"
FLOOR = "one read (floor)"
TORCH_TOPK = "torch.topk"
CANDIDATES = "C++ partial_sort"
VLLM = "vLLM native"
TRANSFORMERS = "transformers"
ARGPARTITION = "numpy argpartition"
REFERENCE = "reference"
PUBLIC_TENSORS = "function, tensors k and p"
PUBLIC_SCALARS = "function, numbers k and p"
CORE_ALONE = "C++ core alone"
SECOND = "second operator"
SECOND_MIN_P = "second operator, min_p=0.05"

CORE = (OPERATOR, FLOOR)
FAST_PEERS = (TORCH_TOPK, CANDIDATES)
PEERS = (*FAST_PEERS, VLLM, TRANSFORMERS, ARGPARTITION)
EVERYTHING = (*CORE, *PEERS, REFERENCE)
CALLS = (OPERATOR, FLOOR, PUBLIC_TENSORS, PUBLIC_SCALARS, CORE_ALONE, TORCH_TOPK)

GRID, THREADS, CALL, SECOND_OPERATOR = "grid", "one thread", "call overhead", "second operator"
BY_VOCABULARY, BY_BATCH, BY_K, ADVERSARIAL = "by vocabulary", "by batch", "by k", "adversarial"

VOCAB_SIZES = (32000, 151936)
BATCH_SIZES = (1, 8, 64, 256)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
COLD_BYTES = 100e6
"""Cold data: batches rotate over at least so many bytes of logits, many times what a core's own caches hold."""


@dataclass(frozen=True)
class Case:
    """Parameters of the sampler; None skips a filter."""

    k: int | None
    p: float | None
    distribution: str = LANGUAGE_MODEL

    @property
    def branch(self) -> str:
        """The operator's branch: A with top-k, B with top-p alone, C with neither."""
        return "A" if self.k is not None else "B" if self.p is not None else "C"

    @property
    def name(self) -> str:
        """For people."""
        parts = [f"k={self.k}"] if self.k is not None else []
        parts += [f"p={self.p:g}"] if self.p is not None else []
        name = " ".join(parts) or "no filter"
        return name if self.branch == "A" and self.distribution == LANGUAGE_MODEL else f"{name}, {self.distribution}"


TOP_K_AND_P = Case(50, 0.9)
LARGE_K_AND_P = Case(1024, 0.9)
TOP_K = Case(50, None)
TOP_P = Case(None, 0.9)
NO_FILTER = Case(None, None)
CASES = (
    TOP_K_AND_P,
    LARGE_K_AND_P,
    TOP_K,
    TOP_P,
    replace(TOP_P, distribution=NORMAL),
    replace(TOP_P, distribution=FLAT),
    NO_FILTER,
)
OTHER_LOGITS = (
    replace(TOP_P, distribution=UNSURE_MODEL),
    *(replace(case, distribution=other) for case in (TOP_K_AND_P, LARGE_K_AND_P) for other in (NORMAL, FLAT)),
)
FLAT_WITHOUT_FILTER = replace(NO_FILTER, distribution=FLAT)
"""Where min-p alone keeps nearly everything."""
ADVERSARIAL_CASES = (TOP_K_AND_P, LARGE_K_AND_P, Case(1024, 0.999), TOP_P, NO_FILTER)


@dataclass(frozen=True)
class Cell:
    """One comparison: contestants on the same data, interleaved."""

    section: str
    case: Case
    vocab_size: int
    batch_size: int
    dtype: str
    contestants: tuple[str, ...]
    is_cold: bool = False
    threads: int = 2

    @property
    def itemsize(self) -> int:
        """Bytes of a logit."""
        return DTYPES[self.dtype].itemsize

    @property
    def batches(self) -> int:
        """How many batches rotate."""
        if not self.is_cold:
            return 1
        return max(2, math.ceil(COLD_BYTES / (self.batch_size * self.vocab_size * self.itemsize)))

    @property
    def bytes_read(self) -> int:
        """What a sampler cannot but read in a call, whatever it keeps: the logits, and q where there is no filter."""
        noise = 4 if self.case.branch == "C" else 0
        return self.batch_size * self.vocab_size * (self.itemsize + noise)

    def describe(self) -> str:
        """For a line of progress."""
        data = "cold" if self.is_cold else "warm"
        shape = f"[{self.batch_size}, {self.vocab_size}] {self.dtype}"
        return f"{self.section}: {self.case.name}, {shape}, {data}, {self.threads} thread(s)"


def grid() -> list[Cell]:
    """Every vocabulary, batch size, dtype, case and cache state, on two threads."""
    cells = []
    for vocab_size in VOCAB_SIZES:
        for case in CASES:
            for batch_size in BATCH_SIZES:
                for dtype in DTYPES:
                    for is_cold in (False, True):
                        contestants = _contestants(case, batch_size, dtype, is_cold)
                        cells.append(Cell(GRID, case, vocab_size, batch_size, dtype, contestants, is_cold))
        for case in OTHER_LOGITS:
            for dtype in DTYPES:
                has_peers = case.branch == "B" and dtype == "bfloat16"
                contestants = (*CORE, *FAST_PEERS, VLLM) if has_peers else CORE
                cells += [Cell(GRID, case, vocab_size, 64, dtype, contestants, is_cold) for is_cold in (False, True)]
    return cells


def _contestants(case: Case, batch_size: int, dtype: str, is_cold: bool) -> tuple[str, ...]:
    if batch_size == 64 and dtype == "bfloat16":
        return (*CORE, *FAST_PEERS, VLLM) if is_cold else EVERYTHING
    if batch_size == 256 and dtype == "float32" and case == TOP_K_AND_P:
        return (*CORE, *FAST_PEERS, VLLM)
    if case.branch == "C" or (case.branch == "A" and dtype == "bfloat16") or (batch_size <= 8 and dtype == "bfloat16"):
        return (*CORE, *FAST_PEERS)
    return CORE


def second_operator() -> list[Cell]:
    """top_k_top_p_sample_v2 beside the first operator, and what min-p adds to it."""
    return [
        Cell(SECOND_OPERATOR, case, vocab_size, 64, dtype, (OPERATOR, SECOND, SECOND_MIN_P))
        for vocab_size in VOCAB_SIZES
        for case in (*CASES, FLAT_WITHOUT_FILTER)
        for dtype in DTYPES
    ]


def curves() -> list[Cell]:
    """How the cost grows with the vocabulary, the batch and k."""
    contestants = (*CORE, *FAST_PEERS, VLLM)
    cells = []
    for case in (TOP_K_AND_P, TOP_P):
        cells += [
            Cell(BY_VOCABULARY, case, vocab_size, 8, "bfloat16", contestants)
            for vocab_size in (4096, 8192, 16384, 32000, 65536, 151936, 262144, 524288, 2**20)
        ]
        cells += [
            Cell(BY_BATCH, case, 151936, batch_size, "bfloat16", contestants)
            for batch_size in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        ]
    cells += [
        Cell(BY_K, Case(k, 0.9), 151936, 64, "bfloat16", (*CORE, *FAST_PEERS))
        for k in (1, 4, 16, 50, 128, 256, 512, 1024)
    ]
    return cells


def plan() -> list[Cell]:
    """All cells of `make bench`, in the order in which they are shown."""
    cells = grid()
    cells += [
        Cell(THREADS, case, 151936, 64, "bfloat16", (*CORE, *FAST_PEERS), is_cold, threads=1)
        for case in CASES
        for is_cold in (False, True)
    ]
    cells += second_operator()
    cells += curves()
    cells += [Cell(CALL, TOP_K_AND_P, vocab_size, 1, "bfloat16", CALLS) for vocab_size in VOCAB_SIZES]
    names = (OPERATOR, *distributions.adversarial(8, 1))
    cells += [
        Cell(ADVERSARIAL, case, 151936, 8, dtype, names)
        for dtype in ("bfloat16", "float32")
        for case in ADVERSARIAL_CASES
    ]
    return cells


def quick_plan() -> list[Cell]:
    """Some cells of the plan: those that most gates need, at the larger vocabulary."""
    cells = [
        replace(cell, contestants=tuple(name for name in cell.contestants if name in (*CORE, *FAST_PEERS, VLLM)))
        for cell in grid()
        if cell.vocab_size == 151936 and cell.batch_size == 64 and cell.dtype == "bfloat16" and cell.case in CASES
    ]
    return cells + [cell for cell in plan() if cell.section in (CALL, ADVERSARIAL) and cell.vocab_size == 151936]
