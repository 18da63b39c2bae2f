"""The distribution that a request samples from, in float64 and word by word as docs/sampling.md says it in section 1.

Slow, one row at a time: what tests compare everything else with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from ascend_sample.sampling.draws.segmented import SEGMENT, segments_of
from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.requests.params import SamplingParams

Floats = npt.NDArray[np.float64]

MOST_RANKED = 1024
"""A row with a larger top_k is drawn by segments."""


def process_row(
    logits: npt.ArrayLike, params: SamplingParams, prompt_ids: Sequence[int] = (), output_ids: Sequence[int] = ()
) -> Floats:
    """Applies masks, biases, DRY and penalties: returns what the request's own rules make of its logits.

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
    text = [*prompt_ids, *output_ids]
    forced = forced_id(text, params)
    for token_id, bias in params.logit_bias.items():
        processed[token_id] += bias
    if forced is not None:
        processed[forced] += 1e9
    for token_id, length in repetitions(text, params).items():
        if token_id == forced:
            continue
        beyond = length - params.dry_allowed_length
        with np.errstate(over="ignore"):
            dry = params.dry_multiplier * np.float64(params.dry_base) ** beyond
        processed[token_id] -= min(float(dry), LARGEST)
    for token_id in set(prompt_ids) | set(output_ids):
        value = processed[token_id]
        penalty = params.repetition_penalty
        processed[token_id] = value / penalty if value > 0 else value * penalty
    for token_id in set(output_ids):
        processed[token_id] -= params.frequency_penalty * list(output_ids).count(token_id) + params.presence_penalty
    masked = set(params.suppress_token_ids) | (forbidden_ids(text, params) - {forced})
    if params.allowed_token_ids is not None:
        masked |= set(range(len(processed))) - set(params.allowed_token_ids)
    if len(output_ids) < params.min_tokens:
        masked |= set(params.stop_token_ids)
    processed[sorted(masked)] = -np.inf
    return processed


def forbidden_ids(text: Sequence[int], params: SamplingParams) -> set[int]:
    """Returns the ids that would end a bad word, or repeat tokens of the text in a row.

    Args:
        text: prompt and output.
        params: the request.

    Example:
        >>> forbidden_ids([1, 2, 3, 1], SamplingParams(no_repeat_ngram_size=2, bad_words=[[3, 1, 5]]))
        {2, 5}
    """
    forbidden = {word[-1] for word in params.bad_words if list(word[:-1]) == list(text)[len(text) - len(word) + 1 :]}
    if params.no_repeat_ngram_size:
        n, window = params.no_repeat_ngram_size, params.no_repeat_ngram_window
        seen = list(text) if window is None else list(text)[-window:]
        grams = [seen[start : start + n] for start in range(len(seen) - n + 1)]
        end = list(text)[len(text) - n + 1 :]
        forbidden |= {gram[-1] for gram in grams if gram[:-1] == end} - set(params.no_repeat_ngram_whitelist)
    return forbidden


def forced_id(text: Sequence[int], params: SamplingParams) -> int | None:
    """Returns the next id of what closes a thought that has as many tokens as it may; None of another text.

    Args:
        text: prompt and output.
        params: the request.

    Example:
        >>> tags = {"thinking_start_ids": 7, "thinking_end_ids": 8, "thinking_end_message_ids": [5, 8]}
        >>> bounded = SamplingParams(thinking_token_budget=2, **tags)
        >>> [forced_id(text, bounded) for text in ([7, 1], [7, 1, 2], [7, 1, 2, 5], [7, 1, 2, 5, 8])]
        [None, 5, 8, None]
    """
    if params.thinking_token_budget is None:
        return None
    start, end = list(params.thinking_start_ids), list(params.thinking_end_ids)
    thought: list[int] | None = None
    for place in range(1, len(text) + 1):
        before = list(text[:place])
        if before[-len(end) :] == end:
            thought = None
        elif before[-len(start) :] == start:
            thought = []
        elif thought is not None:
            thought.append(text[place - 1])
    if thought is None or len(thought) < params.thinking_token_budget:
        return None
    closing = list(params.thinking_end_message_ids) or end
    there = max(length for length in range(len(closing)) if thought[len(thought) - length :] == closing[:length])
    return closing[there]


