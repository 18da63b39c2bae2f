"""All beam searches are one loop: how continuations are chosen, and what becomes of those that end, is given to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ascend_sample.decoding.beams.endings import Ending
from ascend_sample.decoding.beams.run import BeamRun, Candidates, first_beams_alone
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.steps import steps_of

Pick = Callable[[Tensor, list[Candidates]], Candidates]
"""(scores float32 [batch, beams], the beams of the groups before in this step) -> the continuations of a group.

Scores are those of the group's beams; the continuations, `Ending.count` of each prompt, come the best first and count
beams within their prompt."""


def search_beams(run: BeamRun, ending: Ending, pick: Pick, groups: int = 1) -> DecodeOutput:
    """Searches until all prompts are done.

    Args:
        run: the search, which has read the prompts.
        ending: what becomes of hypotheses that have ended.
        pick: what chooses continuations.
        groups: how many groups of equally many beams each prompt has; they choose one after the other in each step.
    """
    request = run.request
    first = first_beams_alone(request.batch_size, run.num_beams // groups, request.device)
    scores = [first] * groups
    for step in steps_of(request):
        length = step + 1
        candidates: list[Candidates] = []
        stopped: list[Tensor] = []
        beams: list[Candidates] = []
        for group in range(groups):
            found = pick(scores[group], beams)
            is_stopped = run.is_stopped(found)
            candidates.append(found)
            stopped += [] if is_stopped is None else [is_stopped]
            beams.append(ending.going_on(found, is_stopped))
        scores = [one.scores for one in beams]
        run.record(*(_side_by_side([getattr(one, name) for one in beams]) for name in ("beams", "tokens")))
        done = ending.take_step(candidates, stopped, length)
        if run.is_over(length, done):
            break
        run.advance(done)
    return ending.finish()


def _side_by_side(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values, dim=1)
