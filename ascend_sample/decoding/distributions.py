"""Distributions and noise that drafts are drawn with, and the best tokens of greedy rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ascend_sample.decoding.places import Places
from ascend_sample.sampling import Purpose, Sampler, SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions

MAX_SENT_NUMBERS: Final = 2**24
"""The host makes up to so many numbers of noise, 64 MiB, and sends them in one copy; the device makes more."""
GREEDY: Final = SamplingParams(temperature=0, seed=0)
"""The parameters of a greedy row. They have a seed, so that none is taken from torch's generator."""


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
        greedy: what finds the best tokens.
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
        self.greedy = GreedyTokens(vocab_size)
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
            found[is_empty] = torch.eye(1, found.shape[1], device="cpu")
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


class GreedyTokens:
    """Finds the best tokens: those with the largest logit, and of equal ones the lowest id. NaN counts as -inf.

    Args:
        vocab_size: how many columns the logits have.

    Example:
        >>> GreedyTokens(3).of(torch.tensor([[torch.nan, 2.0, 2.0], [1.0, 0.0, torch.inf]]))
        tensor([1, 2])
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._sampler = vocab_size, Sampler()
        self._batches: dict[int, SamplingBatch] = {}  # by their numbers of rows

    def of(self, logits: Tensor) -> Tensor:
        """Returns the best token, int64 [...], of each row of logits, floats [..., vocab_size]."""
        if not logits.is_cpu:  # what the sampling layer does, but for a status that nobody reads
            return logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
        rows = logits.flatten(0, -2)
        if len(rows) not in self._batches:
            self._batches[len(rows)] = SamplingBatch(self._vocab_size, capacity=len(rows))
            self._batches[len(rows)].extend([GREEDY] * len(rows))
        drawn = self._sampler(rows, self._batches[len(rows)], advance=False)
        return drawn.token_ids.view(logits.shape[:-1])
