"""Hypotheses that have ended go into a pool, which keeps the best of them, or they keep their beams."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.decoding.beams.backtracking import trace_beams
from ascend_sample.decoding.beams.run import NOTHING, BeamRun, Candidates, exists, first_beams_alone
from ascend_sample.decoding.output import DecodeOutput

EarlyStopping = bool | Literal["never"]


class Ending(Protocol):
    """Decides, of each step's candidates, which go on and which have ended.

    Attributes:
        count: how many candidates each group of beams chooses.
    """

    count: int

    def going_on(self, candidates: Candidates, is_stopped: Tensor | None) -> Candidates:
        """Returns the candidates of a group that become its beams.

        Args:
            candidates: of all prompts, [batch, count].
            is_stopped: bool [batch, count], which end with a stop token or by a criterion; None: none.
        """
        ...

    def take_step(self, candidates: list[Candidates], is_stopped: list[Tensor], length: int) -> Tensor:
        """Takes in the candidates of all groups; returns which prompts are done, bool [batch].

        Args:
            candidates: of each group, as for `going_on`; they have length tokens.
            is_stopped: of each group; empty where none is.
            length: how many tokens the candidates have.
        """
        ...

    def finish(self) -> DecodeOutput:
        """Returns the hypotheses as the strategy's answer."""
        ...


def check_early_stopping(strategy: str, early_stopping: object) -> None:
    """Raises unless it is True, False or "never"."""
    if not (isinstance(early_stopping, bool) or early_stopping == "never"):
        rule = 'be True, False or "never"'
        refuse(strategy, "early_stopping", rule, repr(early_stopping), "Use False for what transformers does.")


class Hypotheses(NamedTuple):
    """Holds sequences that have ended, [batch, count] in each tensor."""

    scores: Tensor  # float32, sums of log-probabilities / length ** length_penalty; NOTHING where there is none
    lengths: Tensor  # int64, how many tokens each has, the last one included
    beams: Tensor  # int64, the beam that the last token was appended to
    tokens: Tensor  # int64, the last token


