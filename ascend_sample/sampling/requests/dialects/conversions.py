"""How values of other requests become ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ascend_sample._errors import is_integer
from ascend_sample.sampling.requests.checks import SMALLEST_POSITIVE, by_id
from ascend_sample.sampling.requests.dialects.dialect import Context

SEEDS: Final = 2**64
PENALTIES: Final = ("presence_penalty", "frequency_penalty")


def renamed(given: Mapping[str, Any], *same: str, **names: str) -> dict[str, Any]:
    """Returns what was given of fields that differ from ours in their name alone.

    Args:
        given: their fields.
        same: names that are ours too.
        names: our name of each, by theirs.
    """
    names |= dict(zip(same, same, strict=True))
    return {ours: given[theirs] for theirs, ours in names.items() if theirs in given}


def to_seed(given: Mapping[str, Any], field: str, *unseeded: int) -> dict[str, Any]:
    """Returns the seed, negative ones as the unsigned numbers of their bits; none for those that ask for none."""
    seed = given.get(field)
    if seed is None or seed in unseeded:
        return {}
    return {"seed": int(seed) % SEEDS if is_integer(seed) and -(SEEDS // 2) <= int(seed) < 0 else seed}


def to_top_k(given: Mapping[str, Any], *off: int) -> dict[str, Any]:
    """Returns top_k, unless it is one of the numbers that switch it off."""
    top_k = given.get("top_k")
    return {} if top_k is None or top_k in off else {"top_k": top_k}


def to_top_p(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns top_p: of 0, which keeps one id where it is taken, the smallest of ours, which does so too."""
    top_p = given.get("top_p")
    return {} if top_p is None else {"top_p": SMALLEST_POSITIVE if top_p == 0 else top_p}


def to_bias(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns the bias, its ids as integers: JSON has them as texts."""
    bias = given.get("logit_bias")
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        context.refuse("logit_bias", "be a mapping of ids to numbers", bias, "Give a dict.", TypeError)
    return {"logit_bias": by_id(bias.items(), "logit_bias")}


def to_stops(
    given: Mapping[str, Any], context: Context, min_tokens: str, stop_token_ids: Iterable[int] = ()
) -> dict[str, Any]:
    """Returns the least number of tokens, and the ids that must not be drawn before it.

    The model's are among them, also where they do not end the text (vLLM's and SGLang's `ignore_eos`).

    Args:
        given: their fields.
        context: has the ids of the model.
        min_tokens: their name of that number.
        stop_token_ids: further ids that end the text.
    """
    least = given.get(min_tokens, 0)
    if not least:
        return {}
    if context.eos_ids is None:
        remedy = "They must not be drawn before either: give them, or [] where the model has none."
        context.refuse(min_tokens, "be 0 where eos_ids are not given", least, remedy)
    return {"min_tokens": least, "stop_ids": [*stop_token_ids, *context.eos_ids]}


def to_stop_sequences(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what ends the text: the stops that are given as ids, where texts stay the engine's, and single ids."""
    stops = given.get("stop") or ()
    sequences = [] if isinstance(stops, str) else [stop for stop in stops if not isinstance(stop, str)]
    sequences += [[stop] for stop in given.get("stop_token_ids", ())]
    return {"stop_sequences": sequences} if sequences else {}


def of_engine(
    given: Mapping[str, Any],
    context: Context,
    *,
    top_k_off: Sequence[int],
    seed: str = "seed",
    unseeded: Sequence[int] = (),
    least: str = "min_tokens",
) -> dict[str, Any]:
    """Returns what vLLM and SGLang ask for alike.

    Args:
        given: their fields.
        context: has the ids of the model.
        top_k_off: the numbers that switch top_k off.
        seed: their name of the seed.
        unseeded: the seeds that ask for none.
        least: their name of the least number of tokens.
    """
    ours = renamed(given, "temperature", "top_p", "min_p", "repetition_penalty", *PENALTIES)
    ours |= to_top_k(given, *top_k_off) | to_seed(given, seed, *unseeded)
    ours |= to_bias(given, context) | to_stop_sequences(given)
    return ours | to_stops(given, context, least, given.get("stop_token_ids", ()))
