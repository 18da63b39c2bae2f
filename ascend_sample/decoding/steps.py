"""Every strategy reads the prompts, applies processors and criteria, and warns of impossible texts in the same way."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ascend_sample._errors import refuse, refuse_result
from ascend_sample.decoding.checks import name_of
from ascend_sample.decoding.model import StepModel, StepOutput, checked, entered
from ascend_sample.decoding.request import Request, StoppingCriterion
from ascend_sample.sampling.draws.best_tokens import without_nan

NOT_THE_CALLERS: Final = ("ascend_sample.decoding", "torch.utils._contextlib")
"""Modules that stand between a warning and the line that called a strategy; the second is `torch.no_grad`'s."""


def read_prompts(model: StepModel, request: Request) -> StepOutput:
    """Processes the prompts; returns logits [batch, vocab_size], as the model gives them, and their cache."""
    input_ids = request.input_ids
    try:
        output = model.prefill(input_ids, request.attention_mask, **request.encoder)
    except IndexError as error:  # raised by an embedding, which does not say what was wrong
        value = f"tokens up to {int(input_ids.max())} in {input_ids.shape[1]} columns, and IndexError: {error}"
        remedy = "Use the model's own tokenizer, and prompts within its positions."
        refuse(request.strategy, "input_ids", f"be what {name_of(model)} can read", value, remedy)
    except RuntimeError:
        _refuse_another_device(model, request)
        raise
    output = checked(request.strategy, model, output, len(input_ids), read=input_ids.shape[1])
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


def steps_of(request: Request) -> Iterator[int]:
    """Yields the numbers of the steps that any row may take, from 0, with a bar if the request asks for one."""
    with tqdm(total=request.max_steps, desc=request.strategy, unit="step", disable=not request.progress) as bar:
        for step in range(request.max_steps):
            try:
                yield step
            finally:  # also of the last step, after which a strategy asks for none
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
        met = torch.tensor(bool(met), device="cpu")
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
