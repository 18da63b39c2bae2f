"""The Muon optimizer in float32: momentum whose matrices are made orthogonal before they are taken as a step.

torch.optim.Muon computes its iteration in bfloat16, which CPUs without instructions for it emulate, slowly.
"""

from __future__ import annotations

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
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                direction = state.setdefault("direction", torch.zeros_like(matrix))
                direction.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalized(matrix.grad.lerp(direction, group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update, alpha=group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Returns about U V^T of the matrix U S V^T: its singular values become about 1.

    What the iteration multiplies by depends on M M^T alone, which is smaller than M, and commutes with all of it.

    Example:
        >>> orthogonalized(torch.diag(torch.tensor([3.0, 2.0]))).diag().round()
        tensor([1., 1.])
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    first, third, fifth = COEFFICIENTS
    matrix = matrix / (matrix.norm() + 1e-7)
    gram = matrix @ matrix.T
    product = torch.eye(len(gram), dtype=gram.dtype)
    for _ in range(STEPS):
        factor = torch.addmm(gram, gram, gram, beta=third, alpha=fifth)
        factor.diagonal().add_(first)
        product = factor @ product
        gram = factor @ gram @ factor
    return product @ matrix
