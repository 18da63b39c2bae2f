"""Sampling rows of logits with given parameters: the function below the `Sampler`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample._errors import check_bool
from ascend_sample.sampling.draws.noise import Purpose, check_purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import Facts, RowParameters, RowsOutput, check_logits, check_numbers
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.device_routes import AnyRows, FusedV2
from ascend_sample.sampling.step.kept import KeptRows
from ascend_sample.sampling.step.serving import Drawn, Placement, draw, draw_tokens

NAME: Final = "sample_rows"


@in_normal_mode
def sample_rows(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor,
    position: Tensor,
    purpose: Purpose = Purpose.DRAW,
    keep_ties: bool = False,
    facts: Facts | None = None,
) -> RowsOutput:
    """Draws one token a row from the exact distribution, whatever the device and the dtype of the logits.

    The distribution of a row: logits / temperature, top-k, softmax, top-p (until the sum exceeds it), min-p (weights
    below min_p times the largest go), renormalised. The noise of a row is a function of its seed, its position and the
    purpose, so its token does not depend on the other rows.

    Args:
        logits: float32, float16 or bfloat16 [rows, vocab_size], vocab_size up to 2^20.
        temperature: float32 [rows] >= 0; 0 takes the best token, the one with the lowest id among equals. What is known
            on the host is refused where it is none, also of ``top_p`` and ``min_p``. On a device, without ``facts``, a
            temperature that is negative or NaN means 0; a top_p of at most 0 keeps the best token alone, as a min_p of
            1 or more does but for ties; NaN, a top_p above 1 and a min_p below 0 mean off.
        top_k: int32 [rows]; a value outside [1, vocab_size) means off. None: off for all.
        top_p: float32 [rows] in (0, 1]; 1 means off. None: off for all.
        min_p: float32 [rows] in [0, 1]; 0 means off. None: off for all.
        seed: int64 [rows], the bits of 64-bit seeds.
        position: int64 [rows] >= 0, for example the number of tokens before the one that is drawn.
        purpose: which of the independent noises of a seed and a position.
        keep_ties: top-k keeps every logit that is equal to the k-th, as vLLM and transformers do.
        facts: what the host knows of these: numpy arrays [rows] by the names temperature, top_k, top_p and min_p, of
            all that are given, so that a fused operator can serve the rows for which it is exact. They are the tensors'
            numbers: rows on a device are drawn by them. Without it, such rows take a route that serves every row.

    Returns:
        The ids and a status a row.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has a wrong shape or device, or a number that is none of a distribution is known on the
            host.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0, 0.0], [5.0, 0.0, 5.0]])
        >>> one = torch.ones(2)
        >>> sample_rows(
        ...     logits, temperature=0 * one, seed=torch.tensor([1, 2]), position=torch.tensor([7, 7])
        ... ).token_ids.tolist()
        [1, 0]

    Source: docs/sampling.md, section 1 "What is drawn".
    """
    check_logits(NAME, logits)
    check_purpose(NAME, purpose)
    check_bool(NAME, "keep_ties", keep_ties)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given |= {"seed": seed, "position": position}
    parameters = RowParameters.of_tensors(NAME, logits, given, facts)
    if parameters.facts is None:
        parameters = parameters.with_meaning()
    else:
        check_numbers(NAME, {name: numbers for name, numbers in parameters.facts.items() if given[name] is not None})
    return RowsOutput(*sample_with(logits, parameters, purpose, keep_ties)[:2])


def sample_with(
    logits: Tensor,
    parameters: RowParameters,
    purpose: Purpose = Purpose.DRAW,
    keep_ties: bool = False,
    keys: DrawKeys | None = None,
    kept: KeptRows | None = None,
) -> Drawn:
    """Does what `sample_rows` does, with parameters that suit the logits.

    Where ``keys`` are given, of rows on a device, they take the place of the parameters' seeds and positions. ``kept``
    are the rows whose `KeptRows.sets` will be asked for.
    """
    position = parameters.position
    if len(logits) == 0:
        return Drawn(torch.empty_like(position), torch.empty_like(position, dtype=torch.int8), logits)
    placement = placement_of(logits, parameters, keep_ties)
    if kept is not None:
        placement = placement._replace(wanted={"is_kept_wanted": kept.is_wanted})
    known = position if keys is None or placement.is_native else None
    return draw(logits, placement, known, purpose, keys)


def tokens_with(
    logits: Tensor, parameters: RowParameters, keep_ties: bool, keys: DrawKeys | None, largest_k: int | None = None
) -> Tensor:
    """Draws the tokens that `sample_with` draws, int64 [rows]; a device does not look at what is wrong with logits.

    Args:
        logits: as for `sample_with`.
        parameters: likewise.
        keep_ties: likewise.
        keys: likewise.
        largest_k: no row has a larger top_k, and none has none: for rows of which the host knows nothing else, on a
            device that has the second operator. None: nobody knows that.
    """
    if logits.is_cpu or len(logits) == 0:
        return sample_with(logits, parameters, keep_ties=keep_ties, keys=keys).token_ids
    placement = placement_of(logits, parameters, keep_ties, largest_k)
    position = parameters.position if keys is None else None
    return draw_tokens(logits, placement, position, Purpose.DRAW, keys)


def placement_of(logits: Tensor, parameters: RowParameters, keep_ties: bool, largest_k: int | None = None) -> Placement:
    """Returns how rows are served, the same for all logits of a shape, dtype and device.

    Rows go by their routes where the host knows them, else all by one that serves any such rows.
    """
    if parameters.facts is not None:
        return Placement.of(parameters, logits, keep_ties)
    vocab_size = logits.shape[1]
    own = parameters.for_operators(vocab_size)
    route = AnyRows(own, vocab_size, keep_ties) if largest_k is None else FusedV2(own, min(largest_k, vocab_size))
    route.rows = RowSet.all(len(logits))
    return Placement(own, keep_ties, [route])
