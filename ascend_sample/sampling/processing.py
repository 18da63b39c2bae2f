"""What happens to logits before temperature: masks and biases, then penalties. Pure functions of whole rows.

They run where their tensors are, and nothing in them waits for a device. Logits are float32: in 16 bits a bias of 0.01
would be lost on a logit of 20.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

MASKED: Final = float("-inf")
"""The addend, and then the logit, of an id that must not be drawn."""


def add_bias(logits: Tensor, addend: Tensor) -> Tensor:
    """Adds a bias to every logit; an addend of -inf forbids the id.

    A plain sum would not forbid a logit of +inf or NaN: inf - inf and NaN - inf are NaN.

    Args:
        logits: float32 [rows, vocab_size].
        addend: float32 [rows, vocab_size], finite or -inf.

    Returns:
        float32 [rows, vocab_size]: -inf where the addend is -inf, whatever the logit is, and the sum elsewhere. +inf,
        -inf and NaN that are not forbidden stay what they are.

    Example:
        >>> inf, nan = float("inf"), float("nan")
        >>> add_bias(torch.tensor([[1.0, inf, nan, inf]]), torch.tensor([[0.5, -inf, -inf, 2.0]]))
        tensor([[1.5000,   -inf,   -inf,    inf]])
    """
    return (logits + addend).masked_fill_(addend == MASKED, MASKED)


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor | None,
    output_counts: Tensor,
    repetition_penalty: Tensor,
    presence_penalty: Tensor | None,
    frequency_penalty: Tensor | None,
) -> Tensor:
    """Makes ids that have occurred less likely (or more, with a repetition penalty below 1 or negative others).

    In this order: the repetition penalty r turns the logit x of an id of the prompt or the output into x / r where
    x > 0 and x * r elsewhere; then, for ids of the output alone, x - frequency * count - presence. Neutral penalties
    (1, 0, 0) leave every bit as it is, -0.0 included, so rows with different penalties go together.

    Args:
        logits: float32 [rows, vocab_size].
        in_prompt: bool [rows, vocab_size], the ids that occur in the prompt; None when it does not matter, because
            no row has a repetition penalty.
        output_counts: int32 [rows, vocab_size], how often each id occurs in the output.
        repetition_penalty: float32 [rows], greater than 0.
        presence_penalty: float32 [rows]; None when no row has any.
        frequency_penalty: float32 [rows]; None when no row has any.

    Returns:
        float32 [rows, vocab_size]. -inf stays -inf (a forbidden id stays forbidden), +inf stays +inf, NaN stays NaN.

    Example:
        >>> logits, in_prompt = torch.tensor([[4.0, -1.0, 3.0]]), torch.tensor([[True, False, False]])
        >>> counts = torch.tensor([[0, 2, 0]], dtype=torch.int32)
        >>> penalties = torch.tensor([[2.0], [0.5], [0.25]])
        >>> apply_penalties(logits, in_prompt, counts, *penalties)
        tensor([[ 2., -3.,  3.]])

    Source: The repetition penalty is that of the CTRL paper (Keskar et al., 2019) as transformers and vLLM read it; the
        others are OpenAI's.
    """
    in_output = output_counts > 0
    if in_prompt is not None:
        divisor = repetition_penalty.unsqueeze(-1)
        scaled = torch.where(logits > 0, logits / divisor, logits * divisor)
        logits = torch.where(in_prompt | in_output, scaled, logits)
    if frequency_penalty is not None:
        logits = logits - frequency_penalty.unsqueeze(-1) * output_counts
    return logits if presence_penalty is None else logits - presence_penalty.unsqueeze(-1) * in_output