def end_of(output_ids: Sequence[int], params: SamplingParams) -> tuple[tuple[int, ...], int] | None:
    """Returns which of the stop ids and sequences ends an output first, and how long the output is then.

    Args:
        output_ids: the tokens that were drawn.
        params: the request.

    Example:
        >>> end_of([4, 5, 6, 2], SamplingParams(stop_sequences=[2, [5, 6]]))
        ((5, 6), 3)
    """
    stops = [*((token_id,) for token_id in params.stop_token_ids), *map(tuple, params.stop_sequences)]
    for length in range(1, len(output_ids) + 1):
        for stop in stops:
            is_there = stop == tuple(output_ids[max(0, length - len(stop)) : length])
            if is_there and (length > params.min_tokens or (length == params.min_tokens and len(stop) == 1)):
                return stop, length
    return None


def repetitions(text: Sequence[int], params: SamplingParams) -> dict[int, int]:
    """Returns the ids that DRY makes less likely, and how many of the last tokens have been before each already.

    Args:
        text: prompt and output.
        params: the request.

    Example:
        >>> repetitions([1, 2, 3, 4, 1, 2, 3], SamplingParams(dry_multiplier=1.0))
        {4: 3}
    """
    if not params.dry_multiplier:
        return {}
    unbroken = 0
    breakers = cast(Collection[Sequence[int]], params.dry_sequence_breakers)
    for breaker in breakers:
        for end in range(len(breaker), len(text) + 1):
            if list(breaker) == list(text)[end - len(breaker) : end]:
                unbroken = max(unbroken, end)
    seen = list(text) if params.dry_penalty_last_n is None else list(text)[-params.dry_penalty_last_n :]
    longest: dict[int, int] = {}
    for place in range(1, len(seen)):  # of what may come again
        length = 0
        while length < min(place, len(text) - unbroken) and seen[place - 1 - length] == seen[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length and (seen[place],) not in breakers:
            longest[seen[place]] = max(length, longest.get(seen[place], 0))
    return longest


def keep_range(processed: Floats, params: SamplingParams, is_excluding: bool = False) -> Floats:
    """Applies the filters that keep a range of values: returns the row with -inf for what they drop.

    Args:
        processed: from `process_row`.
        params: the request.
        is_excluding: the coin of `xtc_probability` has fallen.

    Returns:
        float64 [vocab_size].

    Example:
        >>> row = np.log([0.1, 0.2, 0.3, 0.4])
        >>> np.exp(keep_range(row, SamplingParams(epsilon_cutoff=0.25))).round(1).tolist()
        [0.0, 0.0, 0.3, 0.4]
        >>> np.exp(keep_range(row, SamplingParams(xtc_probability=1, xtc_threshold=0.25), True)).round(1).tolist()
        [0.1, 0.2, 0.3, 0.0]

    Source: Meister et al., "Locally Typical Sampling", arXiv 2202.00666; Hewitt et al., "Truncation Sampling as
        Language Model Desmoothing", arXiv 2210.15191 (epsilon and eta); Tang et al., "Top-n-sigma", arXiv 2411.07641;
        top-a is BlinkDL's, XTC that of text-generation-webui.
    """
    best = processed.max()
    if params.temperature == 0 or np.isinf(best):
        return processed
    weights = np.exp((processed - best) / np.float64(np.float32(params.temperature)))
    p = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(p)
        entropy = np.where(p > 0, p * information, 0).sum()
    stays = np.ones(len(p), dtype=np.bool_)
    if params.typical_p < 1:
        distance = np.abs(information - entropy)
        order = np.argsort(distance, kind="stable")
        last = min(int((np.cumsum(p[order]) < _as_kept(params.typical_p)).sum()), len(p) - 1)
        stays = distance <= distance[order[last]]
    best = processed[stays].max()
    eta = _as_kept(params.eta_cutoff)
    deviation = processed[processed > -np.inf].std()
    floor = max(
        _as_kept(params.epsilon_cutoff),
        min(eta, np.sqrt(eta) * np.exp(-entropy)),
        _as_kept(params.top_a) * p.max() ** 2,
        _as_kept(params.min_p) * p[processed == best][0] if is_excluding else 0,
    )
    passes = p >= floor
    if params.top_n_sigma > 0:
        passes &= processed >= processed.max() - _as_kept(params.top_n_sigma) * deviation
    stays &= passes | (processed == best)
    is_top = stays & (p >= _as_kept(params.xtc_threshold))
    if is_excluding and is_top.any():
        stays &= processed <= processed[is_top].min()
    return np.where(stays, processed, -np.inf)


def kept_ids(processed: Floats, params: SamplingParams, keep_ties: bool = False) -> list[int]:
    """Returns the ids that top-k, top-p and min-p keep, in the total order.

    Args:
        processed: from `process_row`, or of that from `keep_range`.
        params: the request.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """
    order = np.argsort(-processed, kind="stable")  # equal ones by id
    if params.temperature == 0:
        return [int(order[0])]
    top_k = params.top_k if params.top_k is not None else len(order)
    kept = order[:top_k]
    if keep_ties and top_k > 1:  # a top_k of 1 is greedy
        kept = order[processed[order] >= processed[kept[-1]]]
    weights = _weights(processed[kept], params.temperature)
    if params.top_p < 1:
        before = np.cumsum(weights) - weights
        count = int((before <= np.float64(np.float32(params.top_p)) * weights.sum()).sum())
        kept, weights = kept[:count], weights[:count]
    floor = np.float64(np.float32(params.min_p)) * weights[0]
    staying: list[int] = kept[weights >= floor].tolist()
    return staying


def is_ranked(params: SamplingParams, vocab_size: int, keep_ties: bool = False) -> bool:
    """Tells whether the noise of a row belongs to ranks, rather than to segments and places.

    Args:
        params: the request, not a greedy one.
        vocab_size: how many logits a row has.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """
    return params.top_k is not None and params.top_k < vocab_size and params.top_k <= MOST_RANKED and not keep_ties


def drawn_id(
    processed: Floats, kept: Sequence[int], params: SamplingParams, noise: npt.ArrayLike, keep_ties: bool = False
) -> int:
    """Draws the id that wins its races.

    Args:
        processed: from `process_row`.
        kept: from `kept_ids`.
        params: the request.
        noise: the row's lanes, as many as it reads: one for each kept id where they are ranked, else `lanes_of`.
        keep_ties: top-k keeps every logit that is equal to the k-th.

    Example:
        >>> processed, params = np.log([0.1, 0.2, 0.3, 0.4]), SamplingParams(top_k=3)
        >>> drawn_id(processed, kept_ids(processed, params), params, noise=[0.5, 0.1, 0.4])
        2
    """
    if np.isneginf(processed).all():
        return 0
    if params.temperature == 0 or params.top_k == 1:
        return kept[0]
    weights, q = _weights(processed[list(kept)], params.temperature), np.asarray(noise, np.float64)
    if is_ranked(params, len(processed), keep_ties):
        return kept[int(np.argmax(weights / q[: len(kept)]))]
    segments = segments_of(len(processed))
    by_segment = np.zeros((segments, SEGMENT))
    by_segment.reshape(-1)[list(kept)] = weights
    places, of_segments = q[:SEGMENT], q[SEGMENT : SEGMENT + segments]
    segment = int(np.argmax(by_segment.sum(1) / of_segments))
    return segment * SEGMENT + int(np.argmax(by_segment[segment] / places))


def target_distribution(
    logits: npt.ArrayLike,
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    keep_ties: bool = False,
    is_excluding: bool | None = None,
) -> Floats:
    """Returns the probability of each id.

    Args:
        logits: [vocab_size].
        params: the request.
        prompt_ids: the tokens of its prompt.
        output_ids: the tokens that it has drawn so far.
        keep_ties: top-k keeps every logit that is equal to the k-th.
        is_excluding: whether the coin of `xtc_probability` has fallen; None: it is thrown in each draw.

    Returns:
        float64 [vocab_size], summing to 1.

    Example:
        >>> logits = np.log([0.1, 0.2, 0.3, 0.4])
        >>> target_distribution(logits, SamplingParams(top_k=3)).round(3).tolist()
        [0.0, 0.222, 0.333, 0.444]
    """
    processed = process_row(logits, params, prompt_ids, output_ids)
    distribution = np.zeros(len(processed))
    if np.isneginf(processed).all():
        distribution[0] = 1
        return distribution
    chance = _as_kept(params.xtc_probability) if is_excluding is None else np.float64(is_excluding)
    for has_fallen, share in ((False, 1 - chance), (True, chance)):
        within = keep_range(processed, params, has_fallen)
        kept = kept_ids(within, params, keep_ties)
        weights = _weights(within[kept], 1.0 if params.temperature == 0 else params.temperature)
        distribution[kept] += share * weights / weights.sum()
    return distribution


def _as_kept(number: float) -> np.float64:
    """Returns the number that rows of a batch keep, in float32."""
    return np.float64(np.float32(number))


def _weights(logits: Floats, temperature: float) -> Floats:
    """Returns weights proportional to the probabilities, 1 for the first: in float64, of logits in descending order.

    Entries of +inf share the whole; a row of -inf is even.
    """
    if np.isinf(logits[0]):
        return np.asarray((logits == logits[0]).astype(np.float64))
    return np.asarray(np.exp((logits - logits[0]) / np.float64(np.float32(temperature))))
