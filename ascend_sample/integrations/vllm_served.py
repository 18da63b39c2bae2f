"""Whether, and how often, vLLM's tokens are drawn here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Generator, Tensor

from ascend_sample.integrations._rows import draw
from ascend_sample.sampling.rows.parameters import Facts


def draws_here(sampler: Any) -> bool:
    """Tells whether an engine's sampler of top-k and top-p draws here, and has a `seed_source`.

    A class of the engine that derives from a replaced one may draw itself, as vllm_ascend's for the 310P does.
    """
    method = getattr(type(sampler), "forward_native", None)
    return getattr(method, "__module__", "").startswith(f"{__package__}.")


def draw_here(
    sampler: Any,
    logits: Tensor,
    generators: Mapping[int, Generator],
    facts: Facts | None = None,
    at_nan: Callable[[Tensor], Tensor] | None = None,
    **parameters: Tensor | None,
) -> Tensor:
    """Draws one token a row for an engine's sampler of top-k and top-p, and counts it.

    Args:
        sampler: whose `keep_ties` and `seed_source` these are.
        logits: float [rows, vocab_size]; not changed.
        generators: of the rows whose requests have a seed.
        facts: as of `draw`.
        at_nan: likewise.
        parameters: likewise.

    Returns:
        int64 [rows].
    """
    seed, position = sampler.seed_source.take(len(logits), generators)
    count(len(logits))
    return draw(
        logits, **parameters, keep_ties=sampler.keep_ties, seed=seed, position=position, facts=facts, at_nan=at_nan
    )


class Served(NamedTuple):
    """What the plugin has drawn in one process.

    Attributes:
        steps: how many times it was asked to draw. vLLM asks in each step in which not all requests are greedy, V2's
            runner in those too, and in its rehearsals before the first request.
        rows: for how many rows, together.
    """

    steps: int
    rows: int


_served = Served(0, 0)


def served() -> Served:
    """Returns what was drawn in this process so far.

    An engine draws in the processes of its workers. There `WorkerExtension` calls this.

    Example:
        >>> count(3)
        >>> before = served()
        >>> count(2)
        >>> served().steps - before.steps, served().rows - before.rows
        (1, 2)
    """
    return _served


def count(rows: int) -> None:
    """Counts a step of so many rows, and logs the first one beneath vLLM's logger."""
    global _served
    if not _served.steps:
        logging.getLogger("vllm.ascend_sample").info("ascend_sample has drawn a step in this process: %d rows.", rows)
    _served = Served(_served.steps + 1, _served.rows + rows)


class WorkerExtension:
    """What vLLM's workers can be asked when its option ``worker_extension_cls`` names this class.

    Example:
        >>> WorkerExtension().ascend_sample_served().keys()
        dict_keys(['steps', 'rows'])
    """

    def ascend_sample_served(self) -> dict[str, int]:
        """Returns what was drawn in this worker's process: for ``LLM.collective_rpc("ascend_sample_served")``."""
        return served()._asdict()
