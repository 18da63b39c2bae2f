"""Which route each row of a batch takes, decided on the host from what is known there.

`choose_rules` goes through one table, `RULES`: the first rule that holds for a row is the row's. It depends on the
row's own parameters, on the dtype of its logits and on what the device has (`abilities_of`). Other rows change what
serves it in two places, and its result in none: `group_rows` lets an operator take rows of another route along where
that costs a launch less, and one edited row makes all rows float32 where `are_served_alike_in_float32`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ascend_sample import backend
from ascend_sample._contract import APPLY_NAME, MAX_TOP_K, OPERATOR_NAME, OPERATOR_V2_NAME
from ascend_sample.npu.operators import MOST_ELEMENTS, MOST_ROWS
from ascend_sample.sampling.rows.parameters import Facts, is_limited

LARGEST_FUSED_K: Final = MAX_TOP_K
CANDIDATE_COUNTS: Final = (64, LARGEST_FUSED_K)
FOLDED_TEMPERATURES: Final = (0.05, 2.0)
"""Temperatures t for which q ** t, q being exponential noise, has the range and nearly the resolution of float32."""

Booleans = npt.NDArray[np.bool_]


class SamplingRoute(str, enum.Enum):
    """What serves a row."""

    NATIVE = "native"  # the CPU kernel of the sampling layer
    GREEDY = "greedy"  # the argmax by torch
    FUSED_V2 = "fused_v2"  # top_k_top_p_sample_v2 on the device, once for all such rows
    FUSED = "fused"  # top_k_top_p_sample on the device, once for all such rows
    TOP_K = "top_k"  # the first of the sorted row by torch, and their race by rank
    SEGMENTS = "segments"  # the weights of whole rows by torch, and their races by segment and place
    FUSED_SEGMENTS = "fused_segments"  # the same of what operators keep
    SORTED_SEGMENTS = "sorted_segments"  # the same of what the sorted row keeps


class Abilities(NamedTuple):
    """What a device has for logits of one dtype."""

    native: bool  # the CPU kernel
    fused: bool  # aclnnTopKTopPSample, for this dtype
    fused_v2: bool  # aclnnTopKTopPSampleV2, for float32
    filters: bool = False  # aclnnApplyTopKTopP, for float32


def abilities_of(device: torch.device, dtype: torch.dtype) -> Abilities:
    """Asks the package what serves logits of ``dtype`` on ``device``.

    Args:
        device: of the logits.
        dtype: of the logits.
    """

    def is_served(operator: str, dtype: torch.dtype) -> bool:
        return backend.which_backend(torch.empty(0, dtype=dtype, device=device), operator).backend in ("aclnn", "cffi")

    if device.type == "cpu":
        return Abilities(native=True, fused=False, fused_v2=False)
    of_float32 = (is_served(operator, torch.float32) for operator in (OPERATOR_V2_NAME, APPLY_NAME))
    return Abilities(False, is_served(OPERATOR_NAME, dtype), *of_float32)


def are_served_alike_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether rows have the same routes when their logits are converted to float32."""
    if device.type == "cpu":
        return True
    has = abilities_of(device, dtype)
    return dtype == torch.float32 or has.fused_v2 or not has.fused


class _Rows(NamedTuple):
    """Facts in the terms of the rules, an array each."""

    is_greedy: Booleans
    is_ranked: Booleans
    needs_mask: Booleans
    keeps_ties: Booleans
    has_top_p: Booleans
    is_top_p_exact: Booleans
    has_min_p: Booleans
    has_temperature: Booleans
    is_temperature_folded: Booleans


class RouteRule(NamedTuple):
    """One line of the table."""

    route: SamplingRoute  # what serves the rows for which ``holds`` does
    reason: str  # why, a sentence for `Sampler.explain`
    holds: Callable[[_Rows, Abilities], Any]  # from facts about the rows and the device's abilities


