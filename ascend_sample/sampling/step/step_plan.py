"""What a step of the sampler makes once for a batch, and keeps for as long as that stays as it is."""

from __future__ import annotations

from typing import NamedTuple

from ascend_sample.sampling.rows.parameters import RowParameters
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.draw_states import RememberingRows
from ascend_sample.sampling.step.kept import KeptRows
from ascend_sample.sampling.step.logprobs import AskingRows
from ascend_sample.sampling.step.serving import Placement


class StepPlan(NamedTuple):
    """What stays the same from step to step while the batch does.

    Attributes:
        placement: how the rows are served: first those whose logits are sampled from as they come.
        raw_groups: how many groups these are.
        asking: the rows that ask for logprobs; None where none does.
        logprobs_parameters: theirs.
        distributions: theirs, on a device whose operators find what is kept.
        kept: the rows that ask for kept sets; None where none does, and on the CPU none remembers its draws.
        states: the rows that remember their draws; None where none does.
    """

    placement: Placement
    raw_groups: int
    asking: AskingRows | None
    logprobs_parameters: RowParameters
    distributions: Distributions | None
    kept: KeptRows | None
    states: RememberingRows | None
