"""What the values of other requests must be, and how they become ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ascend_sample._errors import is_integer, is_real, refuse_type
from ascend_sample.sampling.requests.checks import SMALLEST_POSITIVE, by_id, is_list

TOKENIZE: Final = "Texts must be tokenized before."
SEEDS: Final = 2**64


class Form(NamedTuple):
    """A rule about the type of a value, in words and as a function, and what to do about another one."""

    rule: str
    fits: Callable[[object], bool]
    remedy: str

    def check(self, owner: str, name: str, value: object) -> None:
        """Raises TypeError unless the value fits."""
        if not self.fits(value):
            refuse_type(owner, name, self.rule, value, self.remedy)


def _are_ids(value: object) -> bool:
    return is_list(value) and all(map(is_integer, value))


def _are_pairs(value: object) -> bool:
    pairs = pairs_of(value)
    return is_list(pairs) and all(is_list(pair) and len(pair) == 2 for pair in pairs)


def _are_pairs_of_ids(value: object) -> bool:
    """Returns whether a list of ids comes first in each pair."""
    return _are_pairs(value) and all(_are_ids(ids) for ids, _ in pairs_of(value))


def pairs_of(value: Any) -> Any:
    """Returns the pairs of a mapping, or of a list of them."""
    return value.items() if isinstance(value, Mapping) else value


FLAG: Final = Form("be True or False", lambda value: isinstance(value, bool), "Use bool().")
NUMBER: Final = Form("be a number", is_real, "Convert it with float().")
LIST: Final = Form("be a list", is_list, "Give a list.")
MAPPING: Final = Form("be a mapping of ids to numbers", lambda value: isinstance(value, Mapping), "Give a dict.")
TEXTS: Final = Form("be a text or a list", lambda value: isinstance(value, str) or is_list(value), "Give a list.")
IDS: Final = Form("be a list of ids", _are_ids, TOKENIZE)
ID_OR_IDS: Final = Form("be an id or a list of ids", lambda value: is_integer(value) or _are_ids(value), TOKENIZE)
SEQUENCES: Final = Form(
    "be a list of lists of ids", lambda value: is_list(value) and all(map(ID_OR_IDS.fits, value)), TOKENIZE
)
PAIRS: Final = Form("be a mapping or a list of pairs", _are_pairs, "Give a dict.")
PAIRS_OF_IDS: Final = Form(
    "be a mapping of tuples of ids, or a list of pairs",
    lambda value: _are_pairs_of_ids(pairs_of(value)),
    "Give a dict.",
)


def unsigned(seed: Any) -> Any:
    """Returns a seed, a negative one as the unsigned number of its 64 bits."""
    return int(seed) % SEEDS if is_integer(seed) and -(SEEDS // 2) <= int(seed) < 0 else seed


def above_zero(top_p: Any) -> Any:
    """Returns top_p: of 0, which keeps one id where it is taken, the smallest of ours, which does so too."""
    return SMALLEST_POSITIVE if top_p == 0 else top_p


def integer_ids(bias: Any) -> dict[int, Any]:
    """Returns biases with their ids as integers: JSON has them as texts."""
    return by_id(pairs_of(bias), "logit_bias")


def without_texts(stops: Any) -> list[Any]:
    """Returns the stops that are given as ids: texts are left to the engine."""
    return [] if isinstance(stops, str) else [stop for stop in stops if not isinstance(stop, str)]


def sequence_of(ids: Any) -> tuple[int, ...]:
    """Returns a sequence of ids, also of a single one."""
    return (int(ids),) if is_integer(ids) else tuple(ids)
