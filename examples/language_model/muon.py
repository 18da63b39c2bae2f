"""The Muon optimizer in float32: momentum whose matrices are made orthogonal before they are taken as a step.

torch.optim.Muon computes its iteration in bfloat16, which CPUs without instructions for it emulate, slowly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the iteration's polynomial, by K. Jordan et al., "Muon", 2024: five steps bring singular values close to 1."""
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, with decoupled weight decay; for parameters that are matrices.

    Args:
        parameters: the matrices.
        lr: the learning rate of a square or wide matrix; a tall one's is larger by sqrt(rows / columns).
        weight_decay: what a step takes off the weights, times lr.
        momentum: how much of the last step's direction stays.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Moves every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                updates = orthogonalized(torch.stack([self._direction(one, group["momentum"]) for one in matrices]))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.sub_(update, alpha=group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5)

    def _direction(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        gradient = matrix.grad
        assert gradient is not None, "it was looked for"
        direction: Tensor = self.state[matrix].setdefault("direction", torch.zeros_like(matrix))
        direction.lerp_(gradient, 1 - momentum)
        return gradient.lerp(direction, momentum)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Returns about U V^T of each matrix U S V^T: its singular values become about 1.

    What the iteration multiplies by depends on M M^T alone, which is smaller than M, and commutes with all of it.

    Args:
        matrices: [matrices, rows, columns]; many small ones take little longer than one.

    Example:
        >>> orthogonalized(torch.tensor([3.0, 2.0]).diag()[None])[0].diag().round()
        tensor([1., 1.])
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalized(matrices.mT).mT
    matrices = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    gram = matrices @ matrices.mT
    product = factor = _polynomial(gram)
    for _ in range(STEPS - 1):
        gram = factor @ gram @ factor
        factor = _polynomial(gram)
        product = factor @ product
    return product @ matrices


def _polynomial(gram: Tensor) -> Tensor:
    """Returns first + third * M M^T + fifth * (M M^T)^2."""
    first, third, fifth = COEFFICIENTS
    factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
    factor.diagonal(dim1=1, dim2=2).add_(first)
    return factor
