"""What every adapter does with rows, and the one place in which they call the sampling layer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling import RowFacts, filter_logits, row_table, sample_rows

SMALLEST_TOP_P: Final = 2.0**-126  # keeps one token, as a top_p of 0 does where an engine allows that


def draw(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seed: Tensor,
    position: Tensor,
    keep_ties: bool = False,
    facts: RowFacts | None = None,
) -> Tensor:
    """Draws one token a row with `sample_rows`, from parameters in the dtypes in which engines have them.

    Args:
        logits: float [rows, vocab_size].
        temperature: float [rows]; 0 takes the best token.
        top_k: any integer dtype [rows], or None.
        top_p: float [rows], or None.
        min_p: float [rows], or None.
        seed: int64 [rows], on any device.
        position: int64 [rows], on any device.
        keep_ties: top-k keeps every logit that is equal to the k-th.
        facts: what the host knows of the parameters, so that a device's fused operators can serve the rows.

    Returns:
        int64 [rows].
    """
    device = logits.device
    return sample_rows(
        logits,
        temperature=temperature.float(),
        top_k=None if top_k is None else top_k.to(torch.int32),
        top_p=None if top_p is None else top_p.float(),
        min_p=None if min_p is None else min_p.float(),
        seed=to_device(seed, device),
        position=to_device(position, device),
        keep_ties=keep_ties,
        facts=facts,
    ).token_ids


def kept_logits(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None = None,
    keep_ties: bool = False,
) -> Tensor:
    """Returns logits / temperature where the filters keep an entry, and -inf elsewhere; arguments are as for `draw`.

    Returns:
        float32 [rows, vocab_size], a softmax of which is what `draw` draws from.
    """
    return filter_logits(
        logits,
        temperature=temperature.float(),
        top_k=None if top_k is None else top_k.to(torch.int32),
        top_p=None if top_p is None else top_p.float(),
        min_p=None if min_p is None else min_p.float(),
        keep_ties=keep_ties,
    )


class UniformRows:
    """Rows that share their parameters, as all rows of one call of an engine without requests do.

    Args:
        temperature: 0 takes the best token.
        top_k: None is off.
        top_p: 1 is off.
        min_p: 0 is off.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        keep_ties: bool = False,
    ) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = max(top_p, SMALLEST_TOP_P)
        self.min_p = min_p
        self.keep_ties = keep_ties
        self._tensors: dict[str, Any] = {}
        self._facts: RowFacts | None = None
        self._made_for: tuple[int, torch.device] | None = None

    def draw(self, logits: Tensor, seed: Tensor, position: Tensor) -> Tensor:
        """Draws one token a row, int64 [rows]."""
        parameters = self._parameters(logits)
        noise = {"seed": seed, "position": position}
        return draw(logits, **parameters, **noise, keep_ties=self.keep_ties, facts=self._facts)

    def filter(self, logits: Tensor) -> Tensor:
        """Returns what is drawn from: float32 [rows, vocab_size], -inf where a filter drops an entry."""
        return kept_logits(logits, **self._parameters(logits), keep_ties=self.keep_ties)

    def _parameters(self, logits: Tensor) -> dict[str, Any]:
        """Returns a value a row for each parameter, made once for a batch size and a device."""
        rows, device = len(logits), logits.device
        if self._made_for != (rows, device):
            top_k = None if self.top_k is None else min(self.top_k, SKIP_TOP_K)
            self._tensors = {
                "temperature": torch.full((rows,), self.temperature, device=device),
                "top_k": None if top_k is None else torch.full((rows,), top_k, dtype=torch.int32, device=device),
                "top_p": None if self.top_p >= 1 else torch.full((rows,), self.top_p, device=device),
                "min_p": None if self.min_p <= 0 else torch.full((rows,), self.min_p, device=device),
            }
            self._facts = RowFacts(
                np.full(rows, self.temperature, dtype=np.float32),
                np.full(rows, SKIP_TOP_K if top_k is None else top_k, dtype=np.int32),
                np.full(rows, min(self.top_p, 1.0), dtype=np.float32),
                np.full(rows, self.min_p, dtype=np.float32),
            )
            self._made_for = (rows, device)
        return self._tensors


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device, without waiting for it."""
    if tensor.device.type == "cpu" and device.type != "cpu":
        return row_table.to_device(tensor.numpy(), device)
    return tensor.to(device, non_blocking=True)
