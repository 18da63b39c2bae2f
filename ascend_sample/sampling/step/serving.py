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
from ascend_sample.sampling.rows.parameters import DTYPES, RowParameters, RowsOutput
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.device_routes import ROUTES, WIDENING, FusedV2, Route, RouteRows, Segments

KEEPING: Final = (FusedV2, Segments)
"""Routes that can return what their filters keep."""
NOTHING: Final[Mapping[str, Any]] = {}


class PlacedGroup(NamedTuple):
    """A group of rows with what serving them needs on the device."""

    route: Route | None  # draws their tokens; None for the CPU kernel
    rows: RowSet  # theirs in the batch
    parameters: RowParameters  # theirs alone, in the operators' terms; but seeds and positions of the whole batch
    columns: int  # how far rows should be apart that may be overwritten


class Placement(NamedTuple):
    """How the rows of a batch are served."""

    groups: Sequence[PlacedGroup]  # each row of the batch is in one of them
    # int64 [batch], where each row of the batch is found when the groups follow one another; None for a single
    # group in the order of the batch
    order: Tensor | None
    constants: StatusConstants | None  # what `status_of` needs; None where nobody asks, and for the CPU kernel

    @property
    def is_native(self) -> bool:
        """Tells whether the CPU kernel serves all rows, which tells their statuses itself."""
        return self.groups[0].route is None

    @property
    def lanes(self) -> int:
        """Returns how many numbers of noise any row reads at most; 0 where the CPU kernel makes them itself."""
        return max(_noise_of(group).lanes for group in self.groups)

    @property
    def returns_kept(self) -> bool:
        """Tells whether all rows are drawn by one call that can return what the filters keep."""
        route = self.groups[0].route
        return len(self.groups) == 1 and self.order is None and isinstance(route, KEEPING) and route.returns_kept

    @classmethod
    def of(cls, groups: Sequence[PlacedGroup], logits: Tensor, has_statuses: bool = True) -> Placement:
        """Makes it of groups that hold each row of a batch once, and of logits like those with the rows' statuses."""
        constants = StatusConstants.like(logits) if has_statuses and groups[0].route is not None else None
        if groups[0].rows.device is None:
            return cls(groups, None, constants)
        order = np.argsort(np.concatenate([group.rows.host for group in groups]))
        return cls(groups, to_device(order, logits.device), constants)


class Drawn(NamedTuple):
    """The tokens of a batch, and what their draw can return besides.

    Attributes:
        token_ids: int64 [batch].
        status: int8 [batch].
        logits: on a device, [batch, vocab_size] that were drawn from; of no meaning where the draw has overwritten
            them. On a CPU those that were given.
        kept: what a device's filters keep, as of `FusedV2.draw_kept`; None: it is not known.
        sets: on a CPU what is kept of the rows of which that is wanted, as `KeptSets` has it; else empty.
        logprobs: on a CPU values, ids and ranks of the rows that ask, as `Logprobs` has them; else empty.
    """

    token_ids: Tensor
    status: Tensor
    logits: Tensor
    kept: Tensor | None = None
    sets: Sequence[Tensor] = ()
    logprobs: Sequence[Tensor] = ()


def place_groups(
    parameters: RowParameters, logits: Tensor, keep_ties: bool, *, rows: npt.NDArray[np.int64] | None = None
) -> Sequence[PlacedGroup]:
    """Chooses the routes of rows and puts on the device what serving them needs.

    Args:
        parameters: of the whole batch; the host knows them.
        logits: those that are sampled from; their shape, dtype and device count.
        keep_ties: top-k keeps every tie at the k-th value.
        rows: the rows that are placed, ascending; None: all.

    Returns:
        Each of the rows is in one of the groups.
    """
    device, vocab_size = logits.device, logits.shape[1]
    assert parameters.facts is not None, "routes are chosen by them"
    count = len(parameters.seed)
    facts = parameters.facts
    if rows is None:
        rows = np.arange(count)
    else:
        facts = {field: array[rows] for field, array in facts.items()}

    placed = []
    abilities = routes.abilities_of(device, logits.dtype)
    for group in routes.group_rows(facts, vocab_size, logits.dtype, abilities, keep_ties):
        of_batch = rows[group.rows]
        route = ROUTES.get(group.route)
        if route is None:
            native = parameters.for_operators(vocab_size)
            placed.append(PlacedGroup(None, RowSet(of_batch, None), native, vocab_size))
            continue
        own, there = sent_for_operators(parameters.of_rows_here(of_batch), of_batch, logits)
        placed.append(
            PlacedGroup(
                route(RouteRows(own, logits, group.most_k, keep_ties, abilities.fused_v2)),
                RowSet(of_batch, None if len(of_batch) == count else there),
                own,
                whole_columns(vocab_size) if route is Segments else vocab_size,
            )
        )
    return placed


def sent_for_operators(
    here: RowParameters, rows: npt.NDArray[np.int64], logits: Tensor
) -> tuple[RowParameters, Tensor]:
    """Sends parameters of some rows, in the operators' terms, and the rows themselves, in one copy and no launch.

    Temperatures of 0 are sent as 1: greedy rows have a top_k of 1.

    Args:
        here: from `RowParameters.of_rows_here`.
        rows: which.
        logits: their columns and device count.

    Returns:
        The parameters on the device, and the rows, int64.
    """
    own, count = here.for_operators(logits.shape[1]), len(rows)
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