RULES: Final[tuple[RouteRule, ...]] = (
    RouteRule(
        SamplingRoute.NATIVE,
        "the CPU kernel serves it, whatever its parameters are",
        lambda rows, has: has.native,
    ),
    RouteRule(
        SamplingRoute.GREEDY,
        "greedy: the argmax, which needs no noise",
        lambda rows, has: rows.is_greedy,
    ),
    RouteRule(
        SamplingRoute.FUSED_V2,
        "top-k: aclnnTopKTopPSampleV2 draws from the exact distribution of float32 logits divided by the temperature",
        lambda rows, has: has.fused_v2 & rows.is_ranked,
    ),
    RouteRule(
        SamplingRoute.FUSED,
        "top-k alone: aclnnTopKTopPSample, the temperature being an exponent of the noise",
        lambda rows, has: has.fused & rows.is_ranked & ~rows.has_top_p & ~rows.has_min_p & rows.is_temperature_folded,
    ),
    RouteRule(
        SamplingRoute.FUSED,
        "top-k, and a top_p that the dtype of the logits represents, at temperature 1: aclnnTopKTopPSample",
        lambda rows, has: has.fused & rows.is_ranked & rows.is_top_p_exact & ~rows.has_min_p & ~rows.has_temperature,
    ),
    RouteRule(
        SamplingRoute.TOP_K,
        "no fused operator here is exact for it; top_k bounds the candidates, so the rest is done on these alone",
        lambda rows, has: rows.is_ranked,
    ),
    RouteRule(
        SamplingRoute.FUSED_SEGMENTS,
        "top_k keeps ties, as aclnnApplyTopKTopP does; aclnnTopKTopPSampleV2 does top_p, and segments race",
        lambda rows, has: has.filters & has.fused_v2 & rows.keeps_ties,
    ),
    RouteRule(
        SamplingRoute.SORTED_SEGMENTS,
        f"top_k is above {LARGEST_FUSED_K} or keeps ties: a sort finds what is kept, and segments race",
        lambda rows, has: rows.needs_mask,
    ),
    RouteRule(
        SamplingRoute.SEGMENTS,
        "nothing is ranked: segments race, of whole rows less what min_p drops",
        lambda rows, has: ~rows.has_top_p,
    ),
    RouteRule(
        SamplingRoute.FUSED_SEGMENTS,
        "top-p alone: aclnnTopKTopPSampleV2 tells what is kept, and segments race",
        lambda rows, has: has.fused_v2,
    ),
    RouteRule(
        SamplingRoute.FUSED_SEGMENTS,
        "top-p alone, as the dtype of the logits has it, at temperature 1: aclnnTopKTopPSample keeps, segments race",
        lambda rows, has: has.fused & rows.is_top_p_exact & ~rows.has_temperature,
    ),
    RouteRule(
        SamplingRoute.SORTED_SEGMENTS,
        "top-p alone, for which no fused operator here is exact: a sort finds what is kept, and segments race",
        lambda rows, has: np.True_,
    ),
)


NO_RULE: Final = -1
FUSED_ROUTES: Final = frozenset(route for route in SamplingRoute if route.startswith("fused"))
ORDER_OF_GROUPS: Final = sorted(SamplingRoute)
"""In which groups of a batch follow one another."""
ROUTE_OF_RULE: Final = np.array([ORDER_OF_GROUPS.index(rule.route) for rule in RULES])
"""Places in that order."""


def are_greedy(facts: Facts) -> Booleans:
    """Tells which rows take their best id, bool [rows]."""
    greedy: Booleans = (facts["temperature"] == 0) | (facts["top_k"] == 1)
    return greedy


def _in_terms_of_rules(facts: Facts, vocab_size: int, dtype: torch.dtype, keep_ties: bool) -> _Rows:
    temperature, top_k, top_p = facts["temperature"], facts["top_k"], facts["top_p"]
    is_greedy = are_greedy(facts)
    has_top_k = is_limited(top_k, vocab_size) & ~is_greedy
    needs_mask = has_top_k & ((top_k > LARGEST_FUSED_K) | keep_ties)
    lowest, highest = FOLDED_TEMPERATURES
    as_stored = torch.tensor(top_p, dtype=dtype, device="cpu").to(torch.float32).numpy()
    return _Rows(
        is_greedy=is_greedy,
        is_ranked=has_top_k & ~needs_mask,
        needs_mask=needs_mask,
        keeps_ties=has_top_k & keep_ties,
        has_top_p=top_p < 1,
        is_top_p_exact=as_stored == top_p,
        has_min_p=facts["min_p"] > 0,
        has_temperature=temperature != 1,
        is_temperature_folded=(temperature >= lowest) & (temperature <= highest),
    )


