"""Lets exported programs that return this package's named tuples be saved."""

from __future__ import annotations

from typing import Any, TypeVar

from torch.utils import _pytree

NamedTupleClass = TypeVar("NamedTupleClass", bound=type[Any])


def exportable(named_tuple: NamedTupleClass) -> NamedTupleClass:
    """Gives a named tuple the name under which `torch.export.save` writes it: the package's name and its own.

    torch takes named tuples apart and puts them together by itself, but refuses to write one that has no such name.
    Its public functions register dataclasses and classes of unknown structure alone; this one says what a named tuple
    is, and has been in torch since 2.7, the oldest that is supported.
    """
    _pytree._register_namedtuple(named_tuple, serialized_type_name=f"ascend_sample.{named_tuple.__name__}")
    return named_tuple
