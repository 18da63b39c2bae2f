"""A pool keeps the best finished hypotheses of a prompt, apart from the beams that are still searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.decoding.beams.backtracking import trace_beams
from ascend_sample.decoding.beams.run import NOTHING, BeamRun, Candidates, exists, first_beams_alone
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import steps_of

EarlyStopping = bool | Literal["never"]


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
    """Keeps the best finished hypotheses of each prompt.

    Args:
        request: what was asked for.
        size: how many hypotheses each prompt keeps.
        length_penalty: the exponent of the length that sums of log-probabilities are divided by.
        early_stopping: when a prompt is done. True: when size hypotheses are there. False: when the best beam, at its
            present length, is no better than the worst of them. "never": as False, at the length that is best for it.

    Attributes:
        hypotheses: what is in the pool, [batch, size], the best first.
        done: bool [batch], the prompts whose pool does not change any more.
    """

    def __init__(self, request: Request, size: int, length_penalty: float, early_stopping: EarlyStopping) -> None:
        # What is read in each step is kept where it is read.
        device = torch.device("cpu") if request.has_ends else request.device
        shape = (request.batch_size, size)
        nowhere = torch.zeros(shape, dtype=torch.int64, device=device)
        self.hypotheses = Hypotheses(
            torch.full(shape, NOTHING, device=device, dtype=torch.float32), nowhere, nowhere, nowhere
        )
        self.done = torch.zeros(request.batch_size, dtype=torch.bool, device=device)
        self.size = size
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.max_new_tokens = request.max_new_tokens.to(device)

    def take_step(self, candidates: Candidates, has_ended: Tensor, num_beams: int, length: int) -> None:
        """Takes of a step's candidates, of length tokens, those that have ended, bool [batch, count]."""
        self.add(candidates, has_ended & among_best(candidates, num_beams), length)
        self.update_done(candidates.scores.where(~has_ended, NOTHING).amax(dim=1), length)
        self.close(length)

    def add(self, candidates: Candidates, is_finished: Tensor, length: int) -> None:
        """Takes the candidates of length tokens that are finished, bool [batch, count], and good enough."""
        is_new = is_finished & exists(candidates.scores) & ~self.done[:, None]
        scores = (candidates.scores / float(length) ** self.length_penalty).where(is_new, NOTHING)
        new = Hypotheses(scores, torch.full_like(candidates.beams, length), candidates.beams, candidates.tokens)
        self.hypotheses = best_hypotheses([self.hypotheses, new], self.size)

    def update_done(self, best_sums: Tensor, length: int) -> None:
        """Notes which prompts are done because their pools could not get better, or need not.

        Args:
            best_sums: float32 [batch], the sum of log-probabilities of the best hypothesis that could still get better.
            length: how many tokens that has.
        """
        worst = self.hypotheses.scores[:, -1]
        is_full = exists(worst)
        if self.early_stopping is True:
            stops = is_full
        else:
            stops = is_full & (worst >= best_sums / self._best_length(length) ** self.length_penalty)
        self.done = self.done | stops | ~exists(best_sums)

    def close(self, length: int) -> None:
        """Notes that prompts are done which may have no more than length tokens."""
        self.done = self.done | (length >= self.max_new_tokens)

    def _best_length(self, length: int) -> Tensor | float:
        """Returns the length at which a beam of length tokens is compared with the pool, for each prompt or for all."""
        if self.early_stopping == "never" and self.length_penalty > 0.0:
            return self.max_new_tokens.to(torch.float32)
        return float(length)


def best_hypotheses(hypotheses: list[Hypotheses], count: int) -> Hypotheses:
    """Returns the best hypotheses of several sets, and of equal ones those that come first."""
    merged = Hypotheses(*(torch.cat(values, dim=1) for values in zip(*hypotheses, strict=True)))
    order = merged.scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return Hypotheses(*(value.gather(1, order) for value in merged))


def going_on(candidates: Candidates, is_stop: Tensor | None, num_beams: int) -> Candidates:
    """Returns the best num_beams candidates that have not ended; where there are fewer, beams without a hypothesis."""
    if is_stop is None:
        return Candidates(*(value[:, :num_beams] for value in candidates))
    scores, order = candidates.scores.masked_fill(is_stop, NOTHING).sort(dim=1, descending=True, stable=True)
    beams, tokens = (value.gather(1, order[:, :num_beams]) for value in (candidates.beams, candidates.tokens))
    return Candidates(scores[:, :num_beams], beams, tokens)


def among_best(candidates: Candidates, num_beams: int) -> Tensor:
    """Tells which candidates may end, bool [count]: the others are only there so that enough beams go on."""
    return torch.arange(candidates.scores.shape[1], device=candidates.scores.device) < num_beams


def search_with_pool(
    run: BeamRun, pool: FinishedPool, num_return_sequences: int, pick: Callable[[int, Tensor, int], Candidates]
) -> DecodeOutput:
    """Searches until no prompt's pool can change.

    Args:
        run: the search, which has read the prompts.
        pool: where finished hypotheses go; empty.
        num_return_sequences: how many hypotheses of each prompt are returned.
        pick: (step, the beams' scores, float32 [batch, num_beams], count) -> count continuations of each prompt, the
            best first.
    """
    request, num_beams = run.request, run.num_beams
    scores = first_beams_alone(request.batch_size, num_beams, request.device)
    count = candidates_of(num_beams, request)
    for step in steps_of(run.request):
        length = step + 1
        candidates = pick(step, scores, count)
        has_ended = run.has_ended(candidates, length)
        running = going_on(candidates, has_ended, num_beams)
        if has_ended is not None:
            *seen, has_ended = run.read_if_asked(*candidates, has_ended)
            pool.take_step(Candidates(*seen), has_ended, num_beams, length)
        scores = running.scores
        run.record(running.beams, running.tokens)
        if run.is_over(length, pool.done):
            break
        run.advance(pool.done)
    return finish_from_pool(run, best_hypotheses([pool.hypotheses], num_return_sequences))


def candidates_of(num_beams: int, request: Request) -> int:
    """Returns how many candidates let num_beams go on whichever end: each beam may end with each of the stop tokens."""
    return max(2, 1 + len(request.eos_token_ids)) * num_beams


def finish_from_pool(run: BeamRun, hypotheses: Hypotheses) -> DecodeOutput:
    """Returns the hypotheses as the strategy's answer, each backtracked from the step where it ended."""
    step_tokens, step_beams = run.recorded()
    hypotheses = Hypotheses(*(value.to(step_tokens.device) for value in hypotheses))
    tokens, beams = trace_beams(step_tokens, step_beams, hypotheses.beams, hypotheses.lengths - 1)
    last = (hypotheses.lengths - 1).clamp_min(0)[None]
    tokens = tokens.scatter(0, last, hypotheses.tokens[None])
    beams = beams.scatter(0, last, hypotheses.beams[None])
    return run.finish(hypotheses.scores, hypotheses.lengths, tokens, beams)