def choose_rules(
    facts: Facts, vocab_size: int, dtype: torch.dtype, abilities: Abilities, keep_ties: bool
) -> npt.NDArray[np.int64]:
    """Returns the index in `RULES` of each row's rule.

    Args:
        facts: of the rows, all fields of `DISTRIBUTION`.
        vocab_size: the number of columns of the logits.
        dtype: of the logits.
        abilities: of the device for that dtype.
        keep_ties: top-k keeps every tie at the k-th value.

    Returns:
        int64 [rows].

    Example:
        >>> one = np.ones(1, np.float32)
        >>> facts = {"temperature": one, "top_k": 50 * one, "top_p": one * np.float32(0.9), "min_p": 0 * one}
        >>> old_cann = Abilities(native=False, fused=True, fused_v2=False)
        >>> RULES[int(choose_rules(facts, 32000, torch.bfloat16, old_cann, keep_ties=False)[0])].route.value
        'top_k'
    """
    rows = _in_terms_of_rules(facts, vocab_size, dtype, keep_ties)
    chosen = np.full(len(facts["temperature"]), NO_RULE)
    for index, rule in enumerate(RULES):
        is_open = chosen == NO_RULE
        if not is_open.any():
            break
        chosen[is_open & rule.holds(rows, abilities)] = index
    return chosen


def group_rows(
    facts: Facts, vocab_size: int, dtype: torch.dtype, abilities: Abilities, keep_ties: bool
) -> list[tuple[SamplingRoute, npt.NDArray[np.int64], int]]:
    """Splits a batch into as few groups as its rows' routes allow: one launch of the operator each.

    An operator has no room for more than some thousands of rows: more are several groups.

    Every row is in one group. The arguments are those of `choose_rules`.

    Returns:
        Of each group its route; its rows, ascending; and a k that no top_k among them that is on exceeds. For
        `SamplingRoute.TOP_K` that is one of `CANDIDATE_COUNTS`, as each of its rows alone would have it: how sums are
        rounded must not depend on the other rows.
    """
    chosen = choose_rules(facts, vocab_size, dtype, abilities, keep_ties)
    every_k = np.where(facts["temperature"] == 0, 1, facts["top_k"])
    is_bounded = is_limited(every_k, vocab_size)
    routes = ROUTE_OF_RULE[chosen]
    rows_of = {ORDER_OF_GROUPS[route]: np.flatnonzero(routes == route) for route in np.unique(routes)}
    whole, fused = SamplingRoute.SEGMENTS, SamplingRoute.FUSED_SEGMENTS
    if whole in rows_of and fused in rows_of:  # the operator keeps all of a row without top_p, bit for bit
        rows_of[fused] = np.sort(np.concatenate((rows_of.pop(whole), rows_of[fused])))
    greedy, ranked = SamplingRoute.GREEDY, SamplingRoute.FUSED_V2
    if rows_of.keys() == {greedy, ranked}:  # an argmax of all rows reads less than what gathers two groups
        rows_of[ranked] = np.sort(np.concatenate((rows_of.pop(greedy), rows_of[ranked])))
    groups = []
    most_fused = min(MOST_ROWS, MOST_ELEMENTS // vocab_size)
    for route, rows in rows_of.items():
        if route is SamplingRoute.TOP_K:
            least = np.searchsorted(CANDIDATE_COUNTS, every_k[rows])
            parts = [(rows[least == place], count) for place, count in enumerate(CANDIDATE_COUNTS)]
        else:
            parts = [(rows, int(every_k[rows][is_bounded[rows]].max(initial=1)))]
        most = most_fused if route in FUSED_ROUTES else len(rows)
        for part, most_k in parts:
            groups += [(route, part[start : start + most], most_k) for start in range(0, len(part), most)]
    return groups
