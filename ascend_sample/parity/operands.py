"""Tensors with a memory layout: contiguous, offset, strided, transposed or expanded.

A view does not survive a copy to another device, so an operand holds the memory behind the view and makes the view
there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class Layout(enum.Enum):
    """How the values lie in memory."""

    CONTIGUOUS = "contiguous"
    OFFSET = "offset"
    STRIDED = "strided"
    TRANSPOSED = "transposed"
    EXPANDED = "expanded"


@dataclass(frozen=True)
class Operand:
    """Memory, and the view of it that is passed to the operator."""

    memory: torch.Tensor
    layout: Layout
    expanded_size: int

    @classmethod
    def arrange(cls, values: torch.Tensor, layout: Layout, filler: float) -> Operand:
        """Lays values out.

        Args:
            values: `[B]` or `[B, V]`.
            layout: the layout. EXPANDED repeats the first row; a vector cannot be TRANSPOSED and becomes STRIDED.
            filler: what lies between the values: something that changes the result when it is read by mistake.

        Returns:
            The operand, whose view holds the values.
        """
        size = values.shape[0]
        if layout is Layout.TRANSPOSED and values.dim() == 1:
            layout = Layout.STRIDED
        match layout:
            case Layout.CONTIGUOUS:
                memory = values.contiguous()
            case Layout.OFFSET:
                memory = torch.cat([torch.full_like(values[:1], filler), values])
            case Layout.STRIDED:
                memory = torch.stack([values, torch.full_like(values, filler)], dim=-1)
            case Layout.TRANSPOSED:
                memory = values.t().contiguous()
            case Layout.EXPANDED:
                memory = values[:1].clone()
        return cls(memory, layout, size)

    @property
    def dtype_name(self) -> str:
        """Returns the dtype's name without its module: "bfloat16"."""
        return str(self.memory.dtype).removeprefix("torch.")

    def view(self, device: torch.device | str | None = None) -> torch.Tensor:
        """Returns the operand, or a copy of it on a device, in its layout."""
        memory = self.memory if device is None else self.memory.to(device, copy=True)
        match self.layout:
            case Layout.CONTIGUOUS:
                return memory
            case Layout.OFFSET:
                return memory[1:]
            case Layout.STRIDED:
                return memory[..., 0]
            case Layout.TRANSPOSED:
                return memory.t()
            case Layout.EXPANDED:
                return memory.expand(self.expanded_size, *memory.shape[1:])