class FinishedPool:
    """Keeps the best finished hypotheses of each group of beams of each prompt, apart from the beams that go on.

    Args:
        run: the search.
        num_return_sequences: how many hypotheses of each prompt are returned.
        length_penalty: the exponent of the length that sums of log-probabilities are divided by.
        early_stopping: when a group is done. True: when it has as many hypotheses as beams. False: when its best beam,
            at its present length, is no better than the worst of them. "never": as False, at the length that is best
            for it.
        groups: how many groups the beams of a prompt are divided into; each has its own pool.
        takes_beams: two rules of group beam search. At the end of a prompt all beams that go on come into the pool, and
            not those candidates that are among the best; and the chance to get better is that of the best candidate,
            also where this one ends.

    Attributes:
        hypotheses: what is in the pools, [batch * groups, beams of a group], the best first.
        done: bool [batch, groups], the groups whose pool does not change any more.
    """

    def __init__(
        self,
        run: BeamRun,
        num_return_sequences: int,
        length_penalty: float,
        early_stopping: EarlyStopping,
        groups: int = 1,
        takes_beams: bool = False,
    ) -> None:
        request = run.request
        # What is read in each step is kept where it is read.
        device = torch.device("cpu") if request.has_ends else request.device
        self._run, self._num_return_sequences, self._takes_beams = run, num_return_sequences, takes_beams
        self._length_penalty, self._early_stopping = length_penalty, early_stopping
        self._size = run.num_beams // groups
        # Each beam may end with each of the stop tokens.
        self.count = max(2, 1 + len(request.eos_token_ids)) * self._size
        self._max_new_tokens = request.max_new_tokens.to(device).repeat_interleave(groups)
        shape = (request.batch_size * groups, self._size)
        nowhere = torch.zeros(shape, dtype=torch.int64, device=device)
        nothing = torch.full(shape, NOTHING, device=device, dtype=torch.float32)
        self.hypotheses = Hypotheses(nothing, nowhere, nowhere, nowhere)
        self.done = torch.zeros(request.batch_size, groups, dtype=torch.bool, device=device)

    def going_on(self, candidates: Candidates, is_stopped: Tensor | None) -> Candidates:
        """Returns the best candidates that have not ended; where there are fewer, beams without a hypothesis."""
        if is_stopped is None:
            return Candidates(*(value[:, : self._size] for value in candidates))
        scores, order = candidates.scores.masked_fill(is_stopped, NOTHING).sort(dim=1, descending=True, stable=True)
        beams, tokens = (value.gather(1, order[:, : self._size]) for value in (candidates.beams, candidates.tokens))
        return Candidates(scores[:, : self._size], beams, tokens)

    def take_step(self, candidates: list[Candidates], is_stopped: list[Tensor], length: int) -> Tensor:
        """See `Ending.take_step`."""
        run = self._run
        if is_stopped or length >= run.shortest:
            of_groups = len(candidates)
            read = run.read_if_asked(*(value for group in candidates for value in group), *is_stopped)
            scores, beams, tokens = (_by_prompt(read[part : 3 * of_groups : 3]) for part in range(3))
            stopped = _by_prompt(read[3 * of_groups :]) if is_stopped else torch.zeros_like(scores, dtype=torch.bool)
            self._take(Candidates(scores, beams, tokens), stopped, length)
        return self.done.all(dim=1)

    def _take(self, candidates: Candidates, is_stopped: Tensor, length: int) -> None:
        """Takes in the candidates of each group of each prompt, [batch * groups, count]."""
        at_the_end = (length >= self._max_new_tokens)[:, None]
        has_ended = is_stopped if self._takes_beams else is_stopped | at_the_end
        # The others are there only so that enough beams go on.
        among_best = torch.arange(has_ended.shape[1], device=has_ended.device) < self._size
        self._add(candidates, has_ended & among_best, length)
        of_best = candidates.scores if self._takes_beams else candidates.scores.where(~has_ended, NOTHING)
        self._update_done(of_best.amax(dim=1), length)
        if self._takes_beams:
            beams = self.going_on(candidates, is_stopped)
            self._add(beams, at_the_end.expand_as(beams.scores), length)
        self.done = self.done | at_the_end.view_as(self.done)

    def _add(self, candidates: Candidates, is_finished: Tensor, length: int) -> None:
        """Takes the candidates of length tokens that are finished, bool [batch * groups, count], and good enough."""
        is_new = is_finished & exists(candidates.scores) & ~self.done.view(-1, 1)
        scores = (candidates.scores / float(length) ** self._length_penalty).where(is_new, NOTHING)
        new = Hypotheses(scores, torch.full_like(candidates.beams, length), candidates.beams, candidates.tokens)
        self.hypotheses = best_hypotheses(
            Hypotheses(*(torch.cat(values, dim=1) for values in zip(self.hypotheses, new, strict=True))), self._size
        )

    def _update_done(self, best_sums: Tensor, length: int) -> None:
        """Notes which groups are done because their pools could not get better, or need not.

        Args:
            best_sums: float32 [batch * groups], the sum of log-probabilities of the best hypothesis that could still
                get better.
            length: how many tokens that has.
        """
        worst = self.hypotheses.scores[:, -1]
        stops = exists(worst)
        if self._early_stopping is not True:
            stops &= worst >= best_sums / self._best_length(length) ** self._length_penalty
        self.done = self.done | (stops | ~exists(best_sums)).view_as(self.done)

    def _best_length(self, length: int) -> Tensor | float:
        """Returns the length at which a beam of length tokens is compared with the pool, for each group or for all."""
        if self._early_stopping == "never" and self._length_penalty > 0.0:
            return self._max_new_tokens.to(torch.float32)
        return float(length)

    def finish(self) -> DecodeOutput:
        """Returns the best hypotheses of all groups, each backtracked from the step where it ended."""
        run = self._run
        of_prompts = Hypotheses(*(value.view(run.request.batch_size, -1) for value in self.hypotheses))
        step_tokens, step_beams = run.recorded()
        found = best_hypotheses(of_prompts, self._num_return_sequences)
        found = Hypotheses(*(value.to(step_tokens.device) for value in found))
        tokens, beams = trace_beams(step_tokens, step_beams, found.beams, found.lengths - 1)
        last = (found.lengths - 1).clamp_min(0)[None]
        tokens = tokens.scatter(0, last, found.tokens[None])
        beams = beams.scatter(0, last, found.beams[None])
        return run.finish(found.scores, found.lengths, tokens, beams)


