"""The loop of the strategies that append one token a row and step, and what they keep of their rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ascend_sample._errors import refuse, refuse_result
from ascend_sample.decoding.checks import name_of
from ascend_sample.decoding.model import DraftReader, StepModel, StepOutput, checked, decoded, entered
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import Request, StoppingCriterion
from ascend_sample.decoding.streaming import Listening
from ascend_sample.sampling.best_tokens import without_nan

NOT_THE_CALLERS: Final = ("ascend_sample.decoding", "torch.utils._contextlib")
"""Modules that stand between a warning and the line that called a strategy; the second is `torch.no_grad`'s."""


class Choice(NamedTuple):
    """What a strategy does in a step.

    Attributes:
        tokens: int64 [rows].
        log_probs: float32 [rows], of the tokens; -inf where is_impossible.
        is_impossible: bool [rows], where no token was left to choose: all logits are -inf, and the token is arbitrary.
        scores: float32 [rows, vocab_size], what was chosen from; it is kept if the request asks for it.
    """

    tokens: Tensor
    log_probs: Tensor
    is_impossible: Tensor
    scores: Tensor


class Texts:
    """The rows of a search: their tokens, which of them are done, and their scores.

    Args:
        request: what was asked for.
        copies: how many rows each prompt has; they follow one another.
        named: what a warning gives the numbers of.

    Attributes:
        is_done: bool [rows].
        stand_in: after `are_done` said no: which row of the model's cache is to take the place of each, int64 [rows];
            None where all stay. A row that is done is decoded along with the others, because processors and criteria
            may know the batch. It must not grow, or it could run out of the model's positions; so it becomes a second
            copy of a row that goes on.
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
        shortest = int(request.max_new_tokens.min())
        has_ends = len(request.eos_token_ids) > 0 or len(request.stopping_criteria) > 0
        self._may_end_early = has_ends or shortest < request.max_steps
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
        """Gives each row that is not done its token; some may be done with it."""
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
        """Tells whether all rows are done, and waits for the device only where that is not known without."""
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


def read_prompts(model: StepModel, request: Request, drafts: Tensor | None = None) -> StepOutput:
    """Processes the prompts; returns logits [batch, vocab_size], as the model gives them, and their cache.

    With drafts, int64 [batch, count], which only a `DraftReader` reads: logits [batch, 1 + count, vocab_size].
    """
    input_ids, mask = request.input_ids, request.attention_mask
    places = () if drafts is None else (1 + drafts.shape[1],)
    try:
        if drafts is None:
            output = model.prefill(input_ids, mask, **request.encoder)
        else:
            output = cast(DraftReader, model).prefill_with_drafts(input_ids, mask, drafts)
    except IndexError as error:  # of an embedding, which does not say what was wrong
        value = f"tokens up to {int(input_ids.max())} in {input_ids.shape[1]} columns, and IndexError: {error}"
        remedy = "Use the model's own tokenizer, and prompts within its positions."
        refuse(request.strategy, "input_ids", f"be what {name_of(model)} can read", value, remedy)
    except RuntimeError:
        _refuse_another_device(model, request)
        raise
    output = checked(request.strategy, model, output, len(input_ids), *places)
    if output.logits.device != request.device:
        rule = f"be on the device of what {name_of(model)} returns, {output.logits.device}"
        refuse(request.strategy, "input_ids", rule, request.device, "Move all inputs, or the model, with .to().")
    return output


def _refuse_another_device(model: StepModel, request: Request) -> None:
    """Raises if the model could not work because all of its parameters are elsewhere than the prompts."""
    modules = [one for one in (model, *getattr(model, "__dict__", {}).values()) if isinstance(one, torch.nn.Module)]
    devices = {str(parameter.device) for module in modules for parameter in module.parameters()}
    if devices and str(request.device) not in devices:
        rule = f"be on the device of {name_of(model)}, {' or '.join(sorted(devices))}"
        refuse(request.strategy, "input_ids", rule, request.device, "Move all inputs, or the model, with .to().")


def prefilled(model: StepModel, request: Request, copies: int = 1) -> StepOutput:
    """Processes the prompts once and repeats each row; returns logits [batch * copies, vocab_size] and their cache."""
    output = entered(read_prompts(model, request))
    if copies == 1:
        return output
    return StepOutput(output.logits.repeat_interleave(copies, dim=0), model.expand(output.cache, copies))


def append_tokens(
    model: StepModel, start: StepOutput, texts: Texts, choose: Callable[[Tensor], Choice]
) -> DecodeOutput:
    """Chooses, appends and decodes until all rows are done.

    Args:
        model: what start came from.
        start: the prompts' logits [rows, vocab_size] and cache.
        texts: of the same rows.
        choose: what to append, of the model's logits [rows, vocab_size].
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


def steps_of(request: Request) -> Iterator[int]:
    """Yields 0 to the last step that any row may take, with a bar if the request asks for one."""
    with tqdm(total=request.max_steps, desc=request.strategy, unit="step", disable=not request.progress) as bar:
        for step in range(request.max_steps):
            yield step
            bar.update()


def apply_processors(request: Request, input_ids: Tensor, scores: Tensor) -> Tensor:
    """Returns what the request's processors make of scores, float32 [rows, vocab_size]; NaN becomes -inf."""
    for processor in request.logits_processor:
        processed = processor(input_ids, scores)
        if not isinstance(processed, Tensor) or processed.shape != scores.shape:
            name, rule = f"logits_processor {name_of(processor)}", f"return scores {list(scores.shape)}"
            remedy = "Return what it was given, changed where it should be."
            refuse_result(request.strategy, name, rule, processed, remedy)
        scores = processed
    return without_nan(scores)


def meets(request: Request, criterion: StoppingCriterion, input_ids: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
    """Tells which rows a criterion ends, bool [rows], or [] for all."""
    met = criterion(input_ids, scores)
    if isinstance(met, (bool, np.bool_)):
        met = torch.tensor(bool(met))
    rows = len(input_ids)
    if not isinstance(met, Tensor) or met.dtype != torch.bool or met.shape not in ((), (rows,)):
        name, rule = f"stopping_criteria {name_of(criterion)}", f"return a bool, or a bool tensor [{rows}]"
        refuse_result(request.strategy, name, rule, met, "Say of each row of input_ids whether it is done.")
    return met.to(request.device)


def warn_of_impossible(request: Request, is_impossible: Tensor, named: Literal["rows", "prompts"] = "rows") -> None:
    """Warns of the rows or prompts, bool [n], of which some text had nothing to choose from in some step."""
    numbers = is_impossible.nonzero().flatten().tolist()
    if numbers:
        warnings.warn(
            f"{request.strategy}: in the {named} {numbers} some step had no token left to choose, every logit being "
            "-inf or NaN; the score of such a text is -inf. Look at the model's logits, and at what forbids tokens.",
            RuntimeWarning,
            stacklevel=_level_of_the_caller(),
        )


def _level_of_the_caller() -> int:
    """Returns the stacklevel with which the asking function's warning points at the line that called a strategy."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(NOT_THE_CALLERS):
        level, frame = level + 1, frame.f_back
    return level
