"""Logits that every rank of an engine has a part of, and that are gathered when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


class LateGather(Tensor):
    """Stands for logits of the whole vocabulary; any operation on it gathers them, on all ranks at the same place.

    Whoever takes `part` spares that. Everybody else sees the tensor that an engine gathers before.

    Args:
        part: floats [rows, columns of this rank].
        vocab_size: how many columns the gathered logits have.
        gather: makes them of the part: a collective.

    Attributes:
        part: as it was given.

    Example:
        >>> import torch
        >>> late = LateGather(torch.tensor([[1.0, 2.0]]), 4, lambda part: torch.cat((part, part + 2), 1))
        >>> late.shape, late.is_gathered
        (torch.Size([1, 4]), False)
        >>> late[0, 1] = 9
        >>> late.whole(), late.is_gathered
        (tensor([[1., 9., 3., 4.]]), True)
    """

    part: Tensor
    _gather: Callable[[Tensor], Tensor]
    _whole: Tensor | None

    @staticmethod
    def __new__(cls, part: Tensor, vocab_size: int, gather: Callable[[Tensor], Tensor]) -> LateGather:
        """Makes a tensor without memory of its own: what reads it past `__torch_dispatch__` finds nothing."""
        late: LateGather = Tensor._make_wrapper_subclass(
            cls, (len(part), vocab_size), dtype=part.dtype, device=part.device
        )
        late.part, late._gather, late._whole = part, gather, None
        return late

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LateGather({list(self.shape)}, {self.dtype}, is_gathered={self.is_gathered})"

    @property
    def is_gathered(self) -> bool:
        """Tells whether somebody has looked at it, and may have changed it."""
        return self._whole is not None

    def whole(self) -> Tensor:
        """Returns the gathered logits, with what was done to them since."""
        if self._whole is None:
            self._whole = self._gather(self.part)
        return self._whole

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it with the function first
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Does what is asked for to the gathered logits."""
        return func(*tree_map(whole_of, args), **tree_map(whole_of, kwargs or {}))

    def data_ptr(self) -> int:
        """Returns where the gathered logits are."""
        return self.whole().data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """Returns the gathered logits as an array."""
        return self.whole().numpy(force=force)

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        return self.whole().__dlpack__(*arguments, **named)


def whole_of(value: Any) -> Any:
    """Returns the gathered logits where they are late, else the value."""
    return value.whole() if isinstance(value, LateGather) else value


def part_of(logits: Tensor) -> Tensor | None:
    """Returns the part of a rank where nobody has gathered the logits yet; else None."""
    return logits.part if isinstance(logits, LateGather) and not logits.is_gathered else None


__all__ = ["LateGather", "part_of", "whole_of"]
