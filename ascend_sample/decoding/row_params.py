"""The `SamplingParams` of each prompt, checked: for the strategies that draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ascend_sample._errors import refuse, refuse_type
from ascend_sample.decoding.request import Request
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.requests.fields import Stage
from ascend_sample.sampling.requests.params import fields_of


def checked_params(
    request: Request,
    params: SamplingParams | Sequence[SamplingParams] | None,
    refused: Collection[str] = fields_of(Stage.REPORT),
    remedy: str = "Use return_scores, which keeps what every step drew from, and stopping_criteria for ends.",
) -> list[SamplingParams]:
    """Returns one `SamplingParams` for each prompt, checked.

    Prompts that share one share its seed, so that none depends on its place in the batch.

    Args:
        request: what was asked for.
        params: one, or one for each prompt; None: the model's distribution as it is.
        refused: fields of `SamplingParams` that the strategy cannot honour.
        remedy: what to do instead.

    Raises:
        TypeError: it is neither.
        ValueError: there are fewer or more than prompts, a refused field is not at its default, or eos_token_id names
            fewer ends than they do.
    """
    default = SamplingParams()
    given = default if params is None else params
    rows = [given] * request.batch_size if isinstance(given, SamplingParams) else given
    if not isinstance(rows, Sequence) or not all(isinstance(one, SamplingParams) for one in rows):
        advice = "Give one, or a list with one for each prompt."
        refuse_type(request.strategy, "params", "be SamplingParams, or a list of them", params, advice)
    if len(rows) != request.batch_size:
        rule = f"be one, or one for each of {request.batch_size} prompts"
        refuse(request.strategy, "params", rule, f"{len(rows)} of them", "Give as many as there are prompts.")
    ends = set(request.eos_token_ids.tolist())
    for one in rows:
        if not ends.issuperset(one.stop_token_ids):
            rule = f"have stop_token_ids that eos_token_id names, which are {sorted(ends)}"
            advice = "Name them there: it ends the texts of a strategy."
            refuse(request.strategy, "params", rule, f"stop_token_ids={one.stop_token_ids!r}", advice)
        for name in refused:
            if getattr(one, name) != getattr(default, name):
                value = f"{name}={getattr(one, name)!r}"
                refuse(request.strategy, "params", f"leave {name} at its default", value, remedy)
    return list(rows)


def all_but_draw_fields() -> tuple[str, ...]:
    """Returns the fields that only a strategy can honour that appends one token after the other to each text."""
    return fields_of(Stage.LOGITS, Stage.RANGE, Stage.STATE, Stage.REPORT)


def check_generator(request: Request, generator: object) -> None:
    """Raises unless it is a torch.Generator or None; that it is on the CPU, `SamplingBatch` checks."""
    if generator is not None and not isinstance(generator, torch.Generator):
        refuse_type(request.strategy, "generator", "be a torch.Generator", generator, "Make one, and seed it.")
