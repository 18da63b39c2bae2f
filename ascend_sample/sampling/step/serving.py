"""Serves groups of rows: each by its route, with noise that all of them get at once. Nothing here reads a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import ALIGNMENT, DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.draws.segmented import whole_columns
from ascend_sample.sampling.draws.weights import StatusConstants, largest_of, status_of
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.parameters import DTYPES, RowParameters
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.device_routes import Route, Segments, route_of
from ascend_sample.sampling.step.routes import Booleans

NOTHING: Final[Mapping[str, Any]] = {}


class Placement(NamedTuple):
    """How the rows of a batch are served, and what their draw returns besides tokens.

    Attributes:
        parameters: of the batch; for the CPU kernel in the operators' terms.
        keep_ties: top-k keeps every tie at the k-th value.
        routes: of a device, each row of the batch has one of them; none for the CPU kernel, which serves all rows.
        order: int64 [batch], where each row of the batch is found when the routes' rows follow one another; None for a
            single route in the order of the batch.
        constants: what `status_of` needs; None: each draw makes it.
        wanted: what the CPU kernel returns besides: arguments of its operator.
        is_kept_wanted: a device's draw returns what its filters keep; `returns_kept` holds.
        is_read_again: a device's draw does not overwrite edited logits.
    """

    parameters: RowParameters
    keep_ties: bool
    routes: Sequence[Route] = ()
    order: Tensor | None = None
    constants: StatusConstants | None = None
    wanted: Mapping[str, Any] = NOTHING
    is_kept_wanted: bool = False
    is_read_again: bool = False

    @classmethod
    def of(
        cls,
        parameters: RowParameters,
        logits: Tensor,
        keep_ties: bool,
        is_edited: Booleans | None = None,
    ) -> Placement:
        """Chooses the routes of rows and puts on the device what serving them needs.

        Args:
            parameters: of the batch; the host knows them.
            logits: those that are sampled from; their shape, dtype and device count.
            keep_ties: top-k keeps every tie at the k-th value.
            is_edited: bool [batch], the rows that are sampled from as float32; None: none is.
        """
        if routes.abilities_of(logits.device, logits.dtype).native:
            return cls(parameters.for_operators(logits.shape[1]), keep_ties)
        if is_edited is None:
            is_edited = np.zeros(len(logits), dtype=np.bool_)
        placed = _placed(parameters, logits, keep_ties, np.flatnonzero(~is_edited), is_edited=False)
        if is_edited.any():
            wide = logits.new_empty((), dtype=torch.float32).expand(logits.shape)
            placed += _placed(parameters, wide, keep_ties, np.flatnonzero(is_edited), is_edited=True)
        order = None
        if placed[0].rows.device is not None:
            order = to_device(np.argsort(np.concatenate([route.rows.host for route in placed])), logits.device)
        return cls(parameters, keep_ties, placed, order)

    @property
    def is_native(self) -> bool:
        """Tells whether the CPU kernel serves all rows, which tells their statuses itself."""
        return not self.routes

    @property
    def returns_kept(self) -> bool:
        """Tells whether all rows are drawn by one call that can return what the filters keep."""
        return len(self.routes) == 1 and self.order is None and self.routes[0].returns_kept

    def columns(self, vocab_size: int) -> int:
        """Returns how far rows of edited logits should be apart: the draw by segments may work in their memory."""
        is_alone = len(self.routes) == 1 and not self.is_read_again
        return whole_columns(vocab_size) if is_alone and isinstance(self.routes[0], Segments) else vocab_size


class Drawn(NamedTuple):
    """The tokens of a batch, and what their draw can return besides.

    Attributes:
        token_ids: int64 [batch].
        status: int8 [batch].
        logits: on a device, [batch, vocab_size] that were drawn from; of no meaning where the draw has overwritten
            them. On a CPU those that were given.
        kept: what a device's filters keep, as of `Route.draw`; None: it is not known.
        sets: on a CPU what is kept of the rows of which that is wanted, as `KeptSets` has it; else empty.
        logprobs: on a CPU values, ids and ranks of the rows that ask, as `Logprobs` has them; else empty.
    """

    token_ids: Tensor
    status: Tensor
    logits: Tensor
    kept: Tensor | None = None
    sets: Sequence[Tensor] = ()
    logprobs: Sequence[Tensor] = ()


def _placed(
    parameters: RowParameters, logits: Tensor, keep_ties: bool, rows: npt.NDArray[np.int64], is_edited: bool
) -> list[Route]:
    """Makes the routes of some rows of a batch; each of them has one."""
    if not len(rows):
        return []
    assert parameters.facts is not None, "routes are chosen by them"
    facts = {field: array[rows] for field, array in parameters.facts.items()}
    abilities = routes.abilities_of(logits.device, logits.dtype)
    placed = []
    for name, places, most_k in routes.group_rows(facts, logits.shape[1], logits.dtype, abilities, keep_ties):
        own, there = sent_for_operators(parameters, rows[places], logits)
        route = route_of(name, own, logits, most_k, keep_ties, abilities.fused_v2)
        is_whole = len(places) == len(parameters.seed)
        route.rows, route.is_edited = RowSet(rows[places], None if is_whole else there), is_edited
        placed.append(route)
    return placed


def sent_for_operators(
    parameters: RowParameters, rows: npt.NDArray[np.int64], logits: Tensor
) -> tuple[RowParameters, Tensor]:
    """Sends parameters of some rows, in the operators' terms, and the rows themselves, in one copy and no launch.

    Temperatures of 0 are sent as 1: greedy rows have a top_k of 1.

    Args:
        parameters: of the batch; the host knows them. Seeds and positions stay as they are.
        rows: which.
        logits: their columns and device count.

    Returns:
        The parameters on the device, and the rows, int64.
    """
    assert parameters.facts is not None, "the host knows them"
    facts, count = {field: array[rows] for field, array in parameters.facts.items()}, len(rows)
    here: dict[str, Any] = {field: torch.from_numpy(array) for field, array in facts.items()}
    own = replace(parameters, **here, facts=facts).for_operators(logits.shape[1])
    own = replace(own, temperature=own.temperature.masked_fill(own.temperature == 0, 1))
    words = np.zeros((2 + len(DISTRIBUTION), -(-count // ALIGNMENT) * ALIGNMENT), np.int32)
    words[:2].reshape(-1)[: 2 * count] = rows.view(np.int32)
    for place, field in enumerate(DISTRIBUTION, start=2):
        words[place, :count] = getattr(own, field).view(torch.int32).numpy()
    sent = to_device(words, logits.device)
    columns: dict[str, Any] = {
        field: sent[place, :count].view(DTYPES[field]) for place, field in enumerate(DISTRIBUTION, start=2)
    }
    return replace(own, **columns), sent.view(-1)[: 2 * count].view(torch.int64)


def draw(
    logits: Tensor,
    placement: Placement,
    position: Tensor | None,
    purpose: Purpose,
    keys: DrawKeys | None = None,
    *,
    edits: Mapping[str, Tensor] = NOTHING,
    edited: Tensor | None = None,
) -> Drawn:
    """Draws the tokens of all rows of a batch, each by the route that was chosen for it.

    Args:
        logits: those of the batch. They stay as they are.
        placement: how the batch is served.
        position: int64 [batch]; None where ``keys`` are given and nothing is sampled on a CPU.
        purpose: of the noise.
        keys: what the host knows of the noise; None: it is made where the seeds are.
        edits: what the CPU kernel does to the logits as it reads them: arguments of its operator.
        edited: the logits on a device after edits; None: as they came.
    """
    if placement.is_native:
        assert position is not None, "the CPU kernel makes its noise itself"
        given = (*placement.parameters.tensors_at(position), int(purpose), placement.keep_ties)
        operator = torch.ops.ascend_sample.sample_rows
        token_ids, status, sets, logprobs = operator(logits, None, *given, **edits, **placement.wanted)
        return Drawn(token_ids, status, logits, None, sets, logprobs)
    noise = _noise(logits, placement, position, purpose, keys)
    whole = logits if edited is None else edited
    constants = StatusConstants.like(whole) if placement.constants is None else placement.constants
    status = status_of(largest_of(whole), constants)
    if placement.is_kept_wanted:
        route = placement.routes[0]
        token_ids, kept = route.draw(*_source(logits, edited, placement, route, noise[0]), is_kept_wanted=True)
        return Drawn(token_ids, status, whole, kept)
    return Drawn(_tokens(logits, placement, noise, edited), status, whole)


def draw_tokens(
    logits: Tensor, placement: Placement, position: Tensor | None, purpose: Purpose, keys: DrawKeys | None
) -> Tensor:
    """Draws the tokens that `draw` does, int64 [batch], alone: on a device a pass over the logits is spared."""
    if placement.is_native:
        return draw(logits, placement, position, purpose).token_ids
    return _tokens(logits, placement, _noise(logits, placement, position, purpose, keys))


def _noise(
    logits: Tensor, placement: Placement, position: Tensor | None, purpose: Purpose, keys: DrawKeys | None
) -> list[Tensor | None]:
    """Makes what each route reads."""
    seed = placement.parameters.seed
    reading = [NoiseOfRows(route.rows, seed, route.lanes) for route in placement.routes]
    is_widened = any(route.is_widened for route in placement.routes)
    room = logits.shape[1] if is_widened else 0  # so that `widened` has no need to copy
    return noise_of_groups(reading, position, keys, purpose, room)


def _tokens(
    logits: Tensor, placement: Placement, noise: Sequence[Tensor | None], edited: Tensor | None = None
) -> Tensor:
    """Draws the tokens of a batch on a device, in its order, with the noise of each route."""
    drawn = [
        route(*_source(logits, edited, placement, route, numbers))
        for route, numbers in zip(placement.routes, noise, strict=True)
    ]
    return drawn[0] if placement.order is None else torch.cat(drawn).index_select(0, placement.order)


def _source(
    logits: Tensor, edited: Tensor | None, placement: Placement, route: Route, noise: Tensor | None
) -> tuple[Tensor, Tensor | None, bool]:
    """Returns the arguments of a route: its logits, its noise, and whether the logits may be overwritten."""
    is_own = route.is_edited and edited is not None and not placement.is_read_again
    source = edited if route.is_edited and edited is not None else logits
    if route.rows.device is None:
        return source, noise, is_own
    return route.rows.take(source), noise, True
