"""Strategies that append one token a row and step share a loop, and what they keep of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.model import StepModel, StepOutput, decoded, entered
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import apply_processors, meets, steps_of, warn_of_impossible
from ascend_sample.decoding.streaming import Listening


class Choice(NamedTuple):
    """Holds what a strategy has chosen in a step.

    Attributes:
        tokens: int64 [rows], the token of each row.
        log_probs: float32 [rows], the log-probabilities of the tokens; -inf where is_impossible.
        is_impossible: bool [rows], True where no token was left to choose: all logits are -inf, and the token is
            arbitrary.
        scores: float32 [rows, vocab_size], what was chosen from; it is kept if the request asks for it.
    """

    tokens: Tensor
    log_probs: Tensor
    is_impossible: Tensor
    scores: Tensor


class Texts:
    """Keeps the rows of a search: their tokens, their scores, and which of them are done.

    Args:
        request: what was asked for.
        copies: how many rows each prompt has; they follow one another.
        named: whether a warning numbers rows or prompts.

    Attributes:
        is_done: bool [rows], True where a row gets no more tokens.
        stand_in: int64 [rows], after `are_done` said no: the row of the model's cache that is to take the place of
            each; None where all stay. A row that is done is decoded along with the others, because processors and
            criteria may know the batch. It must not grow, or it could run out of the model's positions; so it becomes a
            second copy of a row that goes on.
    """

    def __init__(self, request: Request, copies: int = 1, named: Literal["rows", "prompts"] = "rows") -> None:
        prompts = request.input_ids.repeat_interleave(copies, dim=0)
        rows, self._prompt_width = prompts.shape
        self.request = request
        self._named = named
        self._ids = torch.nn.functional.pad(prompts, (0, request.max_steps))
        self._steps = 0
        self._max_new_tokens = request.max_new_tokens.repeat_interleave(copies)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=request.device)
        self._log_probs = torch.zeros(rows, device=request.device)
        self._is_impossible = torch.zeros(rows, dtype=torch.bool, device=request.device)
        self._scores: list[Tensor] = []
        self._done_count = 0
        self._may_end_early = request.has_ends or int(request.max_new_tokens.min()) < request.max_steps
        self.is_done = torch.zeros(rows, dtype=torch.bool, device=request.device)
        self.stand_in: Tensor | None = None
        self._listening = Listening(
            request.strategy, request.on_tokens, prompts, request.attention_mask.repeat_interleave(copies, dim=0)
        )

    @property
    def ids(self) -> Tensor:
        """Returns the prompts as they were given, and what was appended: int64 [rows, prompt width + steps]."""
        return self._ids[:, : self._prompt_width + self._steps]

    def processed(self, logits: Tensor) -> Tensor:
        """Returns the logits after the request's processors, float32 [rows, vocab_size]; NaN becomes -inf."""
        scores = logits.to(torch.float32, copy=bool(self.request.logits_processor))  # a processor may write into it
        return apply_processors(self.request, self.ids, scores)

    def append(self, choice: Choice) -> None:
        """Appends its token to each row that is not done, and notes which rows are done with it."""
        request, was_done = self.request, self.is_done
        tokens = choice.tokens.masked_fill(was_done, request.pad_token_id)
        self._ids[:, self._prompt_width + self._steps] = tokens
        self._steps += 1
        self._lengths += ~was_done
        self._log_probs += choice.log_probs.masked_fill(was_done, 0.0)
        self._is_impossible |= choice.is_impossible & ~was_done
        if request.return_scores:
            self._scores.append(choice.scores)
        is_done = was_done | request.is_eos(tokens) | (self._lengths >= self._max_new_tokens)
        for criterion in request.stopping_criteria:
            is_done = is_done | meets(request, criterion, self.ids, tuple(self._scores) or (choice.scores,))
        self.is_done = is_done
        if request.on_tokens is not None:
            self._listening.tell(tokens[:, None], (~was_done).to(torch.int64), is_done)

    def are_done(self) -> bool:
        """Tells whether all rows are done, and waits for the device only where the host does not know."""
        self.stand_in = None
        if self._steps >= self.request.max_steps:
            return True
        if not self._may_end_early:
            return False
        done_count = int(self.is_done.sum())
        if done_count > self._done_count:
            rows = torch.arange(len(self.is_done), device=self.request.device)
            first_to_go_on = self.is_done.to(torch.int8).argmin()
            self.stand_in = torch.where(self.is_done, first_to_go_on, rows)
        self._done_count = done_count
        return done_count == len(self.is_done)

    def output(self) -> DecodeOutput:
        """Returns the rows as they are, with a warning if some had nothing to choose from."""
        is_impossible = self._is_impossible
        if self._named == "prompts":
            is_impossible = is_impossible.view(self.request.batch_size, -1).any(dim=1)
        warn_of_impossible(self.request, is_impossible, self._named)
        return DecodeOutput(
            sequences=self._ids[:, self._prompt_width : self._prompt_width + self._steps].clone(),
            sequences_scores=self._log_probs,
            lengths=self._lengths,
            scores=tuple(self._scores) if self.request.return_scores else None,
        )


def append_tokens(
    model: StepModel, start: StepOutput, texts: Texts, choose: Callable[[Tensor], Choice]
) -> DecodeOutput:
    """Chooses, appends and decodes until all rows are done.

    Args:
        model: the model that computes steps.
        start: the logits [rows, vocab_size] and the cache that it has returned for the prompts.
        texts: the texts of the same rows.
        choose: a function that chooses what to append from the model's logits [rows, vocab_size].
    """
    logits, cache = start.logits, start.cache
    for _ in steps_of(texts.request):
        choice = choose(logits)
        texts.append(choice)
        if texts.are_done():
            break
        if texts.stand_in is not None:
            cache = model.reorder(cache, texts.stand_in)
        output = entered(decoded(texts.request.strategy, model, choice.tokens[:, None], cache))
        logits, cache = output.logits[:, -1], output.cache
    return texts.output()
