"""What every strategy returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SpeculativeStats(NamedTuple):
    """How speculation went.

    Attributes:
        drafted: int64 [batch, gamma], how often each row's n-th draft token of a round was looked at by the target:
            it was drafted, and the ones before it were accepted.
        accepted: int64 [batch, gamma], how often it was accepted.
        target_passes: forward passes of the target, the prefill not counted.
        draft_passes: the same of the drafter.
    """

    drafted: Tensor
    accepted: Tensor
    target_passes: int
    draft_passes: int

    def acceptance_rate(self) -> float:
        """Returns the share of accepted ones among the draft tokens that were looked at; NaN where none was."""
        return float(self.accepted.sum() / self.drafted.sum())


class DecodeOutput(NamedTuple):
    """What a strategy returns. A row is one sequence; those of a prompt follow one another, the best first.

    Attributes:
        sequences: int64 [rows, longest], the tokens that were generated (without the prompt), each row's stop token
            included, then padding.
        sequences_scores: float32 [rows]. Of a beam search, the hypothesis' score; of the others, the sum of the log
            probabilities of the tokens.
        lengths: int64 [rows], the tokens of each sequence, its stop token included.
        beam_indices: int64 [rows, longest], of a beam search: the beam, batch index * num_beams + its number, whose
            extension each token is; -1 at padding. None for the others.
        scores: for each step float32 [batch * num_beams, vocab_size], what was drawn or searched from; None unless
            asked for.
        stats: of a speculative strategy.
    """

    sequences: Tensor
    sequences_scores: Tensor
    lengths: Tensor
    beam_indices: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    stats: SpeculativeStats | None = None

    def to_lists(self) -> list[list[int]]:
        """Returns the sequences without their padding."""
        return [row[:length].tolist() for row, length in zip(self.sequences.cpu(), self.lengths.tolist(), strict=True)]
