"""From logits to the distributions that tokens are drawn from, of many places of each row at once, and draws from them.

`sample_rows` draws without ever having the distribution. Speculative sampling compares two of them, so it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_sample.decoding.places import Places
from ascend_sample.sampling import Purpose, SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.rows.parameters import RowParameters
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.serving import Placement, place_groups, serve, serve_with_noise


class RowSampling:
    """How each row of a batch is sampled: by the parameters and the seed of its request, on the device of its logits.

    Args:
        params: one for each row; only the fields of a distribution and of a draw count.
        vocab_size: how many columns the logits have.
        device: where they are.
        generator: where the seeds of rows without one come from, on the CPU; None is torch's default one.

    Attributes:
        seed: int64 [batch], the bits of each row's seed.
        seed_here: the same on the CPU.
        vocab_size: how many columns the logits have.
        lanes: how many numbers of noise the last draw read of each row, at most; 0 on a CPU.
        is_greedy: whether all rows are (temperature 0): their tokens are known without any distribution.
        places: those of its device.

    Example:
        >>> rows = RowSampling([SamplingParams(temperature=0.5, top_k=2)], 3, torch.device("cpu"))
        >>> rows.probabilities(torch.tensor([[[0.3, 0.6, 0.1], [0.1, 0.1, 0.1]]]).log())
        tensor([[[0.2000, 0.8000, 0.0000],
                 [0.5000, 0.5000, 0.0000]]])

    Source: docs/decoding.md, section "Speculative sampling".
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> None:
        batch = SamplingBatch(vocab_size, device, capacity=len(params), generator=generator)
        batch.extend(params)
        self._parameters = {1: batch.row_parameters()}  # by places
        self._distributions: dict[int, Distributions] = {}
        self._placements: dict[tuple[torch.dtype, int], Placement] = {}
        self.vocab_size = vocab_size
        self.lanes = 0
        self._batch_size = len(params)
        self.seed, self.seed_here = batch.seed, torch.from_numpy(batch.host.seed.copy())
        self.places = Places(device)
        self.is_greedy = all(one.temperature == 0 for one in params)

    def draw(
        self, logits: Tensor, position: Tensor, position_here: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Draws one token a row, or one at each of several places of it, as `sample` does.

        Args:
            logits: floats [batch, vocab_size] or [batch, places, vocab_size].
            position: int64 [batch] or [batch, places], the number of tokens before the one that is drawn.
            position_here: the same on the CPU, where that is known: then the noise is made there.
            noise: float32 [batch, lanes], where the device has it already, if it has as many lanes as are read.

        Returns:
            int64 in the shape of position.
        """
        if self.is_greedy and not logits.is_cpu:  # what the sampling layer does, but for a status that nobody reads
            return logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
        if logits.dim() == 2:
            return self._draw(logits, position, position_here, noise)
        return self._draw(logits.flatten(0, 1), position.flatten()).view(position.shape)

    def _draw(
        self, logits: Tensor, position: Tensor, position_here: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Draws from logits [batch * places, vocab_size] at position [batch * places], those of a row together."""
        key = (logits.dtype, logits.shape[0] // self._batch_size)
        if key not in self._placements:
            groups = place_groups(self._of_places(key[1]), logits, keep_ties=False)
            self._placements[key] = Placement.of(groups, logits)
        placement = self._placements[key]
        self.lanes = placement.lanes
        if noise is not None and self.lanes <= noise.shape[1]:
            return serve_with_noise(logits, placement, noise)
        keys = None if position_here is None else DrawKeys(self.seed_here.numpy(), position_here.numpy())
        return serve([logits] * len(placement.groups), placement, position, False, Purpose.DRAW, keys).token_ids

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns the distribution that each place is drawn from, of all places of all rows at once.

        Args:
            logits: floats [batch, places, vocab_size], or [batch, vocab_size] of one place. They stay as they are.

        Returns:
            float32 in the shape of logits; `Distributions` says what becomes of NaN and infinities.
        """
        rows = logits.flatten(0, -2)
        places = rows.shape[0] // self._batch_size
        if places not in self._distributions:
            self._distributions[places] = Distributions(self._of_places(places), self.vocab_size)
        return self._distributions[places].probabilities(rows).view(logits.shape)

    def _of_places(self, places: int) -> RowParameters:
        """Returns the parameters of each row as often as it has places."""
        if places not in self._parameters:
            self._parameters[places] = self._parameters[1].repeated(places)
        return self._parameters[places]


def draw_from(weights: Tensor, seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
    """Draws one token a row from weights that need not sum to 1: the argmax of weight / exponential noise.

    Args:
        weights: float32 [batch, vocab_size] >= 0; a weight of 0 is never drawn.
        seed: int64 [batch].
        position: int64 [batch], the number of tokens before the one that is drawn.
        purpose: which of the independent noises of a seed and a position.

    Returns:
        int64 [batch]; 0 for a row of NaN.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> draw_from(torch.tensor([[0.0, 0.0, 0.3, 0.0]]), zero, zero, Purpose.DRAFT)
        tensor([2])
    """
    return raced(weights, exponential_noise(seed, position, weights.shape[1], purpose=purpose))


def raced(weights: Tensor, noise: Tensor) -> Tensor:
    """Does what `draw_from` does, with noise, float32 [batch, vocab_size], that is there already."""
    return (weights / noise).argmax(dim=1)
