"""What given texts are worth to a model: log-probabilities, ranks, the best tokens and entropies, place by place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import check_bool, check_instance, check_integer, how_to_convert, refuse, refuse_type
from ascend_sample.sampling.draws.best_tokens import CHUNK, below, divide
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import check_logits
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.logprobs import LogprobRows, LogprobsMode, gather_logprobs
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.split_scores import SplitLogits

NAME: Final = "score"
ROWS_AT_ONCE: Final = 1024
"""On a CPU, which makes nothing as large as the logits for log-probabilities: results of so many places, twice."""
DEVICE_BYTES: Final = 2**26
"""Of float32 logits, which devices are given in blocks."""
FAINT: Final = -1000.0
"""What is so far below the best logit has a probability of 0 in float32, and, unlike -inf, a product with that."""


class Scores(NamedTuple):
    """What `score` returns, on the device of the logits.

    Attributes:
        logprobs: float32 [places], the log-probability of each given token; -inf where it is no id of the vocabulary.
        ranks: int64 [places], how many tokens have at least that: 1 is the best, and all have at least -inf.
        best_ids: int64 [places, n], the best tokens in order, equal ones by id.
        best_logprobs: float32 [places, n], theirs.
        entropy: float32 [places], of each distribution, in nats; None where it was not asked for.
    """

    logprobs: Tensor
    ranks: Tensor
    best_ids: Tensor
    best_logprobs: Tensor
    entropy: Tensor | None


@in_normal_mode
def score(
    logits: Tensor | Iterable[Tensor],
    token_ids: Tensor,
    n: int = 0,
    *,
    entropy: bool = False,
    shard: VocabularyShard | None = None,
) -> Scores:
    """Tells what each of given tokens is worth under the logits of its place: logprobs of a prompt, scores of texts.

    The numbers are those of `Sampler("raw_logprobs")`. Logits are read where they lie, and never converted as a whole:
    on a CPU what is made beside the results is bounded, however many places there are.

    Args:
        logits: float32, float16 or bfloat16 [places, vocab_size], or chunks of them in order, of any lengths: a model
            that makes them piece by piece need not keep them. NaN counts as -inf; entries of +inf share the mass. With
            ``shard`` [places, width], in chunks of the same lengths on all ranks.
        token_ids: int64 [places] on the device of the logits: the token that comes at each place. (Of a prompt the
            logits of place t tell of token t + 1.) What is no id of the vocabulary, such as the -100 of labels that do
            not count, has a probability of 0, and changes no other place.
        n: how many of the best tokens are told of each place.
        entropy: tell the entropies as well.
        shard: what a rank has whose logits are a part of the vocabulary: every rank then calls this with its own part,
            and the same ids, and all of them find the scores of logits that are not split, bit for bit.

    Returns:
        All of it. A row of -inf has no distribution: its logprobs are -inf, its entropy is 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape or device; with ``shard`` also where another rank has other ids.
        RuntimeError: another rank is gone.

    Example:
        >>> logits = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).log()
        >>> scores = score(logits, torch.tensor([2, 1]), n=1, entropy=True)
        >>> scores.logprobs.exp(), scores.ranks, scores.best_ids
        (tensor([0.7000, 0.2500]), tensor([1, 3]), tensor([[2],
                [0]]))
        >>> scores.entropy
        tensor([0.8018, 1.0397])

    Source: docs/logprobs.md, section "Scores of a text"; docs/vocabulary_parallel.md, "Scores".
    """
    check_bool(NAME, "entropy", entropy)
    n = check_integer(NAME, "n", n, low=0, high=MAX_VOCAB_SIZE)  # the first chunk tells how many there are
    if not isinstance(logits, Iterable):  # tensors are
        refuse_type(NAME, "logits", "be a tensor, or chunks of one", logits, "Give the model's output.")
    if shard is not None:
        check_instance(NAME, "shard", shard, VocabularyShard, "Make one from the rank's part.")
    if not isinstance(token_ids, Tensor) or token_ids.dtype != torch.int64:
        got = token_ids.dtype if isinstance(token_ids, Tensor) else type(token_ids).__name__
        remedy = how_to_convert("token_ids", token_ids, torch.int64)
        if isinstance(token_ids, Tensor) and token_ids.is_floating_point():
            remedy = "Call score(logits, token_ids)."
        refuse(NAME, "token_ids", "be an int64 tensor", got, remedy, TypeError)
    if token_ids.dim() != 1:
        refuse(NAME, "token_ids", "have shape [places]", list(token_ids.shape), "Flatten logits and ids alike.")
    places, device = len(token_ids), token_ids.device
    scores = Scores(
        torch.empty(places, device=device, dtype=torch.float32),
        torch.empty(places, dtype=torch.int64, device=device),
        torch.empty(places, n, dtype=torch.int64, device=device),
        torch.empty(places, n, device=device, dtype=torch.float32),
        torch.empty(places, device=device, dtype=torch.float32) if entropy else None,
    )
    split = None
    if shard is not None and shard.exchange.size > 1:
        split = SplitLogits(shard, device, f"{n} {entropy}")
    done = 0
    for chunk in (logits,) if isinstance(logits, Tensor) else logits:
        _check_chunk(chunk, token_ids, done, n, shard)
        own = chunk if split is not None or shard is None else chunk[:, : shard.vocab_size]
        vocab_size = own.shape[1] if shard is None else shard.vocab_size
        of_chunk = slice(done, done + len(chunk))
        given = token_ids[of_chunk]
        known = given.clamp(0, vocab_size - 1)
        is_none = known != given
        at_once = _rows_at_once(chunk) if split is None else split.rows_at_once(chunk)
        for start in range(0, len(chunk), at_once):
            rows = own[start : start + at_once]
            ids = known[start : start + len(rows)]
            if split is not None:
                rows = split.gather(rows, given[start : start + len(rows)], done)
            _score_rows(rows, ids, slice(done, done + len(rows)), scores)
            done += len(rows)
        scores.logprobs[of_chunk].masked_fill_(is_none, -torch.inf)
        scores.ranks[of_chunk].masked_fill_(is_none, vocab_size)
    if done != places:
        refuse(NAME, "logits", f"have a row for each of {places} ids", done, "Give the logits of all places.")
    return scores


def _score_rows(logits: Tensor, given: Tensor, places: slice, scores: Scores) -> None:
    """Writes the scores of some places: those of tokens that are no id of the vocabulary mean nothing yet."""
    n, entropy = scores.best_ids.shape[1], scores.entropy
    if logits.is_cpu:
        values, ids, (ranks, *entropies) = torch.ops.ascend_sample.row_logprobs(
            logits, None, given, n, entropy=entropy is not None
        )
    else:
        asking = LogprobRows.of(RowSet.all(len(logits)), LogprobsMode.RAW_LOGPROBS, n, logits.device)
        _, ids, values, ranks = gather_logprobs(asking, logits, given)
        entropies = [] if entropy is None else [_entropies(logits)]
    scores.logprobs[places], scores.ranks[places] = values[:, 0], ranks
    scores.best_ids[places], scores.best_logprobs[places] = ids[:, 1:], values[:, 1:]
    if entropy is not None:
        (entropy[places],) = entropies


def _entropies(logits: Tensor) -> Tensor:
    """Returns the entropy of each row, float32 [rows]: log Z minus the mean of how far logits are from the best.

    For devices; `csrc/cpu/rows/scan.h` has that of a CPU.
    """
    values = divide(logits, 1.0)
    best = values.amax(1, keepdim=True)
    differences = below(values, best).clamp_(min=FAINT)
    weights = differences.softmax(1)
    largest, total = weights.amax(1).double(), _sums(weights)  # softmax may miss a total of 1 by more than 1e-6
    found = (total / largest).log_() - _sums(weights.mul_(differences)) / total
    return found.float().masked_fill_(best.squeeze(1) == -torch.inf, 0.0)


def _sums(values: Tensor) -> Tensor:
    """Returns the sum of each row in float64, of short pieces that float32 adds up without losing much."""
    pieces = values.shape[1] // CHUNK
    of_pieces = values[:, : pieces * CHUNK].unflatten(1, (pieces, CHUNK)).sum(2)
    rest = values[:, pieces * CHUNK :].sum(1, dtype=torch.float64)
    return rest.add_(of_pieces.sum(1, dtype=torch.float64))


def _rows_at_once(logits: Tensor) -> int:
    return ROWS_AT_ONCE if logits.is_cpu else max(1, DEVICE_BYTES // (4 * logits.shape[1]))


def _check_chunk(logits: Tensor, token_ids: Tensor, done: int, n: int, shard: VocabularyShard | None) -> None:
    """Raises unless a chunk of logits fits the ids of its places, the first of which is ``done``."""
    check_logits(NAME, logits)
    if logits.device != token_ids.device:
        refuse(NAME, "token_ids", f"be on the device of logits, {logits.device}", token_ids.device, "Move them there.")
    places, vocab_size = logits.shape
    if shard is not None:
        if vocab_size != shard.width:
            remedy = "Give the part that the shard describes."
            refuse(NAME, "logits", f"have the width of the shard, {shard.width}", vocab_size, remedy)
        vocab_size = shard.vocab_size
    check_integer(NAME, "n", n, low=0, high=vocab_size)
    if done + places > len(token_ids):
        got = f"{done + places} or more"
        refuse(NAME, "logits", f"have a row for each of {len(token_ids)} ids", got, "Give an id for each place.")