def serve(
    logits: Sequence[Tensor],
    placement: Placement,
    position: Tensor | None,
    keep_ties: bool,
    purpose: Purpose,
    keys: DrawKeys | None = None,
) -> RowsOutput:
    """Samples every row of a batch by the route that was chosen for it.

    Args:
        logits: of each group, those of the batch that it is sampled from. They stay as they are.
        placement: how the batch is served.
        position: int64 [batch]; None where ``keys`` are given and nothing is sampled on a CPU.
        keep_ties: as it was given to `place_groups`.
        purpose: of the noise.
        keys: what the host knows of the noise; None: it is made where the seeds are.

    Returns:
        The ids and statuses, in the order of the batch.
    """
    if not placement.is_native:
        return RowsOutput(*draw_on_device(logits, placement, position, purpose, keys)[:2])
    assert position is not None, "the CPU kernel makes its noise itself"
    return RowsOutput(*draw_on_cpu(logits[0], placement, position, keep_ties, purpose)[:2])


def draw_on_cpu(
    logits: Tensor,
    placement: Placement,
    position: Tensor,
    keep_ties: bool,
    purpose: Purpose,
    edits: Mapping[str, Tensor] = NOTHING,
    wanted: Mapping[str, Any] = NOTHING,
) -> Drawn:
    """Draws the tokens of all rows by the CPU kernel, which edits logits as it reads them.

    Args:
        logits: those of the batch.
        placement: as for `serve`.
        position: int64 [batch].
        keep_ties: as for `serve`.
        purpose: of the noise.
        edits: what is done to the logits: arguments of the kernel's operator.
        wanted: what is to be returned besides: arguments of the operator as well.
    """
    assert len(placement.groups) == 1, "the kernel serves all rows"
    tensors = placement.groups[0].parameters.tensors_at(position)
    operator = torch.ops.ascend_sample.sample_rows
    token_ids, status, sets, logprobs = operator(logits, None, *tensors, int(purpose), keep_ties, **edits, **wanted)
    return Drawn(token_ids, status, logits, None, sets, logprobs)


def draw_on_device(
    logits: Sequence[Tensor],
    placement: Placement,
    position: Tensor | None,
    purpose: Purpose,
    keys: DrawKeys | None,
    edited: Tensor | None = None,
    *,
    is_read_again: bool = False,
    is_kept_wanted: bool = False,
) -> Drawn:
    """Draws the tokens of all rows on a device.

    Args:
        logits: as for `serve`.
        placement: as for `serve`.
        position: as for `serve`.
        purpose: of the noise.
        keys: as for `serve`.
        edited: those of the logits that have all rows as they are drawn from; None: all logits are as they came.
        is_read_again: these are not overwritten.
        is_kept_wanted: what the filters keep is returned; `Placement.returns_kept` holds.
    """
    assert placement.constants is not None, "statuses are asked for"
    noise = _noise_of_all(logits[0], placement, position, keys, purpose)
    whole = logits[0] if edited is None else edited
    status = status_of(largest_of(whole), placement.constants)
    overwritten = None if is_read_again else edited
    if is_kept_wanted:
        route = placement.groups[0].route
        assert isinstance(route, KEEPING), "no other route returns it"
        token_ids, kept = route.draw_kept(logits[0], noise[0], is_own=logits[0] is overwritten)
        return Drawn(token_ids, status, whole, kept)
    return Drawn(_tokens(logits, placement, noise, overwritten), status, whole)


def serve_without_status(
    logits: Tensor, placement: Placement, position: Tensor | None, purpose: Purpose, keys: DrawKeys | None
) -> Tensor:
    """Draws the tokens of a batch on a device, int64 [batch], as `serve` does; a pass over the logits is spared."""
    noise = _noise_of_all(logits, placement, position, keys, purpose)
    return _tokens([logits] * len(noise), placement, noise)


def serve_with_noise(logits: Tensor, placement: Placement, noise: Tensor) -> Tensor:
    """Draws the tokens of every row of a batch on a device that has the noise already; nobody asks for statuses.

    Args:
        logits: [batch, vocab_size], which stay as they are.
        placement: how the batch is served.
        noise: float32 [batch, lanes], at least as many as `Placement.lanes`.

    Returns:
        int64 [batch].
    """
    of_groups = [_part_of(noise, group) for group in placement.groups]
    return _tokens([logits] * len(of_groups), placement, of_groups)


def _tokens(
    logits: Sequence[Tensor], placement: Placement, noise: Sequence[Tensor | None], edited: Tensor | None = None
) -> Tensor:
    """Draws the tokens of a batch on a device, in its order, from the logits and the noise of each group."""
    drawn = [_drawn(*each, edited) for each in zip(logits, placement.groups, noise, strict=True)]
    return drawn[0] if placement.order is None else torch.cat(drawn).index_select(0, placement.order)


def _noise_of_all(
    logits: Tensor, placement: Placement, position: Tensor | None, keys: DrawKeys | None, purpose: Purpose
) -> list[Tensor | None]:
    """Makes what each group reads."""
    is_widened = any(isinstance(group.route, WIDENING) for group in placement.groups)
    room = logits.shape[1] if is_widened else 0  # so that `widened` has no need to copy
    return noise_of_groups([_noise_of(group) for group in placement.groups], position, keys, purpose, room)


def _noise_of(group: PlacedGroup) -> NoiseOfRows:
    return NoiseOfRows(group.rows, group.parameters.seed, 0 if group.route is None else group.route.lanes)


def _part_of(noise: Tensor, group: PlacedGroup) -> Tensor | None:
    """Returns what a group reads of the noise of all rows."""
    lanes = _noise_of(group).lanes
    return group.rows.take(noise)[:, :lanes] if lanes else None


def _drawn(logits: Tensor, group: PlacedGroup, noise: Tensor | None, edited: Tensor | None) -> Tensor:
    """Draws the tokens of a group of rows on a device."""
    assert group.route is not None, "it is chosen by the device"
    if group.rows.device is None:
        return group.route(logits, noise, is_own=logits is edited)
    return group.route(group.rows.take(logits), noise, is_own=True)
