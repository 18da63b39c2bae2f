"""The distribution that a request samples from, in float64 and word by word as docs/sampling.md, section 1, says it.

Slow, one row at a time: what tests compare everything else with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ascend_sample.sampling.params import SamplingParams

Floats = npt.NDArray[np.float64]


def process_row(
    logits: npt.ArrayLike, params: SamplingParams, prompt_ids: Sequence[int] = (), output_ids: Sequence[int] = ()
) -> Floats:
    """Applies mask, bias and penalties: returns what the request's own rules make of its logits.

    Args:
        logits: [vocab_size]. NaN counts as -inf.
        params: the request.
        prompt_ids: the tokens of its prompt.
        output_ids: the tokens that it has drawn so far.

    Returns:
        float64 [vocab_size].
    """
    processed = np.array(logits, dtype=np.float64)
    processed[np.isnan(processed)] = -np.inf
    for token_id, bias in params.logit_bias.items():
        processed[token_id] += bias
    for token_id in set(prompt_ids) | set(output_ids):
        value = processed[token_id]
        penalty = params.repetition_penalty
        processed[token_id] = value / penalty if value > 0 else value * penalty
    for token_id in set(output_ids):
        processed[token_id] -= params.frequency_penalty * list(output_ids).count(token_id) + params.presence_penalty
    masked = set(params.bad_ids)
    if params.allowed_ids is not None:
        masked |= set(range(len(processed))) - set(params.allowed_ids)
    if len(output_ids) < params.min_tokens:
        masked |= set(params.stop_ids)
    processed[sorted(masked)] = -np.inf
    return processed


def kept_ids(processed: Floats, params: SamplingParams, keep_ties: bool = False) -> list[int]:
    """Returns the ids that top-k, top-p and min-p keep, in the total order.

    Args:
        processed: from `process_row`.
        params: the request.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """
    order = np.argsort(-processed, kind="stable")  # equal ones by id
    if params.temperature == 0:
        return [int(order[0])]
    top_k = params.top_k if params.top_k is not None else len(order)
    kept = order[:top_k]
    if keep_ties:
        kept = order[processed[order] >= processed[kept[-1]]]
    weights = _weights(processed[kept], params.temperature)
    if params.top_p < 1:
        before = np.cumsum(weights) - weights
        count = int((before <= np.float64(np.float32(params.top_p)) * weights.sum()).sum())
        kept, weights = kept[:count], weights[:count]
    floor = np.float64(np.float32(params.min_p)) * weights[0]
    staying: list[int] = kept[weights >= floor].tolist()
    return staying


def target_distribution(
    logits: npt.ArrayLike,
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    keep_ties: bool = False,
) -> Floats:
    """Returns the probability of each id.

    Args:
        logits: [vocab_size].
        params: the request.
        prompt_ids: the tokens of its prompt.
        output_ids: the tokens that it has drawn so far.
        keep_ties: top-k keeps every logit that is equal to the k-th.

    Returns:
        float64 [vocab_size], summing to 1.

    Example:
        >>> logits = np.log([0.1, 0.2, 0.3, 0.4])
        >>> target_distribution(logits, SamplingParams(top_k=3)).round(3).tolist()
        [0.0, 0.222, 0.333, 0.444]
    """
    processed = process_row(logits, params, prompt_ids, output_ids)
    kept = kept_ids(processed, params, keep_ties)
    distribution = np.zeros(len(processed))
    if np.isneginf(processed).all():
        distribution[0] = 1
        return distribution
    weights = _weights(processed[kept], 1.0 if params.temperature == 0 else params.temperature)
    distribution[kept] = weights / weights.sum()
    return distribution


def _weights(logits: Floats, temperature: float) -> Floats:
    """Returns weights proportional to the probabilities, 1 for the first: in float64, of logits in descending order.

    Entries of +inf share the whole; a row of -inf is even.
    """
    if np.isinf(logits[0]):
        return np.asarray((logits == logits[0]).astype(np.float64))
    return np.asarray(np.exp((logits - logits[0]) / np.float64(np.float32(temperature))))
