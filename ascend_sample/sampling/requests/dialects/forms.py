"""What the values of other requests have to be, before anything is made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from ascend_sample._errors import is_integer, is_real, refuse_type
from ascend_sample.sampling.requests.checks import is_list

TOKENIZE: Final = "Texts must be tokenized before."


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


def _are_pairs(value: object) -> TypeGuard[Collection[Any]]:
    """Tells whether value is a list of pairs, or what a mapping has of them."""
    return is_list(value) and all(is_list(pair) and len(pair) == 2 for pair in value)


def _are_pairs_of_ids(value: object) -> bool:
    """Tells whether a list of ids comes first in each."""
    return _are_pairs(value) and all(_are_ids(ids) for ids, _ in value)


def _items(value: object) -> object:
    return value.items() if isinstance(value, Mapping) else value


FLAG: Final = Form("be True or False", lambda value: isinstance(value, bool), "Use bool().")
NUMBER: Final = Form("be a number", is_real, "Convert it with float().")
LIST: Final = Form("be a list", is_list, "Give a list.")
TEXTS: Final = Form("be a text or a list", lambda value: isinstance(value, str) or is_list(value), "Give a list.")
IDS: Final = Form("be a list of ids", _are_ids, TOKENIZE)
ID_OR_IDS: Final = Form("be an id or a list of ids", lambda value: is_integer(value) or _are_ids(value), TOKENIZE)
SEQUENCES: Final = Form(
    "be a list of lists of ids", lambda value: is_list(value) and all(map(ID_OR_IDS.fits, value)), TOKENIZE
)
PAIRS: Final = Form("be a mapping or a list of pairs", lambda value: _are_pairs(_items(value)), "Give a dict.")
PAIRS_OF_IDS: Final = Form(
    "be a mapping of tuples of ids, or a list of pairs", lambda value: _are_pairs_of_ids(_items(value)), "Give a dict."
)
