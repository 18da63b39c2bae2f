"""What is to be done with modules of an engine as soon as the engine imports them.

A plugin runs before an engine knows its platform, and in processes that never sample. What it imports then takes
seconds, and comes before what another plugin changes first. So it imports nothing, and waits.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

Change = Callable[[Any], None]


class _Waiting(MetaPathFinder):
    """Finds the modules that changes wait for, with the finders that there are, and makes them when one is there."""

    def __init__(self) -> None:
        self.changes: defaultdict[str, list[Change]] = defaultdict(list)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            for change in self.changes.pop(fullname, ()):
                change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


_waiting: Final = _Waiting()


def when_imported(name: str, change: Change) -> None:
    """Makes a change to a module: now, where it has been imported, else when it is, before anybody sees it.

    Args:
        name: of the module. There may be none of that name.
        change: what is called with the module, once.

    Example:
        >>> import sys
        >>> kept = sys.modules.pop("colorsys", None)
        >>> when_imported("colorsys", lambda module: setattr(module, "ONE_THIRD", 1))
        >>> import colorsys
        >>> colorsys.ONE_THIRD
        1
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _waiting not in sys.meta_path:
        sys.meta_path.insert(0, _waiting)
    _waiting.changes[name].append(change)
