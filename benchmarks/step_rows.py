"""The kinds of rows of which a step has a budget on the CPU, and what vLLM does for them in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample.bench.timing import rotate
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from benchmarks import cases, contestants, native

HISTORY: Final = 1000
"""Tokens of a row with penalties."""
SMALL_SHAPE_FACTOR: Final = 3
"""A step of one row of a small vocabulary may cost so many times the reads of a large one."""
COLD_BYTES: Final = 256 * 2**20
"""Of logits that a cold cell goes through before it comes back."""
STEP, READ, PEER = "Sampler", "one read of the logits", "vLLM's sampler in torch"


class Kind(NamedTuple):
    """Rows that ask for the same.

    Attributes:
        name: what they ask for.
        reads: what a step of 64 rows of 151,936 bfloat16 may cost, in reads of its logits.
        params: the request, but for its seed.
        is_edited: something changes the logits of single ids before temperature.
        has_bitmask: a grammar allows half of the ids.
    """

    name: str
    reads: float
    params: dict[str, Any]
    is_edited: bool = False
    has_bitmask: bool = False

    def request(self, row: int) -> SamplingParams:
        """Returns the request of a row."""
        return SamplingParams(**self.params, seed=row)


PENALTIES: Final = {"repetition_penalty": 1.05, "presence_penalty": 0.5}
KINDS: Final = (
    Kind("greedy", 1.6, {"temperature": 0}),
    Kind("k=50 p=0.9", 1.6, {"top_k": 50, "top_p": 0.9}),
    Kind("no filter", 2.5, {}),
    Kind("p=0.9", 3, {"top_p": 0.9}),
    Kind("penalties, k=20 p=0.8 T=0.7", 5, {"top_k": 20, "top_p": 0.8, "temperature": 0.7} | PENALTIES, True),
    Kind("bias and ban, k=50", 5, {"top_k": 50, "logit_bias": {3: 1.0, 77: -2.0}, "suppress_token_ids": [9]}, True),
    Kind("bitmask, k=50", 2, {"top_k": 50}, True, has_bitmask=True),
    Kind("logprobs=5, k=50", 4, {"top_k": 50, "logprobs": 5}),
    Kind("k=5000", 6, {"top_k": 5000}),
)
MIXED: Final = "all of it mixed"
MIXED_FACTOR: Final = 1.15
"""Rows of all kinds in a batch may cost so many times the mean of their kinds."""


def make_step(kinds: tuple[Kind, ...], batches: Sequence[Tensor]) -> Callable[[], object]:
    """Returns a step of rows of the kinds, in turns, on the next of some logits of one shape.

    It does not advance, so all steps cost the same.
    """
    rows, vocab_size = batches[0].shape
    of_rows = [kinds[row % len(kinds)] for row in range(rows)]
    batch = SamplingBatch(vocab_size)
    batch.extend([kind.request(row) for row, kind in enumerate(of_rows)], output_ids=_histories(rows, vocab_size))
    sampler = Sampler()
    options: dict[str, Any] = {"advance": False}
    masked = [row for row, kind in enumerate(of_rows) if kind.has_bitmask]
    if masked:
        options |= {"bitmask": _bitmask(len(masked), vocab_size), "bitmask_rows": masked}
    return rotate(lambda logits: sampler(logits, batch, **options), [(logits,) for logits in batches])


def count_cold(bytes_of_one: int) -> int:
    """Returns how many batches a step goes through in turns, so that each of them is in memory and not in a cache.

    Args:
        bytes_of_one: what a step reads of one batch.

    Example:
        >>> count_cold(64 * 151936 * 2)
        13
    """
    return max(2, COLD_BYTES // bytes_of_one)


def cold_copies(logits: Tensor, rows: int) -> list[Tensor]:
    """Returns the logits as often as a step that reads so many rows of them goes through, to find them in memory."""
    count = count_cold(rows * logits.shape[1] * logits.element_size())
    return [logits, *(logits.clone() for _ in range(count - 1))]


def make_read(*batches: Tensor) -> Callable[[], object]:
    """Returns one streaming read of the next of some logits."""
    return rotate(native.library().streaming_read.default, [([logits],) for logits in batches])


class TorchStep:
    """Does what vLLM's sampler does in plain torch: a [rows, V] pass for each penalty, bias, mask and logprob."""

    def __init__(self, kind: Kind, logits: Tensor) -> None:
        self._logits, self._params = logits, kind.request(0)
        rows, vocab_size = logits.shape
        k, p = kind.params.get("top_k"), kind.params.get("top_p")
        self._draw = contestants.CONTESTANTS[cases.VLLM].prepare(cases.Case(k, p))
        self._k = torch.full((rows,), k or 1, dtype=torch.int32)
        self._p = torch.full((rows,), p or 1.0)
        self._outputs = torch.stack(_histories(rows, vocab_size)) if "repetition_penalty" in kind.params else None
        self._bitmask = _bitmask(rows, vocab_size) if kind.has_bitmask else None

    def __call__(self) -> Tensor:
        """Returns the tokens, int64 [rows]."""
        params, logits = self._params, self._logits.float()
        raw = logits.log_softmax(dim=-1) if params.logprobs is not None else None
        for row in range(len(logits) if params.logit_bias or params.suppress_token_ids else 0):
            for token_id, bias in params.logit_bias.items():
                logits[row, token_id] += bias
            logits[row, list(params.suppress_token_ids)] = -torch.inf
        if self._outputs is not None:
            logits = self._penalised(logits, self._outputs)
        if self._bitmask is not None:
            bits = self._bitmask.unsqueeze(2) >> torch.arange(32, dtype=torch.int32) & 1
            logits.masked_fill_(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)
        if params.temperature == 0:
            token_ids = logits.argmax(dim=-1)
        else:
            logits = logits.div_(params.temperature)
            token_ids = self._draw(logits, self._k, self._p, torch.empty_like(logits).exponential_())
        if raw is not None:
            raw.topk(params.logprobs or 1, dim=-1)
            (raw >= raw.gather(1, token_ids.unsqueeze(1))).sum(dim=-1)
        return token_ids

    def _penalised(self, logits: Tensor, outputs: Tensor) -> Tensor:
        params = self._params
        counts = torch.zeros(logits.shape[0], logits.shape[1] + 1, dtype=torch.int64)
        counts = counts.scatter_add_(1, outputs, torch.ones_like(outputs))[:, :-1]
        is_seen = counts > 0
        factor = torch.full((len(logits), 1), params.repetition_penalty).repeat(1, logits.shape[1])
        factor = torch.where(is_seen, factor, 1.0)
        logits = torch.where(logits > 0, logits / factor, logits * factor)
        logits -= params.frequency_penalty * counts
        return logits.sub_(params.presence_penalty * is_seen)


def _histories(rows: int, vocab_size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(vocab_size, (rows, HISTORY), generator=generator))


def _bitmask(rows: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(-(2**31), 2**31, (rows, -(-vocab_size // 32)), generator=generator)
    return words.to(torch.int32)
