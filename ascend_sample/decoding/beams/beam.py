"""Beam search finds probable sequences by keeping the best few of each length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample._errors import check_number, is_integer, refuse
from ascend_sample.decoding.beams.endings import EarlyStopping, FinishedPool, KeptBeams, check_early_stopping
from ascend_sample.decoding.beams.run import BeamRun, check_beams, choose
from ascend_sample.decoding.beams.search import search_beams
from ascend_sample.decoding.checks import check_length_penalty
from ascend_sample.decoding.model import ENCODER_MASK, StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import GenerationOptions, check_request


@torch.no_grad()
def beam_search(
    model: StepModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    num_beams: int,
    num_return_sequences: int = 1,
    finished: Literal["pool", "in_beam"] = "pool",
    length_penalty: float | None = None,
    early_stopping: EarlyStopping = False,
    softmax_smoothing: float = 1.0,
    eos_penalty: float = 1.0,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Keeps the num_beams best continuations of each prompt, step by step.

    A hypothesis that reaches a stop token, its prompt's max_new_tokens or a stopping criterion has ended. Where it goes
    then is what `finished` says:

    - "pool", as in transformers: into a pool of the num_beams best ended ones, with the score sum of log-probabilities
      / length ** length_penalty, if it is one of the num_beams best continuations of its step; num_beams others go on.
    - "in_beam": nowhere. It keeps its beam and its score, and holds out against the others or not. At the end scores
      are divided by ((5 + length) / 6) ** length_penalty. A prompt is done when all its beams have ended.

    Prompts do not influence one another. Of equal sums the lower beam comes first, then what its beam ranks higher: by
    logits, or by log-probabilities where processors or eos_penalty change these, and equal ones by their tokens.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        max_new_tokens: at least 1, for all prompts or for each. With 0, each prompt's is the length of what its encoder
            takes: the sum of its row of encoder["encoder_attention_mask"], or, without that, the second size of the
            first of the encoder's tensors.
        num_beams: how many hypotheses go on, of each prompt. May be more than there are tokens.
        num_return_sequences: how many are returned of each prompt, at most num_beams.
        finished: "pool" or "in_beam".
        length_penalty: the exponent in the formulas above, in which a length is the number of generated tokens, the
            stop token included and the prompt not. None: 1 for a pool, 0 in the beam.
        early_stopping: when a prompt is done whose pool has num_beams ended hypotheses. True: at once. False: when the
            best beam's score at its present length is no better than the pool's worst. "never": when it could not get
            better, as far as its length alone decides.
        softmax_smoothing: a float32 above 0 that divides the logits.
        eos_penalty: in (0, 1], what the probabilities of stop tokens are multiplied by: its logarithm is added, after
            the processors, to their log-probabilities. The smaller, the longer are the sequences.
        **common: see `GenerationOptions`.

    Returns:
        Rows of a prompt follow one another, the best first. Where there are fewer hypotheses than were asked for, rows
        of length 0 with the score -inf; a RuntimeWarning names the prompts that have none.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        After 0, token 1 is likelier, but 2 leads to the certain 3.

        >>> from ascend_sample.decoding import ModuleModel
        >>> after = torch.tensor([[0, 0.6, 0.4, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1], [0, 0, 0, 1]]).log()
        >>> model = ModuleModel(lambda input_ids: after[input_ids])
        >>> found = beam_search(model, torch.tensor([[0]]), max_new_tokens=2, num_beams=2, length_penalty=0.0)
        >>> found.to_lists(), found.sequences_scores.exp()
        ([[2, 3]], tensor([0.4000]))

    Source: docs/decoding.md, section "Beam search".
    """
    name = "beam_search"
    max_new_tokens = encoder_lengths(name, max_new_tokens, common.get("encoder"))
    request = check_request(name, model, input_ids, max_new_tokens, **common)
    check_beams(name, num_beams, num_return_sequences)
    if finished not in ("pool", "in_beam"):
        refuse(name, "finished", 'be "pool" or "in_beam"', repr(finished), 'Use "pool" for what transformers does.')
    check_early_stopping(name, early_stopping)
    if finished == "in_beam" and early_stopping is not False:
        remedy = 'Leave it out, or use finished="pool".'
        refuse(name, "early_stopping", 'be False where finished is "in_beam"', repr(early_stopping), remedy)
    if length_penalty is None:
        length_penalty = 1.0 if finished == "pool" else 0.0
    longest = request.max_steps if finished == "pool" else (5 + request.max_steps) / 6
    check_length_penalty(name, length_penalty, longest)
    softmax_smoothing = checked_smoothing(name, softmax_smoothing)
    check_number(name, "eos_penalty", eos_penalty, low=0.0, high=1.0, above=True)
    run = BeamRun(model, request, num_beams, softmax_smoothing, eos_penalty)
    if finished == "in_beam":
        kept = KeptBeams(run, num_return_sequences, length_penalty)
        return search_beams(run, kept, lambda scores, _: choose(scores, *kept.best_of_each_beam(), kept.count))
    pool = FinishedPool(run, num_return_sequences, length_penalty, early_stopping)
    return search_beams(run, pool, lambda scores, _: choose(scores, *run.best_of_each_beam(pool.count), pool.count))


def checked_smoothing(strategy: str, softmax_smoothing: float) -> float:
    """Returns the float32 nearest to softmax_smoothing, because logits are divided in float32."""
    check_number(strategy, "softmax_smoothing", softmax_smoothing, low=0.0, above=True)
    nearest = torch.tensor(float(softmax_smoothing), dtype=torch.float32, device="cpu").item()
    if nearest in (0.0, float("inf")):
        refuse(strategy, "softmax_smoothing", "be a finite float32 above 0", softmax_smoothing, "Use 1 for none.")
    return nearest


def encoder_lengths(
    strategy: str, max_new_tokens: int | Sequence[int] | Tensor, encoder: Mapping[str, Tensor] | None
) -> int | Sequence[int] | Tensor:
    """Returns max_new_tokens, or where that is 0 the lengths of what the encoder takes."""
    if isinstance(max_new_tokens, Tensor) and max_new_tokens.dim() == 0:
        max_new_tokens = max_new_tokens.item()  # type: ignore[assignment]
    if not is_integer(max_new_tokens) or max_new_tokens != 0:
        return max_new_tokens
    given = encoder if isinstance(encoder, Mapping) else {}
    mask = given.get(ENCODER_MASK)
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask.to(torch.int64).sum(dim=1)
    for value in given.values():
        if isinstance(value, Tensor) and value.dim() >= 2:
            return [value.shape[1]] * len(value)
    rule = "be at least 1 where no encoder's input has a length"
    refuse(strategy, "max_new_tokens", rule, 0, "Say how many tokens to generate.")
