"""Functions that are put in the place of an engine's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def replacing(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Puts the decorated function in the place of one of a module or class, which it gets before the arguments.

    What has been replaced so stays as it is, and so does an owner that has nothing of the name. A static method or one
    of the class remains one. What was replaced is the attribute `replaced`.

    Args:
        owner: the module or class.
        name: of its function.

    Returns:
        The decorator, which leaves nothing to call by the function's own name.

    Example:
        >>> import types
        >>> engine = types.SimpleNamespace(double=lambda number: 2 * number)
        >>> @replacing(engine, "double")
        ... def double_and_add(double, number):
        ...     return double(number) + 1
        >>> engine.double(3), engine.double.replaced(3)
        (7, 6)
    """

    def put(ours: Callable[..., Any]) -> None:
        held = inspect.getattr_static(owner, name, None)
        original = getattr(held, "__func__", held)  # of a static method, or one of the class
        place = (ours.__module__, ours.__qualname__)
        if original is None or place in getattr(original, "places", ()):
            return

        @functools.wraps(original)
        def replacement(*arguments: Any, **named: Any) -> Any:
            return ours(original, *arguments, **named)

        replacement.replaced = original  # type: ignore[attr-defined]
        replacement.places = (place, *getattr(original, "places", ()))  # type: ignore[attr-defined]
        is_method = isinstance(held, (staticmethod, classmethod))
        setattr(owner, name, type(held)(replacement) if is_method else replacement)

    return put
