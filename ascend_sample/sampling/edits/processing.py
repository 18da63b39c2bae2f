"""What happens to logits before temperature: biases, then penalties, then masks. Pure functions.

They run where their tensors are, and nothing in them waits for a device. Logits are float32: in 16 bits a bias of 0.01
would be lost on a logit of 20. Those of biases and penalties go entry by entry, so a row is given as the entries that
change; masks are of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.rows.table import to_device

WORD: Final = 32
"""How many ids a word of a mask tells of."""
MASKED: Final = float("-inf")
"""The addend, and then the logit, of an id that must not be drawn."""


def add_bias(logits: Tensor, addend: Tensor) -> Tensor:
    """Adds a bias to every logit; an addend of -inf forbids the id.

    A plain sum would not forbid a logit of +inf or NaN: inf - inf and NaN - inf are NaN.

    Args:
        logits: float32 [rows, entries].
        addend: float32 [rows, entries], finite or -inf.

    Returns:
        float32 [rows, entries]: -inf where the addend is -inf, whatever the logit is, and the sum elsewhere. +inf,
        -inf and NaN that are not forbidden stay what they are.

    Example:
        >>> inf, nan = float("inf"), float("nan")
        >>> add_bias(torch.tensor([[1.0, inf, nan, inf]]), torch.tensor([[0.5, -inf, -inf, 2.0]]))
        tensor([[1.5000,   -inf,   -inf,    inf]])
    """
    return (logits + addend).masked_fill_(addend == MASKED, MASKED)


def scaled_by_sign(logits: Tensor, penalty: Tensor) -> Tensor:
    """Divides positive logits by a repetition penalty, and multiplies the others by it."""
    return torch.where(logits > 0, logits / penalty, logits * penalty)


def scaling_of(penalties: NDArray[numpy.float32]) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns what does the same as `scaled_by_sign` for these repetition penalties, with fewer launches if it can.

    With a penalty of at least 1, the smaller one of the two results is the right one, whatever the sign.
    """
    if (penalties >= 1).all():
        return lambda logits, penalty: torch.minimum(logits / penalty, logits * penalty)
    if (penalties <= 1).all():
        return lambda logits, penalty: torch.maximum(logits / penalty, logits * penalty)
    return scaled_by_sign


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor | None,
    output_counts: Tensor,
    repetition_penalty: Tensor | None,
    presence_penalty: Tensor | None,
    frequency_penalty: Tensor | None,
    scaled: Callable[[Tensor, Tensor], Tensor] = scaled_by_sign,
) -> Tensor:
    """Makes ids that have occurred less likely (or more, with a repetition penalty below 1 or negative others).

    In this order: the repetition penalty r turns the logit x of an id of the prompt or the output into x / r where
    x > 0 and x * r elsewhere; then, for ids of the output alone, x - frequency * count - presence. Neutral penalties
    (1, 0, 0) leave every bit as it is, -0.0 included, so rows with different penalties go together.

    Args:
        logits: float32 [rows, entries].
        in_prompt: bool [rows, entries], whether their ids occur in the prompt; None when each occurs in the prompt or
            the output, or its row has no repetition penalty.
        output_counts: float32 or int32 [rows, entries], how often each id occurs in the output.
        repetition_penalty: float32 [rows], greater than 0; None when no row has any.
        presence_penalty: float32 [rows]; None when no row has any.
        frequency_penalty: float32 [rows]; None when no row has any.
        scaled: what applies the repetition penalty, from `scaling_of` where the host knows the penalties.

    Returns:
        float32 [rows, entries]. -inf stays -inf (a forbidden id stays forbidden), +inf stays +inf, NaN stays NaN.

    Example:
        >>> logits, in_prompt = torch.tensor([[4.0, -1.0, 3.0]]), torch.tensor([[True, False, False]])
        >>> counts = torch.tensor([[0, 2, 0]], dtype=torch.int32)
        >>> penalties = torch.tensor([[2.0], [0.5], [0.25]])
        >>> apply_penalties(logits, in_prompt, counts, *penalties)
        tensor([[ 2., -3.,  3.]])

    Source: The repetition penalty is that of the CTRL paper (Keskar et al., 2019) as transformers and vLLM read it; the
        others are OpenAI's.
    """
    if repetition_penalty is not None:
        repeated = scaled(logits, repetition_penalty.unsqueeze(-1))
        logits = repeated if in_prompt is None else torch.where(in_prompt | (output_counts > 0), repeated, logits)
    if frequency_penalty is not None:
        logits = logits - frequency_penalty.unsqueeze(-1) * output_counts
    if presence_penalty is None:
        return logits
    # A product with 0 or 1 is exact, so one operator rounds as two would.
    in_output = output_counts.clamp(max=1).to(torch.float32)
    return torch.addcmul(logits, in_output, presence_penalty.unsqueeze(-1), value=-1)


def mask_out(logits: Tensor, words: Tensor, bits: Tensor) -> None:
    """Forbids, in place, the ids whose bits are 0.

    Args:
        logits: float32 [rows, vocab_size].
        words: int32 [rows, words], 32 ids each, the first in the lowest bit; what is beyond the vocabulary is ignored.
        bits: uint8 [8], from `bits_of_bytes` on the same device.

    Example:
        >>> logits = torch.zeros(1, 5)
        >>> mask_out(logits, torch.tensor([[0b01101]], dtype=torch.int32), bits_of_bytes(logits.device))
        >>> logits
        tensor([[0., -inf, 0., 0., -inf]])
    """
    logits.masked_fill_(is_clear(words, bits)[:, : logits.shape[1]], MASKED)


def is_clear(words: Tensor, bits: Tensor) -> Tensor:
    """Tells of words' bits, int32 [rows, words], which are 0: bool [rows, 32 words], the lowest of each word first."""
    # By bytes, so that what is expanded takes a byte an id.
    found = (words.view(torch.uint8).unsqueeze(2) & bits).eq_(0)
    return found.view(torch.bool).view(len(words), -1)


def bits_of_bytes(device: torch.device) -> Tensor:
    """Returns what a byte is for each of its bits, uint8 [8]."""
    return to_device(numpy.left_shift(1, numpy.arange(8)).astype(numpy.uint8), device)


def words_of(vocab_size: int) -> int:
    """Returns how many words of 32 bits a mask has."""
    return -(-vocab_size // WORD)
