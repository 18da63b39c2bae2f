"""From logits to the distributions that tokens are drawn from, of many places of each row at once, and draws from them.

`sample_rows` draws without ever having the distribution. Speculative sampling compares two of them, so it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling import (
    RowFacts,
    RowsOutput,
    SamplingBatch,
    SamplingParams,
    Stream,
    exponential_noise,
    routes,
)
from ascend_sample.sampling.best_tokens import without_nan
from ascend_sample.sampling.routes import LARGEST_FUSED_K
from ascend_sample.sampling.row_parameters import RowParameters
from ascend_sample.sampling.serving import PlacedGroup, exceeded, place_groups, serve
from ascend_sample.sampling.total_order import mask_below_top_k

LARGEST = torch.finfo(torch.float32).max


class RowSampling:
    """How each row of a batch is sampled: temperature, top-k, top-p, min-p and seed, on the device of its logits.

    Args:
        params: one for each row; only `row_params.DRAW_FIELDS` count.
        vocab_size: how many columns the logits have.
        device: where they are.
        generator: where the seeds of rows without one come from, on the CPU; None is torch's default one.

    Attributes:
        seed: int64 [batch], the bits of each row's seed.
        is_greedy: whether all rows are (temperature 0): their tokens are known without any distribution.

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
        host = batch.host
        self._facts = RowFacts(host.temperature.copy(), host.top_k.copy(), host.top_p.copy(), host.min_p.copy())
        self._parameters = RowParameters(
            batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed, batch.position
        )
        self.seed = batch.seed
        self._batch_size = len(params)
        self._rows = torch.arange(len(params), device=device)
        is_k_on = (self._facts.top_k >= 1) & (self._facts.top_k < vocab_size)
        is_greedy = self._facts.temperature == 0
        self.is_greedy = bool(is_greedy.all())
        self._has_top_p = bool((self._facts.top_p < 1).any())
        self._has_min_p = bool((self._facts.min_p > 0).any())
        self._is_filtered = self._has_top_p or self._has_min_p or bool((is_k_on | is_greedy).any())
        self._has_large_k = bool((is_k_on & (self._facts.top_k > LARGEST_FUSED_K) & ~is_greedy).any())
        self._has_temperature = bool((self._facts.temperature != 1).any())
        self._repeated: dict[int, RowParameters] = {}
        self._groups: dict[tuple[torch.dtype, int], Sequence[PlacedGroup]] = {}

    def draw(self, logits: Tensor, position: Tensor) -> Tensor:
        """Draws one token a row, or one at each of several places of it, as `sample` does.

        Args:
            logits: floats [batch, vocab_size] or [batch, places, vocab_size].
            position: int64 [batch] or [batch, places], the number of tokens before the one that is drawn.

        Returns:
            int64 in the shape of position.
        """
        if logits.dim() == 2:
            return self.draw_with_status(logits, position).token_ids
        return self.draw_with_status(logits.flatten(0, 1), position.flatten()).token_ids.view(position.shape)

    def draw_with_status(self, logits: Tensor, position: Tensor) -> RowsOutput:
        """Draws from logits [batch * places, vocab_size] at position [batch * places], those of a row together."""
        key = (logits.dtype, logits.shape[0] // self._batch_size)
        if key not in self._groups:
            facts, parameters, places = self._facts, self._parameters, key[1]
            if places > 1:
                facts = facts.select(np.arange(self._batch_size).repeat(places))
                parameters = parameters.select(self._rows.repeat_interleave(places))
            self._groups[key] = place_groups(facts, parameters, logits, keep_ties=False)
        return serve([(logits, group) for group in self._groups[key]], position, False, Stream.DRAW)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns the distribution each place is drawn from: softmax(logits / temperature) among what the filters keep.

        All places of all rows at once: by a native operator on the CPU, elsewhere with the fused operator's filters. A
        greedy row's has a single 1. NaN counts as -inf; entries of +inf share the whole mass; a place without any
        logit above -inf is all NaN.

        Args:
            logits: floats [batch, places, vocab_size], or [batch, vocab_size] of one place. They stay as they are.

        Returns:
            float32 in the shape of logits.
        """
        rows = logits.flatten(0, -2)
        own = self._of_places(rows.shape[0] // self._batch_size, rows.shape[1])
        found = self._in_one_pass(rows, own) if rows.is_cpu else torch.softmax(self._scaled(rows, own), dim=1)
        return found.view(logits.shape)

    def _in_one_pass(self, logits: Tensor, own: RowParameters) -> Tensor:
        """Reads, filters and normalises each row while it is in a cache, on the CPU."""
        if self._has_large_k:  # the operator skips it
            logits = mask_below_top_k(without_nan(logits), own.top_k, keep_ties=False)
        found: Tensor = torch.ops.ascend_sample.filter_probabilities(
            logits, own.temperature, own.top_k, own.top_p, own.min_p
        )
        return found

    def _scaled(self, logits: Tensor, own: RowParameters) -> Tensor:
        """Returns logits [rows, vocab_size] less their maximum, divided by the temperature, -inf where filtered."""
        # Finite: the difference from an infinite maximum would be NaN.
        values = torch.nan_to_num(logits.float(), -torch.inf, LARGEST, -torch.inf)
        values.sub_(values.amax(1, keepdim=True).clamp(min=-LARGEST))
        if self._has_temperature:
            values.div_(torch.where(own.temperature == 0, 1.0, own.temperature).unsqueeze(1))
        return self._filtered(values, own) if self._is_filtered else values

    def _filtered(self, values: Tensor, own: RowParameters) -> Tensor:
        """Returns the values, with -inf in the place of what the filters do not keep."""
        if self._has_large_k:  # the operators skip it
            values = mask_below_top_k(values, own.top_k, keep_ties=False)
        is_fused = routes.abilities_of(values.device, values.dtype).fused_v2
        name = "top_k_top_p_sample_v2" if is_fused else "top_k_top_p_sample_v2_composite"
        min_p = own.min_p if self._has_min_p else None
        operator = getattr(torch.ops.ascend_sample, name)
        kept: Tensor = operator(values, own.top_k, exceeded(own.top_p), None, min_p, 0.0, True, 32, LARGEST_FUSED_K)[1]
        return kept

    def _of_places(self, places: int, vocab_size: int) -> RowParameters:
        """Returns the parameters in the operators' terms, those of each row as often as it has places."""
        if places not in self._repeated:
            own = self._parameters.for_operators(vocab_size)
            rows = self._rows.repeat_interleave(places)
            self._repeated[places] = replace(own.select(rows), position=rows)
        return self._repeated[places]


def draw_from(weights: Tensor, seed: Tensor, position: Tensor, stream: Stream) -> Tensor:
    """Draws one token a row from weights that need not sum to 1: the argmax of weight / exponential noise.

    Args:
        weights: float32 [batch, vocab_size] >= 0; a weight of 0 is never drawn.
        seed: int64 [batch].
        position: int64 [batch], the number of tokens before the one that is drawn.
        stream: which of the independent noises of a seed and a position.

    Returns:
        int64 [batch]; 0 for a row of NaN.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> draw_from(torch.tensor([[0.0, 0.0, 0.3, 0.0]]), zero, zero, Stream.DRAFT)
        tensor([2])
    """
    return (weights / exponential_noise(seed, position, weights.shape[1], stream=stream)).argmax(dim=1)
