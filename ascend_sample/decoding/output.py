"""Every strategy returns a `DecodeOutput`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SpeculativeStats(NamedTuple):
    """Tells how speculation went.

    Attributes:
        drafted: int64 [batch, gamma], how often each row's n-th draft token of a round was looked at by the target:
            it was drafted, and the ones before it were accepted.
        accepted: int64 [batch, gamma], how often it was accepted.
        target_passes: how many forward passes the target made, the prefill not counted.
        draft_passes: how many forward passes the drafter made, its prefill not counted.
    """

    drafted: Tensor
    accepted: Tensor
    target_passes: int
    draft_passes: int

    def acceptance_rate(self) -> float:
        """Returns the share of accepted ones among the draft tokens that were looked at; NaN where none was."""
        return float(self.accepted.sum() / self.drafted.sum())


class DecodeOutput(NamedTuple):
    """Holds what a strategy returns. A row is one sequence; those of a prompt follow one another, the best first.

    Attributes:
        sequences: int64 [rows, longest], the tokens that were generated (without the prompt), each row's stop token
            included, then padding.
        sequences_scores: float32 [rows], the hypothesis' score of a beam search; for the others, the sum of the
            log-probabilities of the tokens.
        lengths: int64 [rows], the number of tokens of each sequence, its stop token included.
        beam_indices: int64 [rows, longest], for a beam search: the beam, batch index * num_beams + its number, whose
            extension each token is; -1 at padding. None for the others.
        scores: what each step drew or chose from, float32 [batch * num_beams, vocab_size]; None unless asked for.
        stats: how speculation went; None for the other strategies.
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
