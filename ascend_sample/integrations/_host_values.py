"""What the host knows of parameters that an engine hands over as device tensors alone.

Engines make those tensors from host arrays. Where they do, `note` keeps what was copied; where the tensor arrives,
`facts_of` finds it. Facts belong to a tensor's content, so they hold as long as torch has counted no write to it, or to
whatever it is a view of; nothing is read from a device.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ascend_sample.sampling.rows.parameters import Facts


class _Noted(NamedTuple):
    """What a tensor held at one of its versions."""

    version: int
    facts: Facts


_noted: Final[WeakTensorKeyDictionary] = WeakTensorKeyDictionary()


def note(facts: Facts, *tensors: Tensor | None) -> None:
    """Keeps facts for as long as these tensors live and hold what they hold now.

    Args:
        facts: of the rows, in arrays that nobody writes to: the temperature, and what the tensors hold.
        tensors: those in which an engine will hand the rows over. None, and an inference tensor, whose writes torch
            does not count, are passed over.
    """
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            _noted[tensor] = _Noted(tensor._version, facts)


def facts_of(rows: int, *tensors: Tensor | None) -> Facts | None:
    """Returns the facts that were noted for these very tensors; None where there are none, or they may not hold now.

    Args:
        rows: how many rows there are.
        tensors: as they were noted; None for a filter that is off for all rows, whatever was noted. Of None alone all
            is known: nothing is on.
    """
    found: list[Facts] = []
    for tensor in tensors:
        if tensor is not None:
            noted = _noted.get(tensor)
            if noted is None or noted.version != tensor._version:
                return None
            found.append(noted.facts)
    if not found:
        return {"temperature": np.ones(rows, np.float32)}
    is_one = all(facts is found[0] for facts in found)
    return found[0] if is_one and len(found[0]["temperature"]) == rows else None
