"""What a platform of vLLM gives its V2 runner, with a sampler that draws here.

vLLM's PR #53895 (open when this was written) lets `Platform.get_v2_runner_components` return a dataclass of classes of
which the runner makes its parts, for RFC #51212. No release of vLLM has it: what follows is built by its text.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypeVar

from torch import Tensor

from ascend_sample.integrations._switches import is_on
from ascend_sample.integrations.vllm import SWITCH
from ascend_sample.integrations.vllm_functions import gumbel_sample

Components = TypeVar("Components")


def runner_components(components: Components) -> Components:
    """Returns a platform's components with `drawing_here` of their sampler.

    With ``ASCEND_SAMPLE_VLLM=0`` in the environment they stay as they are.

    Args:
        components: vLLM's `V2RunnerComponents`, or any dataclass with a field ``sampler_cls``.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class V2RunnerComponents:
        ...     sampler_cls: type
        >>> class Sampler:
        ...     def sample(self, logits, expanded_idx_mapping, pos): ...
        ...     def apply_sampling_params(self, logits): ...
        >>> runner_components(V2RunnerComponents(Sampler)).sampler_cls.__mro__[1] is Sampler
        True

    Source: vllm-project/vllm, issue 51212 and pull request 53895.
    """
    if not is_on(SWITCH, default=True):
        return components
    given: Any = components
    return dataclasses.replace(given, sampler_cls=drawing_here(given.sampler_cls))  # type: ignore[no-any-return]


def drawing_here(sampler: type[Any]) -> type[Any]:
    """Returns a class of a V2 runner's sampler that draws with `gumbel_sample`: nothing of vLLM is replaced for it.

    Biases, penalties, masks, temperatures and filters stay those of the class, and so do log-probabilities.

    Args:
        sampler: vLLM's class `Sampler`, or one that derives from it. It has ``sample``, whose arguments are found by
            their names, as versions differ in their order.
    """
    arguments_of = inspect.signature(sampler.sample)
    processed_by = inspect.signature(sampler.apply_sampling_params).parameters.keys()

    class DrawingHere(sampler):  # type: ignore[misc]
        def sample(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
            given = arguments_of.bind(self, *arguments, **named).arguments
            processing = {name: value for name, value in given.items() if name in processed_by and name != "self"}
            processed = self.apply_sampling_params(**processing)
            states = self.sampling_states
            slots, pos = given["expanded_idx_mapping"], given["pos"]
            drawn = gumbel_sample(processed, slots, states.temperature.gpu, states.seeds.gpu, pos, False)
            return drawn, processed

    return DrawingHere
