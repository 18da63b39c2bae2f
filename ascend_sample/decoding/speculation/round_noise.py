"""The noise of a round of drafting and judging: the host knows where rows are, makes it, and sends it at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.sampling import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys, KnownNoise, can_be_sent, sent


class JudgingNoise(NamedTuple):
    """What judging a draft reads, on the device, at each place where the draft may end.

    Attributes:
        acceptance: float32 [batch, count], by places.
        resampling: float32 [batch, vocab_size], of the first place alone.
        bonus: float32 [batch, count + 1, lanes].
    """

    acceptance: Tensor
    resampling: Tensor
    bonus: Tensor


class RoundNoise:
    """The noise of a round of rows on a device, with the same numbers as are made there.

    How many drafts will be accepted the host does not know, so it makes the noise of all places where they may end.
    What is asked for first brings what will be asked for later: one copy, which nobody waits for.

    Args:
        sampling: how each row is sampled; logits of the model have been drawn from already.
        lengths: int64 [batch] on the CPU, how many tokens each row has.
        wanted: int64 [batch] on the CPU, how many drafts are wanted of each.
        count: how many drafts are judged of each.
        is_for_judging: the round reads its own noise for that, and leaves it to nobody else.

    Source: docs/decoding.md, section "What a step asks of a device".
    """

    def __init__(
        self, sampling: RowSampling, lengths: Tensor, wanted: Tensor, count: int, is_for_judging: bool
    ) -> None:
        self.lengths, self.wanted = lengths, wanted
        self._sampling, self._count, self._is_for_judging = sampling, count, is_for_judging
        self._is_asked = False
        self._judging: JudgingNoise | None = None

    def of_drafts(self, positions: Tensor, lanes: int) -> Tensor | None:
        """Returns the noise with which a drafter draws, before anything is judged.

        Args:
            positions: int64 [batch, count] on the CPU.
            lanes: how many numbers each place has.

        Returns:
            float32 [count, batch, lanes] on the device; None where that would be too much to be sent.
        """
        places = positions.shape[1]
        by_places = positions.t().reshape(-1)
        found = self._send(self._known(Purpose.DRAFT, by_places, lanes, self._sampling.seed_here.repeat(places)))
        return None if found is None else found.view(places, -1, lanes)

    def of_judging(self) -> JudgingNoise | None:
        """Returns the noise with which a draft is judged; None where that would be too much to be sent."""
        if not self._is_asked:
            self._send()
        return self._judging

    def _known(self, purpose: Purpose, positions: Tensor, lanes: int, seeds: Tensor) -> KnownNoise:
        return KnownNoise(DrawKeys(seeds.numpy(), positions.numpy()), lanes, purpose)

    def _send(self, drafts: KnownNoise | None = None) -> Tensor | None:
        """Sends what judging reads, and what comes before it; returns the latter."""
        self._is_asked = True
        sampling, count = self._sampling, self._count
        parts = [] if drafts is None else [drafts]
        of_judging = (
            (Purpose.ACCEPTANCE, count, 1),
            (Purpose.RESAMPLING, 1, sampling.vocab_size),
            (Purpose.DRAW, count + 1, sampling.lanes),
        )
        for purpose, places, lanes in of_judging if self._is_for_judging else ():
            positions = (self.lengths[:, None] + torch.arange(places, device="cpu")).flatten()
            parts.append(self._known(purpose, positions, lanes, sampling.seed_here.repeat_interleave(places)))
        if not can_be_sent(parts):
            return None
        if not self._is_for_judging:
            return sent(parts, sampling.seed.device)[0]
        *before, acceptance, resampling, bonus = sent(parts, sampling.seed.device)
        self._judging = JudgingNoise(acceptance.view(-1, count), resampling, bonus.unflatten(0, (-1, count + 1)))
        return before[0] if before else None
