"""Puts faults into the layer, and notices by name a fault that sits where nothing comes by.

A fault that is not called leaves the layer as it is: the gate would pass, and say that it has no power. So what is
replaced has to be there when it is replaced, and what replaces it has to be called before the fault is taken out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ascend_sample.sampling import SamplingRoute
from ascend_sample.sampling.step import device_routes
from ascend_sample.sampling.step.device_routes import Rows


class Planter:
    """Replaces functions of the layer, and counts the calls of what stands in their places.

    Attributes:
        calls: how often each site was called. What is planted in one site may stand in several places, one of which
            has to be called.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.calls: Counter[str] = Counter()

    def replace(self, owner: Any, name: str, function: Callable[..., Any], site: str = "") -> None:
        """Puts a function in the place of an owner's."""
        site = site or f"{owner.__name__.rpartition('.')[2]}.{name}"
        assert callable(vars(owner).get(name)), f"{site} is to be replaced, and there is none"
        self._patch.setattr(owner, name, self._counted(site, function))

    def override(
        self, routes: Iterable[SamplingRoute], method: str, function: Callable[..., Any], site: str = ""
    ) -> None:
        """Lets routes be served by subclasses in which a function, whose ``self`` has the rows, is the method."""
        for route in routes:
            base = device_routes.ROUTES[route]
            assert isinstance(base, type)
            assert method in vars(base), f"{base.__name__}.{method} is to be overridden, and there is none"

            def __init__(self: Any, rows: Rows, base: Any = base) -> None:
                base.__init__(self, rows)
                self.rows = rows

            counted = self._counted(site or f"{base.__name__}.{method}", function)
            faulty = type(f"Faulty{base.__name__}", (base,), {"__init__": __init__, method: counted})
            self._patch.setitem(device_routes.ROUTES, route, faulty)

    def _counted(self, site: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.calls[site] += 0

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[site] += 1
            return function(*arguments, **named)

        return counted


Plant = Callable[[Planter], None]


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Inside, the fault is in the layer; at the end each of its sites must have been called."""
    with pytest.MonkeyPatch.context() as patch:
        planter = Planter(patch)
        plant(planter)
        assert planter.calls, "the fault is planted nowhere"
        yield
        unused = [site for site, calls in planter.calls.items() if calls == 0]
        assert not unused, f"nothing called what was planted in {', '.join(unused)}"