def best_hypotheses(hypotheses: Hypotheses, count: int) -> Hypotheses:
    """Returns the best count hypotheses, and of equal ones those that come first."""
    order = hypotheses.scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return Hypotheses(*(value.gather(1, order) for value in hypotheses))


def _by_prompt(values: list[Tensor]) -> Tensor:
    """Returns the values of groups, [batch, n] each, as [batch * groups, n]."""
    return values[0] if len(values) == 1 else torch.stack(values, dim=1).flatten(0, 1)


class KeptBeams:
    """Lets hypotheses that have ended keep their beams, and compete there with those that go on.

    Args:
        run: the search.
        num_return_sequences: how many hypotheses of each prompt are returned.
        length_penalty: the exponent of GNMT's penalty, by which scores are divided at the end.
    """

    def __init__(self, run: BeamRun, num_return_sequences: int, length_penalty: float) -> None:
        self._run, self._num_return_sequences, self._length_penalty = run, num_return_sequences, length_penalty
        request, self.count = run.request, run.num_beams
        shape, device = (request.batch_size, run.num_beams), request.device
        self._scores = torch.zeros(shape, dtype=torch.float32, device=device)
        self._ended = torch.zeros(shape, dtype=torch.bool, device=device)
        self._lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        # What has ended has one continuation, which is itself: no token counts, and the score stays.
        self._itself = first_beams_alone(1, min(run.num_beams, run.vocab_size), device)
        self._padding = torch.tensor(request.pad_token_id, device=device)

    def best_of_each_beam(self) -> tuple[Tensor, Tensor]:
        """Returns what `BeamRun.best_of_each_beam` does, and of a beam that has ended nothing but itself."""
        log_probs, tokens = self._run.best_of_each_beam(self.count)
        log_probs = torch.where(self._ended[:, :, None], self._itself, log_probs)
        return log_probs, torch.where(self._ended[:, :, None], self._padding, tokens)

    def going_on(self, candidates: Candidates, is_stopped: Tensor | None) -> Candidates:
        """See `Ending.going_on`. All do."""
        return candidates

    def take_step(self, candidates: list[Candidates], is_stopped: list[Tensor], length: int) -> Tensor:
        """See `Ending.take_step`. All that belongs to a hypothesis moves with it."""
        run, (chosen,) = self._run, candidates
        self._scores = chosen.scores
        had_ended = self._ended.gather(1, chosen.beams)
        self._lengths = self._lengths.gather(1, chosen.beams) + ~had_ended
        for stopped in is_stopped:
            had_ended = had_ended | stopped
        if length >= run.shortest:
            had_ended = had_ended | (length >= run.request.max_new_tokens[:, None])
        self._ended = had_ended
        return run.read_if_asked((self._ended | ~exists(self._scores)).all(dim=1))[0]

    def finish(self) -> DecodeOutput:
        """Returns the best hypotheses, by their scores and lengths."""
        run, scores = self._run, self._scores
        penalty = ((5.0 + self._lengths.to(torch.float32)) / 6.0) ** self._length_penalty
        final = (scores / penalty).where(exists(scores), NOTHING)
        order = final.sort(dim=1, descending=True, stable=True).indices[:, : self._num_return_sequences]
        step_tokens, step_beams = run.recorded()
        tokens, beams = trace_beams(step_tokens, step_beams, order, torch.full_like(order, len(step_tokens)))
        return run.finish(final.gather(1, order), self._lengths.gather(1, order), tokens, beams)
