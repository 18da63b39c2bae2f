"""What the host knows of parameters that an engine hands over as device tensors alone.

Engines make those tensors from host arrays. Where they do, `note` keeps what was copied; where the tensor arrives,
`facts_of` finds it. Facts belong to a tensor's content, so they hold as long as torch has counted no write to it, or to
whatever it is a view of; nothing is read from a device.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling import RowFacts


class _Noted(NamedTuple):
    """What a tensor held at one of its versions."""

    version: int
    facts: RowFacts


_noted: Final[WeakTensorKeyDictionary] = WeakTensorKeyDictionary()


def note(facts: RowFacts, *tensors: Tensor | None) -> None:
    """Keeps facts for as long as these tensors live and hold what they hold now.

    Args:
        facts: of the rows, in arrays that nobody writes to.
        tensors: those in which an engine will hand the rows over. None, and an inference tensor, whose writes torch
            does not count, are passed over.
    """
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            _noted[tensor] = _Noted(tensor._version, facts)


def facts_of(rows: int, top_k: Tensor | None, top_p: Tensor | None) -> RowFacts | None:
    """Returns the facts that were noted for these very tensors; None where there are none, or they may not hold now.

    Args:
        rows: how many rows there are.
        top_k: a tensor as it was noted; None: off for all rows, whatever was noted.
        top_p: the same.
    """
    found = []
    for tensor in (top_k, top_p):
        if tensor is not None:
            noted = _noted.get(tensor)
            if noted is None or noted.version != tensor._version:
                return None
            found.append(noted.facts)
    facts = found[0] if found else unfiltered(rows)
    if any(other is not facts for other in found) or len(facts.temperature) != rows:
        return None
    return with_absent_filters(facts, top_k, top_p)


def unfiltered(rows: int) -> RowFacts:
    """Returns the facts of rows that are drawn from as they are."""
    ones: npt.NDArray[np.float32] = np.ones(rows, np.float32)
    return RowFacts(ones, np.full(rows, SKIP_TOP_K, np.int32), ones, np.zeros(rows, np.float32))


def with_absent_filters(facts: RowFacts, top_k: Tensor | None, top_p: Tensor | None) -> RowFacts:
    """Returns the same facts, with each filter that comes as None switched off."""
    off = unfiltered(len(facts.temperature))
    return RowFacts(
        facts.temperature,
        off.top_k if top_k is None else facts.top_k,
        off.top_p if top_p is None else facts.top_p,
        facts.min_p,
    )
