"""All beam searches share the model's rows, the scores of a step, the choice among them, and the record of it."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample._errors import check_integer, refuse
from ascend_sample.decoding.model import StepModel, decoded
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.reading import SeldomTrue, read_together
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import apply_processors, meets, read_prompts, warn_of_impossible
from ascend_sample.decoding.streaming import refuse_listener
from ascend_sample.sampling.draws.best_tokens import all_log_probs, best_entries, best_tokens, chunk_lanes

NOTHING: Final = -1e30
"""The score of a beam without a hypothesis. It is below each sum of log-probabilities, and finite, so that no sum or
product of it is NaN. Log-probabilities of -inf become it too."""


class Candidates(NamedTuple):
    """Holds continuations of a prompt's beams, the best first."""

    scores: Tensor  # float32 [batch, count], sums of log-probabilities; NOTHING where there is no continuation
    beams: Tensor  # int64 [batch, count], the beam that each continues, counted within its prompt
    tokens: Tensor  # int64 [batch, count], the token with which it does


def exists(scores: Tensor) -> Tensor:
    """Tells which scores, of any shape, are those of hypotheses."""
    return scores > NOTHING / 2


def at_least_nothing(scores: Tensor) -> Tensor:
    """Returns the scores, which are written over, with NOTHING in place of -inf and NaN."""
    return scores.nan_to_num_(nan=NOTHING, posinf=torch.inf, neginf=NOTHING).clamp_(min=NOTHING)


def first_beams_alone(batch: int, beams: int, device: torch.device) -> Tensor:
    """Returns scores to start with, float32 [batch, beams], where only each prompt's first beam has a hypothesis.

    Equal beams would stay equal, so the others have none.
    """
    scores = torch.full((batch, beams), NOTHING, device=device, dtype=torch.float32)
    scores[:, 0] = 0.0
    return scores


def choose(beam_scores: Tensor, log_probs: Tensor, tokens: Tensor, count: int) -> Candidates:
    """Returns the best continuations of each prompt.

    Args:
        beam_scores: float32 [batch, beams].
        log_probs: float32 [batch, beams, n], the log-probabilities of each beam's n best tokens.
        tokens: int64 [batch, beams, n], those tokens.
        count: how many continuations are returned, or all where there are fewer.
    """
    each = tokens.shape[2]
    totals = at_least_nothing(beam_scores[:, :, None] + log_probs).flatten(1)
    scores, places = best_entries(totals, min(count, totals.shape[1]))
    beams = places.div(each, rounding_mode="floor")
    return Candidates(scores, beams, tokens.flatten(1).gather(1, places))


def check_beams(strategy: str, num_beams: int, num_return_sequences: int) -> None:
    """Raises unless both are at least 1, and there are beams for what is returned."""
    check_integer(strategy, "num_beams", num_beams, low=1)
    check_integer(strategy, "num_return_sequences", num_return_sequences, low=1)
    if num_return_sequences > num_beams:
        rule = f"be at most num_beams, {num_beams}"
        refuse(strategy, "num_return_sequences", rule, num_return_sequences, "Search with more beams, or take fewer.")


