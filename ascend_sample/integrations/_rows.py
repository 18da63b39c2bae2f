"""What every adapter does with rows, and the one place in which they call the sampling layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.integrations._broken_logits import say_seen
from ascend_sample.sampling import KeptSets
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.functional import placement_of, sample_with, tokens_with
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows import table
from ascend_sample.sampling.rows.parameters import DTYPES, Facts, RowParameters, RowStatus, check_logits
from ascend_sample.sampling.step.distribution import Distributions, filter_logits
from ascend_sample.sampling.step.kept import KeptRows
from ascend_sample.sampling.step.serving import Placement, draw_tokens
from ascend_sample.sampling.step.serving import draw as draw_placed


def draw(
    logits: Tensor,
    *,
    seed: Tensor,
    position: Tensor,
    keep_ties: bool = False,
    facts: Facts | None = None,
    at_nan: Callable[[Tensor], Tensor] | None = None,
    **parameters: Tensor | None,
) -> Tensor:
    """Draws one token a row with `sample_rows`, from parameters in the dtypes in which engines have them.

    Args:
        logits: float [rows, vocab_size].
        seed: int64 [rows], on any device.
        position: int64 [rows], on any device.
        keep_ties: top-k keeps every logit that is equal to the k-th.
        facts: what the host knows of the parameters, so that a device's fused operators can serve the rows: these are
            read there then, and parameters tell which are on.
        at_nan: takes the tokens where a row on the CPU has a NaN, and returns them with the engine's own argmax in the
            place of those of greedy rows. None: a NaN counts as -inf in these too.
        parameters: those that shape the distribution, [rows] each; None is off.

    Returns:
        int64 [rows].
    """
    given: dict[str, Any] = {"seed": seed, "position": position, "keep_ties": keep_ties, "facts": facts, **parameters}
    return drawn_with(logits, None, at_nan=at_nan, **given)[0]


class Asking(NamedTuple):
    """Rows of which it is asked what is kept, and how much of each at most."""

    rows: npt.NDArray[np.int64]
    most: int


def drawn_with(
    logits: Tensor,
    asking: Asking | None,
    *,
    seed: Tensor,
    position: Tensor,
    keep_ties: bool = False,
    facts: Facts | None = None,
    largest_k: int | None = None,
    at_nan: Callable[[Tensor], Tensor] | None = None,
    **parameters: Tensor | None,
) -> tuple[Tensor, KeptSets | None]:
    """Does what `draw` does, and returns what was kept of the rows that ask for it.

    On a CPU it warns of broken logits. A device's statuses would take a pass over the logits, and a wait.

    ``largest_k`` is as of `tokens_with`, and says nothing of what is kept.
    """
    check_logits("sample_rows", logits)
    on = {name: tensor for name, tensor in parameters.items() if tensor is not None}
    keys = None
    if not logits.is_cpu and seed.is_cpu and position.is_cpu:  # the host makes the noise of a device then
        keys = DrawKeys(seed.numpy(), position.numpy())
        seed = position = torch.empty(len(logits), dtype=torch.int64, device=logits.device)  # they are not read
    else:
        seed, position = to_device(seed, logits.device), to_device(position, logits.device)
    if facts is not None and asking is None and not logits.is_cpu:
        known = {name: facts[name] for name in on}
        rows = RowParameters.of_facts("sample_rows", logits, known, seed, position)
    else:
        given: dict[str, Tensor | None] = dict.fromkeys(DISTRIBUTION)
        given |= {name: tensor.to(DTYPES[name]) for name, tensor in on.items()}
        given |= {"seed": seed, "position": position}
        rows = RowParameters.of_tensors("sample_rows", logits, given, facts)
    if asking is None and not logits.is_cpu:
        return tokens_with(logits, rows, keep_ties, keys, largest_k), None
    kept = None
    if asking is not None:
        kept = KeptRows.of_rows(asking.rows, rows, logits.shape[1], keep_ties, asking.most)
    drawn = sample_with(logits, rows, keep_ties=keep_ties, keys=keys, kept=kept)
    token_ids, status = drawn[:2]
    if logits.is_cpu:
        say_seen(status)
        if at_nan is not None and (status == RowStatus.NAN_SEEN).any():
            token_ids = at_nan(token_ids)
    return token_ids, None if kept is None else kept.sets(drawn)


class UniformRows:
    """Rows that share their parameters, as all rows of one call of an engine without requests do.

    Args:
        keep_ties: top-k keeps every logit that is equal to the k-th.
        values: fields of `SamplingParams` that shape the distribution; those that are left out are off.
    """

    def __init__(self, keep_ties: bool = False, **values: float | None) -> None:
        self.keep_ties = keep_ties
        self.is_greedy = values.get("temperature") == 0
        self._values = values
        self._parameters: tuple[object, RowParameters] | None = None
        self._placement: tuple[RowParameters, Tensor, Placement] | None = None
        self._distributions: Distributions | None = None

    def draw(self, logits: Tensor, seed: Tensor, position: Tensor) -> Tensor:
        """Draws one token a row.

        Args:
            logits: float [rows, vocab_size].
            seed: int64 [rows] on the CPU, where the noise of a device is made; the same tensor in each step.
            position: int64 [rows] on the CPU.

        Returns:
            int64 [rows].
        """
        check_logits("sample_rows", logits)
        placement = self._placement_of(logits, seed)
        if logits.is_cpu:
            token_ids, status = draw_placed(logits, placement, position, Purpose.DRAW)[:2]
            say_seen(status)
            return token_ids
        return draw_tokens(logits, placement, None, Purpose.DRAW, DrawKeys(seed.numpy(), position.numpy()))

    def filter(self, logits: Tensor) -> Tensor:
        """Returns what is drawn from: float32 [rows, vocab_size], -inf where a filter drops an entry."""
        check_logits("filter_logits", logits)
        parameters = self._parameters_of(logits)
        if self._distributions is None or self._distributions.parameters is not parameters:
            self._distributions = Distributions(parameters, logits.shape[1], self.keep_ties)
        return self._distributions.filtered(logits)

    def _parameters_of(self, logits: Tensor) -> RowParameters:
        """Returns the parameters of all rows, made once for such logits; their seeds and positions are 0."""
        made_for = (logits.shape, logits.dtype, logits.device)
        if self._parameters is None or self._parameters[0] != made_for:
            self._parameters = (made_for, RowParameters.uniform(self._values, logits))
        return self._parameters[1]

    def _placement_of(self, logits: Tensor, seed: Tensor) -> Placement:
        """Returns how all rows are served, made once for such logits and these seeds."""
        parameters = self._parameters_of(logits)
        made = self._placement
        if made is None or made[0] is not parameters or made[1] is not seed:
            with_seeds = replace(parameters, seed=seed) if logits.is_cpu else parameters
            made = (parameters, seed, placement_of(logits, with_seeds, self.keep_ties))
            self._placement = made
        return made[2]


def filtered(
    logits: Tensor, facts: Facts | None, *, top_k: Tensor | None, top_p: Tensor | None, keep_ties: bool = False
) -> Tensor:
    """Does what `filter_logits` does with logits at their temperature: on a device, by facts, in few launches."""
    top_k, top_p = (
        None if tensor is None else tensor.to(DTYPES[name]) for name, tensor in (("top_k", top_k), ("top_p", top_p))
    )
    if top_k is None and top_p is None and not logits.is_cpu:
        return torch.nan_to_num(logits.float(), nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if logits.is_cpu or keep_ties or facts is None:
        return filter_logits(logits, top_k=top_k, top_p=top_p, keep_ties=keep_ties)
    return distributions_of(logits, facts, top_k, top_p).filtered(logits)


def distributions_of(logits: Tensor, facts: Facts | None, top_k: Tensor | None, top_p: Tensor | None) -> Distributions:
    """Returns those of rows whose logits are at their temperature.

    Args:
        logits: float [rows, vocab_size].
        facts: what the host knows of top_k and top_p; rows on the CPU need none.
        top_k: int32 [rows]; None: off.
        top_p: float32 [rows]; None: off.
    """
    unread = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    given = dict.fromkeys(DISTRIBUTION) | {"top_k": top_k, "top_p": top_p, "seed": unread, "position": unread}
    given["temperature"] = torch.ones(len(logits), device=logits.device, dtype=torch.float32)
    if facts is not None:
        facts = dict(facts) | {"temperature": np.ones(len(logits), np.float32)}
    return Distributions(RowParameters.of_tensors("filter_logits", logits, given, facts), logits.shape[1])


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device, without waiting for it."""
    if tensor.device.type == "cpu" and device.type != "cpu":
        return table.to_device(tensor.numpy(), device)
    return tensor.to(device, non_blocking=True)
