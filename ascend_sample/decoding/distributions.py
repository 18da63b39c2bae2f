"""Distributions and noise that drafts are drawn with, and the best tokens of greedy rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ascend_sample.decoding.places import Places
from ascend_sample.sampling import Purpose, SamplingBatch, SamplingParams, exponential_noise, sample_rows
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions

MAX_SENT_NUMBERS: Final = 2**24
"""The host makes up to so many numbers of noise, 64 MiB, and sends them in one copy; the device makes more."""


class RowSampling:
    """Requests of a batch, and the distributions and the noise that drafts of their rows are drawn with.

    Args:
        params: one for each row.
        vocab_size: how many columns the logits have.
        device: where they are.
        generator: where the seeds of rows without one come from, on the CPU; None is torch's default one.
        prompts: the tokens of each row so far, for penalties and rules that look at them. None: there are none.

    Attributes:
        batch: the requests.
        is_greedy: whether all rows are (temperature 0): their tokens are known without any distribution.
        places: those of the device.

    Example:
        >>> rows = RowSampling([SamplingParams(temperature=0.5, top_k=2)], 3, torch.device("cpu"))
        >>> rows.probabilities(torch.tensor([[0.3, 0.6, 0.1]]).log())
        tensor([[0.2000, 0.8000, 0.0000]])

    Source: docs/decoding.md, section "Speculative sampling".
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.batch = SamplingBatch(vocab_size, device, capacity=len(params), generator=generator)
        self.batch.extend(params, prompts)
        self.is_greedy = all(one.temperature == 0 for one in params)
        self.places = Places(device)
        self._distributions = Distributions(self.batch.row_parameters(), vocab_size)
        self._seed_cpu = torch.from_numpy(self.batch.host.seed.copy())

    @property
    def vocab_size(self) -> int:
        """Returns how many columns the logits have."""
        return self.batch.vocab_size

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns what each row is drawn from by temperature, top-k, top-p and min-p alone.

        On a CPU, where distributions are checked, a row without any logit above -inf has token 0; elsewhere it is NaN.

        Args:
            logits: floats [batch, vocab_size]. They stay as they are.

        Returns:
            float32 [batch, vocab_size].
        """
        found = self._distributions.probabilities(logits)
        if found.is_cpu and (is_empty := found[:, 0].isnan()).any():
            found[is_empty] = torch.eye(1, found.shape[1])
        return found

    def draft_noise(self, positions: Tensor) -> Tensor:
        """Returns the noise of `Purpose.DRAFT`, float32 [steps, batch, vocab_size] on the device.

        Args:
            positions: int64 [steps, batch] on the CPU.
        """
        seed, position = self._seed_cpu.repeat(len(positions)), positions.flatten()
        device, vocab_size = self.batch.device, self.vocab_size
        if len(seed) * vocab_size > MAX_SENT_NUMBERS:
            seed, position = to_device(torch.stack((seed, position)).numpy(), device)
        noise = exponential_noise(seed, position, vocab_size, purpose=Purpose.DRAFT)
        if noise.device != device:
            noise = to_device(noise.numpy(), device)
        return noise.view(*positions.shape, vocab_size)


def greedy_tokens(logits: Tensor) -> Tensor:
    """Returns the token with the largest logit, the lowest id among equals; NaN counts as -inf.

    Args:
        logits: floats [..., vocab_size].

    Returns:
        int64 [...].

    Example:
        >>> greedy_tokens(torch.tensor([[torch.nan, 2.0, 2.0], [1.0, 0.0, torch.inf]]))
        tensor([1, 2])
    """
    if not logits.is_cpu:  # two launches
        return logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
    rows = logits.flatten(0, -2)
    zeros = torch.zeros(len(rows), dtype=torch.int64)
    return sample_rows(rows, temperature=zeros.float(), seed=zeros, position=zeros).token_ids.view(logits.shape[:-1])