class BeamRun:
    """Steps a model with num_beams rows for each prompt, and records what was chosen so far.

    Args:
        model: the model that computes steps.
        request: what was asked for.
        num_beams: how many rows each prompt has.
        softmax_smoothing: a positive float32 that divides the logits.
        eos_penalty: what the stop tokens' probabilities are multiplied by.
    """

    def __init__(
        self,
        model: StepModel,
        request: Request,
        num_beams: int,
        softmax_smoothing: float = 1.0,
        eos_penalty: float = 1.0,
    ) -> None:
        self.model = model
        self.request = request
        self.num_beams = num_beams
        self.softmax_smoothing = softmax_smoothing
        self.log_eos_penalty = math.log(eos_penalty)
        refuse_listener(request.strategy, request.on_tokens)
        output = read_prompts(model, request)
        self.logits = output.logits.repeat_interleave(num_beams, dim=0)
        self.cache = model.expand(output.cache, num_beams)
        self.penalized_tokens = request.eos_token_ids[request.eos_token_ids < self.vocab_size].to(request.device)
        self.lanes = chunk_lanes(request.device)
        self.step_tokens: list[Tensor] = []
        self.step_beams: list[Tensor] = []
        self.step_scores: list[Tensor] = []
        self.first_rows = torch.arange(request.batch_size, device=request.device)[:, None] * num_beams
        self.shortest = int(request.max_new_tokens.min())
        self._done = SeldomTrue(request.device)
        reads_sequences = bool(request.logits_processor or request.stopping_criteria)
        self.sequences = request.input_ids.repeat_interleave(num_beams, dim=0) if reads_sequences else None

    @property
    def vocab_size(self) -> int:
        """Returns how many tokens there are."""
        return self.logits.shape[1]

    def best_of_each_beam(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns the most probable tokens of each beam, by probabilities that processors and the penalty have changed.

        Returns:
            Log-probabilities, float32 [batch, beams, n], and tokens, int64 [batch, beams, n], with n as count, or
            vocab_size where that is less.
        """
        count = min(count, self.vocab_size)
        request = self.request
        if request.logits_processor or self.log_eos_penalty != 0.0:
            log_probs, tokens = best_entries(self.log_probs(), count, self.lanes)
        else:
            if request.needs_scores:
                self.log_probs()  # the choice is made without them, so that a look at them does not change it
            log_probs, tokens = best_tokens(self.logits, count, self.softmax_smoothing, self.lanes)
        shape = (request.batch_size, self.num_beams)
        return log_probs.unflatten(0, shape), tokens.unflatten(0, shape)

    def log_probs(self) -> Tensor:
        """Returns the log-probabilities of all tokens, float32 [batch * beams, vocab_size], processed and penalised."""
        scores = self.process(all_log_probs(self.logits, self.softmax_smoothing), self.sequences)
        self.keep_scores(scores)
        return scores

    def process(self, log_probs: Tensor, sequences: Tensor | None) -> Tensor:
        """Returns what processors and the penalty make of a step's log-probabilities, which may be overwritten."""
        if sequences is not None:
            log_probs = apply_processors(self.request, sequences, log_probs)
        if self.log_eos_penalty != 0.0:
            # The logarithm is added, which lowers them; a factor below 1 would bring negative numbers nearer to 0.
            log_probs[:, self.penalized_tokens] += self.log_eos_penalty
        return log_probs

    def keep_scores(self, scores: Tensor) -> None:
        """Keeps a step's scores for `DecodeOutput.scores`, if asked for, and for stopping criteria.

        Where no scores are to be returned, stopping criteria see those of the last step alone.
        """
        if self.request.needs_scores:
            self.step_scores = [*self.step_scores, scores] if self.request.return_scores else [scores]

    def is_stopped(self, candidates: Candidates) -> Tensor | None:
        """Tells which candidates end with a stop token or meet a stopping criterion, bool [batch, count].

        None where the host knows that none does.
        """
        if not self.request.has_ends:
            return None
        ended = self.request.is_eos(candidates.tokens)
        if self.sequences is not None:
            rows = (self.first_rows + candidates.beams).flatten()
            sequences = torch.cat((self.sequences[rows], candidates.tokens.reshape(-1, 1)), dim=1)
            for criterion in self.request.stopping_criteria:
                met = meets(self.request, criterion, sequences, tuple(self.step_scores))
                ended = ended | (met.view(ended.shape) if met.dim() else met)
        return ended

    def read_if_asked(self, *values: Tensor) -> list[Tensor]:
        """Returns the values, on the host where something may end early: whether all has ended must be read there.

        No other place of a step waits for the device.
        """
        return read_together(*values) if self.request.has_ends else list(values)

    def record(self, beams: Tensor, tokens: Tensor) -> None:
        """Notes the step's choice, int64 [batch, num_beams] each."""
        self.step_beams.append(beams)
        self.step_tokens.append(tokens)

    def is_over(self, length: int, done: Tensor) -> bool:
        """Tells whether no prompt needs more than length tokens, when those of done, bool [batch], are.

        Where that depends on done, `read_if_asked` has read it. Without anything that ends a prompt, one may have no
        token left: a device is not asked for that.
        """
        request = self.request
        if length == request.max_steps:
            return True
        return (request.has_ends or done.is_cpu) and bool(done.all())

    def advance(self, done: Tensor) -> None:
        """Computes the logits that follow what was recorded last, except for the prompts that are done, bool [batch].

        They are known on the host or on the device.

        Rows of a prompt that is done must not grow, or they could run out of the model's positions: they become copies
        of rows that go on.
        """
        own_rows = self.first_rows + self.step_beams[-1]
        tokens = self.step_tokens[-1].reshape(-1, 1)
        if self.sequences is not None:
            self.sequences = torch.cat((self.sequences[own_rows.flatten()], tokens), dim=1)
        if self.request.pad_token_id >= self.vocab_size:
            tokens = tokens.where(tokens < self.vocab_size, 0)  # a model may not take it, and nothing depends on it
        rows = own_rows.flatten()
        is_done = self._done.there(done)
        if is_done is not None:
            stand_ins = own_rows.index_select(0, is_done.to(torch.int8).argmin(dim=0, keepdim=True))
            rows = torch.where(is_done[:, None], stand_ins, own_rows).flatten()
        cache = self.model.reorder(self.cache, rows)
        output = decoded(self.request.strategy, self.model, tokens, cache, self.vocab_size)
        self.logits, self.cache = output.logits[:, -1], output.cache

    def recorded(self) -> tuple[Tensor, Tensor]:
        """Returns all tokens and the beams that they were appended to, int64 [steps, batch, num_beams] each."""
        return torch.stack(self.step_tokens), torch.stack(self.step_beams)

    def finish(self, scores: Tensor, lengths: Tensor, tokens: Tensor, beams: Tensor) -> DecodeOutput:
        """Returns the hypotheses as the strategy's answer, with a warning if a prompt has none.

        Args:
            scores: float32 [batch, count], the best first; NOTHING where there is no hypothesis.
            lengths: int64 [batch, count], the number of tokens of each.
            tokens: int64 [steps, batch, count]; what is above the lengths does not matter.
            beams: int64 [steps, batch, count], the beam that each token was appended to, counted within its prompt.
        """
        request = self.request
        found = exists(scores)
        warn_of_impossible(request, ~found[:, 0], "prompts")
        lengths = lengths.where(found, 0)
        longest = int(lengths.max())
        inside = torch.arange(longest, device=request.device) < lengths[:, :, None]
        rows = beams[:longest].permute(1, 2, 0) + self.first_rows[:, :, None]
        return DecodeOutput(
            sequences=tokens[:longest].permute(1, 2, 0).where(inside, request.pad_token_id).flatten(0, 1),
            sequences_scores=scores.where(found, -torch.inf).flatten(),
            lengths=lengths.flatten(),
            beam_indices=rows.where(inside, -1).flatten(0, 1),
            scores=tuple(self.step_scores) if request.return_scores else None,
        )
