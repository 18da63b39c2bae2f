"""A model that is decoded with offers five methods, and a cache that only the model looks into."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor

from ascend_sample._errors import refuse_result, refuse_type
from ascend_sample._export import exportable
from ascend_sample.decoding.checks import name_of

DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that the sampling layer takes as they are."""
ENCODER_IDS: Final = "encoder_input_ids"
ENCODER_MASK: Final = "encoder_attention_mask"
"""The names that adapters of models of transformers give two inputs of their encoders."""


@exportable
class StepOutput(NamedTuple):
    """Holds what a model returns for some tokens.

    Attributes:
        logits: floats [batch, vocab_size] after a prefill, [batch, tokens, vocab_size] after a step, for what
            follows each of the tokens. Dtypes other than float32, float16 and bfloat16 are converted to float32. NaN
            counts as -inf; entries of +inf share the whole mass.
        cache: what the next step needs, which its callers do not look into. The cache that was passed in must not be
            used again.
        hidden_states: floats [batch, tokens, hidden_size], those of the last layer for the same tokens (after a
            prefill, for every place of input_ids, padding included); None unless the model was made to return them.
            Contrastive search needs them.
    """

    logits: Tensor
    cache: Any
    hidden_states: Tensor | None = None


class StepModel(Protocol):
    """Computes the steps of a causal model, or of the decoder of an encoder-decoder.

    Rows are independent: what a row gets must not depend on the other rows, nor on how far these are. A cache has a
    length for each row, the number of its tokens, in which padding does not count, and a row's tokens have the
    positions 0, 1, 2, ... wherever they are stored.

    `expand`, `reorder` and `rollback` may change the cache in place or return another one; use what they return.

    A model may say more of itself, with three attributes: max_positions, an int, how many tokens a row may have at
    most; num_embeddings, an int, above all ids that it reads, so that prompts with others are refused; and
    generation_defaults, `GenerationDefaults`, stop tokens and more for callers who name none.

    Source: docs/decoding.md, section "Models".
    """

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """Processes the prompts.

        Args:
            input_ids: int64 [batch, length], with length of at least 1; for an encoder-decoder, what its decoder
                starts with.
            attention_mask: bool [batch, length], False at padding, on whichever side it is; at least one True a row.
                None: no padding. What is masked does not matter, not even where it is no token at all.
            encoder: what the encoder takes, [batch, ...] each, by the names that the model gives them.

        Returns:
            Logits [batch, vocab_size] after the last token of each prompt that is not padding.
        """
        ...

    def decode(self, tokens: Tensor, cache: Any) -> StepOutput:
        """Appends the same number of tokens to every row.

        Args:
            tokens: int64 [batch, tokens]. To append fewer to some row, append anything and roll the row back.
            cache: what the step before has returned.

        Returns:
            Logits [batch, tokens, vocab_size].
        """
        ...

    def expand(self, cache: Any, count: int) -> Any:
        """Repeats each row count times: row r becomes the rows r * count to r * count + count - 1."""
        ...

    def reorder(self, cache: Any, index: Tensor) -> Any:
        """Takes the rows of index, int64 [rows] on the device, into a cache of as many; a row may occur twice."""
        ...

    def rollback(self, cache: Any, lengths: Tensor) -> Any:
        """Keeps the first lengths[r] tokens of each row r; int64 [batch] on the device, none above the row's length."""
        ...


def checked(
    asker: str, model: object, output: StepOutput, *places: int, read: int, vocab_size: int | None = None
) -> StepOutput:
    """Returns a model's output, if it has the types and shapes that it must have, with logits of one of `DTYPES`.

    Args:
        asker: the name of the function, for messages.
        model: the model that returned it.
        output: what it returned.
        places: the sizes before vocab_size in the shape of the logits, the batch first.
        read: how many tokens of each row it has read.
        vocab_size: how many tokens its logits are for; None: whatever they say.

    Raises:
        TypeError: it is no `StepOutput` of tensors.
        ValueError: a tensor has a wrong shape, or complex numbers.
    """
    remedy = "See StepModel: logits [batch, vocab_size] of prefill, [batch, tokens, vocab_size] of decode."
    if not isinstance(output, StepOutput):
        refuse_type(asker, f"model {name_of(model)}", "return a StepOutput", output, remedy)
    logits, hidden_states = output.logits, output.hidden_states
    is_logits = isinstance(logits, Tensor) and logits.shape[:-1] == places and logits.shape[-1] > 0
    if not is_logits or logits.is_complex() or logits.shape[-1] != (vocab_size or logits.shape[-1]):
        rule = f"return real logits [{', '.join(map(str, places))}, {vocab_size or 'vocab_size'}]"
        refuse_result(asker, f"model {name_of(model)}", rule, logits, remedy)
    of_tokens = (places[0], read)
    if not (
        hidden_states is None
        or (isinstance(hidden_states, Tensor) and hidden_states.dim() == 3 and hidden_states.shape[:2] == of_tokens)
    ):
        rule = f"return hidden states [{places[0]}, {read}, hidden_size] or None"
        refuse_result(asker, f"model {name_of(model)}", rule, hidden_states, remedy)
    return output if logits.dtype in DTYPES else output._replace(logits=logits.to(torch.float32))


def decoded(asker: str, model: StepModel, tokens: Tensor, cache: Any, vocab_size: int) -> StepOutput:
    """Returns what a model computes for tokens, int64 [batch, tokens], after `checked` has seen it."""
    output = model.decode(tokens, cache)
    return checked(asker, model, output, *tokens.shape, read=tokens.shape[1], vocab_size=vocab_size)


def entered(output: StepOutput) -> StepOutput:
    """Returns an output that `checked` has passed, on a CPU with -inf for NaN in its logits.

    There a look is cheaper than what NaN costs those who choose. They know what it is: on a device it stays.

    Example:
        >>> entered(StepOutput(torch.tensor([[0.5, torch.nan]]), None)).logits
        tensor([[0.5000,   -inf]])
    """
    logits = output.logits
    if not logits.is_cpu or not math.isnan(logits.amax().item()):
        return output
    return output._replace(logits=logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf))
