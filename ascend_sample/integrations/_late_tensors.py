"""Tensors of an engine that are made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class LateTensor(Tensor):
    """Stands for a tensor that an engine makes of another one; any operation on it makes it.

    Whoever takes `source` spares that. Everybody else sees the tensor that the engine would have made before.

    Args:
        source: what it is made of.
        shape, dtype: of what is made.
        make: makes it of the source.

    Attributes:
        source: as it was given.
    """

    source: Tensor
    _make: Callable[[Tensor], Tensor]
    _whole: Tensor | None

    @staticmethod
    def __new__(
        cls, source: Tensor, shape: Sequence[int], dtype: torch.dtype, make: Callable[[Tensor], Tensor]
    ) -> LateTensor:
        """Makes a tensor without memory of its own: what reads it past `__torch_dispatch__` finds nothing."""
        late: LateTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=source.device)
        late.source, late._make, late._whole = source, make, None
        return late

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({list(self.shape)}, {self.dtype}, is_made={self.is_made})"

    @property
    def is_made(self) -> bool:
        """Tells whether somebody has looked at it, and may have changed it."""
        return self._whole is not None

    def whole(self) -> Tensor:
        """Returns what is made of the source, with what was done to it since."""
        if self._whole is None:
            self._whole = self._make(self.source)
        return self._whole

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it with the function first
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Does what is asked for to what is made."""
        return func(*tree_map(whole_of, args), **tree_map(whole_of, kwargs or {}))

    def data_ptr(self) -> int:
        """Returns where that is."""
        return self.whole().data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """Returns it as an array."""
        return self.whole().numpy(force=force)

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        return self.whole().__dlpack__(*arguments, **named)


class LateGather(LateTensor):
    """Logits of the whole vocabulary, which are gathered on all ranks at the same place.

    Args:
        part: floats [rows, columns of this rank].
        vocab_size: how many columns the gathered logits have.
        gather: makes them of the part: a collective.

    Example:
        >>> late = LateGather(torch.tensor([[1.0, 2.0]]), 4, lambda part: torch.cat((part, part + 2), 1))
        >>> late.shape, late.is_made
        (torch.Size([1, 4]), False)
        >>> late[0, 1] = 9
        >>> late.whole(), late.is_made
        (tensor([[1., 9., 3., 4.]]), True)
    """

    @staticmethod
    def __new__(  # type: ignore[misc]  # mypy sees no instance
        cls, part: Tensor, vocab_size: int, gather: Callable[[Tensor], Tensor]
    ) -> LateTensor:
        """Makes them of a part of the columns."""
        return LateTensor.__new__(cls, part, (len(part), vocab_size), part.dtype, gather)


class LateLogprobs(LateTensor):
    """Log-probabilities of logits that nobody changes before these are made.

    Args:
        logits: floats [rows, vocab_size].

    Example:
        >>> late = LateLogprobs(torch.zeros(1, 2, dtype=torch.bfloat16))
        >>> late
        LateLogprobs([1, 2], torch.float32, is_made=False)
        >>> late.exp()
        tensor([[0.5000, 0.5000]])
    """

    @staticmethod
    def __new__(cls, logits: Tensor) -> LateTensor:  # type: ignore[misc]
        """Makes them in float32."""
        return LateTensor.__new__(cls, logits, logits.shape, torch.float32, _log_softmax)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1, dtype=torch.float32)


def whole_of(value: Any) -> Any:
    """Returns what a late tensor stands for, which is made now, and any other value as it is."""
    return value.whole() if isinstance(value, LateTensor) else value


def source_of(tensor: Tensor, kind: type[LateTensor]) -> Tensor | None:
    """Returns what a late tensor of this kind is made of where nobody has made it yet; else None."""
    return tensor.source if isinstance(tensor, kind) and not tensor.is_made else None
