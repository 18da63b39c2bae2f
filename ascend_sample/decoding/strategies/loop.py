"""Strategies that append one token a row and step share a loop, and what they keep of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.log_probs import log_probs_of
from ascend_sample.decoding.model import StepModel, StepOutput, decoded, entered
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.reading import read_log_probs, read_together
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import apply_processors, meets, steps_of, warn_of_impossible
from ascend_sample.decoding.streaming import Listening
from ascend_sample.sampling import RowStatus
from ascend_sample.sampling.draws.best_tokens import without_nan
from ascend_sample.sampling.rows.table import to_device


class Choice(NamedTuple):
    """Holds what a strategy has chosen in a step."""

    tokens: Tensor  # int64 [rows], the token of each row
    logits: Tensor  # floats [rows, vocab_size], those that the tokens' log-probabilities are of
    scores: Tensor  # float32 [rows, vocab_size], what was chosen from; it is kept if the request asks for it
    # int8 [rows], ALL_MASKED where no token was left to choose: the token is arbitrary. None where the tokens'
    # log-probabilities tell: they are -inf there, and nowhere else.
    status: Tensor | None = None
    log_probs: Tensor | None = None  # float32 [rows], the log-probabilities of the tokens, where they are known already


class Texts:
    """Keeps the rows of a search: their tokens, their scores, and which of them are done.

    What is known of rows is kept on the host. A step is read where a row may end early, in one read that brings what
    else is to be known of it; elsewhere nothing is read before the end. So a step launches hardly anything for it.

    Args:
        request: what was asked for.
        copies: how many rows each prompt has; they follow one another.
        named: whether a warning numbers rows or prompts.

    Attributes:
        is_done: bool [rows] on the host, True where a row gets no more tokens.
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
        reads_ids = request.logits_processor or request.stopping_criteria
        self._ids = torch.nn.functional.pad(prompts, (0, request.max_steps)) if reads_ids else None
        self._tokens: list[Tensor] = []
        self._unread_log_probs: list[Tensor] = []
        self._statuses: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._max_new_tokens = request.max_new_tokens.cpu().repeat_interleave(copies)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device="cpu")
        self._log_probs = torch.zeros(rows, dtype=torch.float32, device="cpu")
        self.is_done = torch.zeros(rows, dtype=torch.bool, device="cpu")
        self._done_count = 0
        self._is_done_device: Tensor | None = None  # None: no row is
        self.stand_in: Tensor | None = None
        self._listening = Listening(
            request.strategy, request.on_tokens, prompts, request.attention_mask.repeat_interleave(copies, dim=0)
        )

    def processed(self, logits: Tensor) -> Tensor:
        """Returns the logits after the request's processors, float32 [rows, vocab_size]; NaN becomes -inf."""
        scores = without_nan(logits)  # a copy, because a processor may write into it
        if self._ids is None or not self.request.logits_processor:
            return scores
        return apply_processors(self.request, self._ids_so_far(self._ids), scores)

    def append(self, choice: Choice) -> None:
        """Appends its token to each row that is not done, and notes which rows are done with it."""
        request, was_done = self.request, self.is_done
        found = tokens = choice.tokens
        if self._is_done_device is not None:
            tokens = tokens.masked_fill(self._is_done_device, request.pad_token_id)
        if self._ids is not None:
            self._ids[:, self._prompt_width + len(self._tokens)] = tokens
        self._tokens.append(tokens)
        if choice.status is not None:
            self._statuses.append(choice.status)
        if request.return_scores:
            self._scores.append(choice.scores)
        self._lengths += ~was_done
        is_done = was_done | (self._lengths >= self._max_new_tokens)
        if request.has_ends:
            found, is_ended = self._read(choice, tokens)
            is_done |= is_ended
        else:
            known = choice.log_probs
            self._unread_log_probs.append(log_probs_of(choice.logits, choice.tokens) if known is None else known)
        self.is_done = is_done
        if request.on_tokens is not None:
            self._tell(found.cpu() if self._listening.has_streamers else tokens, was_done)

    def are_done(self) -> bool:
        """Tells whether all rows are done."""
        self.stand_in = None
        done_count = int(self.is_done.sum())
        if self._done_count < done_count < len(self.is_done):
            rows = torch.arange(len(self.is_done), device="cpu")
            first_to_go_on = self.is_done.to(torch.int8).argmin()
            stand_in = torch.where(self.is_done, first_to_go_on, rows)
            there = to_device(torch.stack((stand_in, self.is_done.long())).numpy(), self.request.device)
            self.stand_in, self._is_done_device = there[0], there[1].bool()
        self._done_count = done_count
        return done_count == len(self.is_done)

    def output(self) -> DecodeOutput:
        """Returns the rows as they are, with a warning if some had nothing to choose from."""
        request, device = self.request, self.request.device
        for step, log_probs in enumerate(_stacked(self._unread_log_probs)):
            self._score(log_probs, step >= self._lengths)
        is_impossible = self._log_probs == -torch.inf
        if self._statuses:
            steps = torch.arange(len(self._statuses), device="cpu")[:, None]
            is_masked = (_stacked(self._statuses) == RowStatus.ALL_MASKED) & (steps < self._lengths)
            is_impossible = is_masked.any(dim=0)
        scores = self._log_probs.masked_fill(is_impossible, -torch.inf).to(device)
        if self._named == "prompts":
            is_impossible = is_impossible.view(request.batch_size, -1).any(dim=1)
        warn_of_impossible(request, is_impossible, self._named)
        return DecodeOutput(
            sequences=torch.stack(self._tokens, dim=1),
            sequences_scores=scores,
            lengths=self._lengths.to(device),
            scores=tuple(self._scores) if request.return_scores else None,
        )

    def _ids_so_far(self, ids: Tensor) -> Tensor:
        """Returns the prompts as they were given, and what was appended: int64 [rows, prompt width + steps]."""
        return ids[:, : self._prompt_width + len(self._tokens)]

    def _read(self, choice: Choice, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Reads a step and adds it to the scores; returns its tokens and which rows it ends, bool [rows]."""
        met: list[Tensor] = []
        if self._ids is not None:
            ids, scores = self._ids_so_far(self._ids), tuple(self._scores) or (choice.scores,)
            criteria = self.request.stopping_criteria
            met = [meets(self.request, one, ids, scores).expand_as(tokens) for one in criteria]
        if choice.log_probs is None:
            log_probs, found, *met = read_log_probs(choice.logits, choice.tokens, tokens, *met)
        else:
            log_probs, found, *met = read_together(choice.log_probs, tokens, *met)
        self._score(log_probs, self.is_done)
        is_ended = self.request.is_eos(found)
        for one in met:
            is_ended |= one
        return found, is_ended

    def _score(self, log_probs: Tensor, was_done: Tensor) -> None:
        """Adds a step's log-probabilities, float32 [rows] on the host, to the rows that were not done."""
        self._log_probs += log_probs.masked_fill(was_done, 0.0)

    def _tell(self, tokens: Tensor, was_done: Tensor) -> None:
        """Tells whoever listens what a step has appended: streamers what is on the host, a function what is not."""
        if self._listening.has_streamers:
            counts = ~was_done
        elif self._is_done_device is None:
            counts = torch.ones_like(tokens)
        else:
            counts = ~self._is_done_device
        self._listening.tell(tokens[:, None], counts.to(torch.int64), self.is_done)


def _stacked(steps: list[Tensor]) -> Tensor:
    """Brings what there is of each step to the host: [steps, rows]."""
    return torch.stack(steps).cpu() if steps else torch.empty(0, dtype=torch.float32, device="cpu")


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
        output = decoded(texts.request.strategy, model, choice.tokens[:, None], cache, start.logits.shape[1])
        logits, cache = entered(output).logits[:, -1], output.cache
    return texts.output()
