"""Each route's few operators. Nothing here reads a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample._validate import convert_p
from ascend_sample.sampling import routes
from ascend_sample.sampling.distribution import CleanedRows, cleaned_rows, divided_by_temperature, exceeded
from ascend_sample.sampling.noise import Purpose, exponential_noise
from ascend_sample.sampling.routes import LARGEST_FUSED_K, Group, SamplingRoute
from ascend_sample.sampling.row_parameters import RowParameters, RowsOutput
from ascend_sample.sampling.row_table import to_device
from ascend_sample.sampling.total_order import first_of_total_order, mask_below_top_k

NOISE_CHUNK = 8192  # lanes made at a time on devices, so that the integers behind them stay small


class PlacedGroup(NamedTuple):
    """A group of rows with what serving them needs on the device.

    Attributes:
        group: what the host knows.
        source_rows: int64, their rows in the logits that they are sampled from; None: all of those, in order.
        batch_rows: int64, their rows in the batch; None: all, in order.
        unbounded: int64, `Group.unbounded`; None: all of the group's.
        parameters: theirs alone; the position is replaced in each step.
    """

    group: Group
    source_rows: Tensor | None
    batch_rows: Tensor | None
    unbounded: Tensor | None
    parameters: RowParameters


def place_groups(
    parameters: RowParameters,
    logits: Tensor,
    keep_ties: bool,
    round_float32: bool = False,
    *,
    rows: npt.NDArray[np.int64] | None = None,
    is_gathered: bool = False,
) -> Sequence[PlacedGroup]:
    """Chooses the routes of rows and puts on the device what serving them needs.

    Args:
        parameters: of the whole batch; the host knows them.
        logits: those that are sampled from; their shape, dtype and device count.
        keep_ties: top-k keeps every tie at the k-th value.
        round_float32: float32 logits may be rounded to float16 for the first operator.
        rows: the rows that are placed, each once; None: all.
        is_gathered: logits have a row for each of ``rows``, in their order, rather than for each of the batch.

    Returns:
        Each of the rows is in one of the groups.
    """
    device, (height, vocab_size) = logits.device, logits.shape
    assert parameters.facts is not None, "routes are chosen by them"
    count = len(parameters.seed)
    rows = np.arange(count) if rows is None else rows
    facts = {field: array[rows] for field, array in parameters.facts.items()}

    def indices(values: npt.NDArray[np.int64], of: int) -> Tensor | None:
        """Returns the values on the device, or None for what is all of so many, in order."""
        return None if np.array_equal(values, np.arange(of)) else to_device(values, device)

    placed = []
    parameters = parameters.for_operators(vocab_size)
    abilities = routes.abilities_of(device, logits.dtype, round_float32)
    for group in routes.group_rows(facts, vocab_size, logits.dtype, abilities, keep_ties):
        of_batch = rows[group.rows]
        batch_rows = indices(of_batch, count)
        placed.append(
            PlacedGroup(
                group,
                indices(group.rows if is_gathered else of_batch, height),
                batch_rows,
                indices(group.unbounded, len(group.rows)),
                parameters if batch_rows is None else parameters.of_rows(of_batch, batch_rows),
            )
        )
    return placed


def serve(
    work: Sequence[tuple[Tensor, PlacedGroup]], position: Tensor, keep_ties: bool, purpose: Purpose
) -> RowsOutput:
    """Samples every row of a batch by the route that was chosen for it.

    Args:
        work: groups that hold each row of the batch once, each with the logits that it is sampled from.
        position: int64 [batch].
        keep_ties: as it was given to `place_groups`.
        purpose: of the noise.

    Returns:
        The ids and statuses, in the order of the batch.
    """
    logits, placed = work[0]
    if placed.batch_rows is None:  # it holds the whole batch, in order; a single group in another order does not
        return _serve_group(logits, placed, placed.parameters.at(position), keep_ties, purpose)
    token_ids = torch.empty_like(position)
    status = torch.empty_like(position, dtype=torch.int8)
    for logits, placed in work:
        rows = placed.batch_rows
        assert rows is not None  # several groups hold a part of the batch each
        output = _serve_group(logits, placed, placed.parameters.at(position[rows]), keep_ties, purpose)
        token_ids.index_copy_(0, rows, output.token_ids)
        status.index_copy_(0, rows, output.status)
    return RowsOutput(token_ids, status)


def _serve_group(
    logits: Tensor, placed: PlacedGroup, parameters: RowParameters, keep_ties: bool, purpose: Purpose
) -> RowsOutput:
    group, rows = placed.group, placed.source_rows
    if group.route is SamplingRoute.NATIVE and not group.masks_first:
        return _sample_natively(logits, rows, parameters, purpose)
    if rows is not None:
        logits = logits[rows]
    if group.route is SamplingRoute.FUSED:
        return _sample_fused(logits, parameters, group, purpose)
    cleaned = cleaned_rows(logits)
    if group.masks_first:
        masked = mask_below_top_k(cleaned.logits, parameters.top_k, keep_ties, group.most_k)
        cleaned = cleaned._replace(logits=masked)
        is_done = (parameters.top_k != 1) & ((parameters.top_k > LARGEST_FUSED_K) | keep_ties)
        parameters = replace(parameters, top_k=parameters.top_k.masked_fill(is_done, SKIP_TOP_K))
    if group.route is SamplingRoute.NATIVE:
        # The status of the row as it came: masking has hidden nothing but NaN.
        return RowsOutput(_sample_natively(cleaned.logits, None, parameters, purpose).token_ids, cleaned.status)
    if group.route is SamplingRoute.FUSED_ROUNDED:
        return _sample_rounded(cleaned, parameters, group, purpose)
    if group.route is SamplingRoute.TOP_K:
        return _sample_candidates(cleaned, parameters, group, purpose)
    return _sample_whole_rows(cleaned, parameters, placed, purpose)


def _sample_natively(logits: Tensor, rows: Tensor | None, parameters: RowParameters, purpose: Purpose) -> RowsOutput:
    return RowsOutput(
        *torch.ops.ascend_sample.sample_rows(
            logits,
            rows,
            parameters.temperature,
            parameters.top_k,
            parameters.top_p,
            parameters.min_p,
            parameters.seed,
            parameters.position,
            int(purpose),
        )
    )


def _sample_by_operator_v2(scaled: Tensor, parameters: RowParameters, noise: Tensor, is_composite: bool) -> Tensor:
    """Calls top_k_top_p_sample_v2, or its composite, once and returns the ids, int64 [rows]."""
    name = "top_k_top_p_sample_v2_composite" if is_composite else "top_k_top_p_sample_v2"
    operator = getattr(torch.ops.ascend_sample, name)
    # eps is 0: noise is never 0, and an eps of 1e-8 would halve the draws of a token 18 nats below the best.
    top_p = exceeded(parameters.top_p)
    token_ids: Tensor = operator(
        scaled, parameters.top_k, top_p, noise, parameters.min_p, 0.0, False, 32, LARGEST_FUSED_K
    )[0]
    return token_ids


def _sample_candidates(cleaned: CleanedRows, parameters: RowParameters, group: Group, purpose: Purpose) -> RowsOutput:
    """Samples rows with a top_k up to `LARGEST_FUSED_K`: the candidates, in order, are a small row of their own."""
    width = min(group.most_k, cleaned.logits.shape[1])
    values, ids = first_of_total_order(cleaned.logits, width)
    scaled = divided_by_temperature(values, cleaned.maximum, parameters.temperature)
    noise = exponential_noise(parameters.seed, parameters.position, width, purpose=purpose)
    ranks = _sample_by_operator_v2(scaled, parameters, noise, is_composite=True)
    token_ids = ids.gather(1, ranks.unsqueeze(1)).squeeze(1)
    return RowsOutput(_or_first(token_ids, cleaned), cleaned.status)


def _sample_whole_rows(
    cleaned: CleanedRows, parameters: RowParameters, placed: PlacedGroup, purpose: Purpose
) -> RowsOutput:
    vocab_size = cleaned.logits.shape[1]
    scaled = divided_by_temperature(cleaned.logits, cleaned.maximum, parameters.temperature)
    noise = _noise_that_is_read(parameters, placed, vocab_size, purpose)
    is_composite = placed.group.route is SamplingRoute.COMPOSITE
    token_ids = _sample_by_operator_v2(scaled, parameters, noise, is_composite)
    return RowsOutput(_or_first(token_ids, cleaned), cleaned.status)


def _or_first(token_ids: Tensor, cleaned: CleanedRows) -> Tensor:
    """Returns the ids, with 0 where a row has nothing to draw."""
    return token_ids.masked_fill(cleaned.maximum[:, 0] == -torch.inf, 0)


def _noise_that_is_read(parameters: RowParameters, placed: PlacedGroup, vocab_size: int, purpose: Purpose) -> Tensor:
    """Draws noise, float32 [rows, vocab_size], of which rows with a top-k get that many lanes and the others all."""
    rows = parameters.seed.shape[0]
    noise = torch.empty(rows, vocab_size, dtype=torch.float32, device=parameters.seed.device)
    width = min(placed.group.most_k + placed.group.most_k % 2, vocab_size)
    noise[:, :width] = exponential_noise(parameters.seed, parameters.position, width, purpose=purpose)
    if len(placed.group.unbounded) == 0:
        return noise
    seed, position = parameters.seed, parameters.position
    if placed.unbounded is not None:
        seed, position = seed[placed.unbounded], position[placed.unbounded]
    for first in range(width, vocab_size, NOISE_CHUNK):
        lanes = min(NOISE_CHUNK, vocab_size - first)
        chunk = exponential_noise(seed, position, lanes, purpose=purpose, first_lane=first)
        if placed.unbounded is None:
            noise[:, first : first + lanes] = chunk
        else:
            noise[:, first : first + lanes].index_copy_(0, placed.unbounded, chunk)
    return noise


def _sample_fused(logits: Tensor, parameters: RowParameters, group: Group, purpose: Purpose) -> RowsOutput:
    """Samples by the first operator, on 16-bit logits as they came.

    A draw from softmax(x / t) is argmax of w^(1/t) / q, where w = softmax(x); the same entry has the largest w / q^t.
    """
    noise = exponential_noise(parameters.seed, parameters.position, group.most_k, purpose=purpose)
    token_ids = _sample_by_operator(logits, parameters, noise ** parameters.temperature.unsqueeze(1))
    cleaned = cleaned_rows(logits)
    # What a device makes of NaN is not documented: whatever it is, the id is one of the vocabulary.
    return RowsOutput(_or_first(token_ids.clamp(0, logits.shape[1] - 1), cleaned), cleaned.status)


def _sample_rounded(cleaned: CleanedRows, parameters: RowParameters, group: Group, purpose: Purpose) -> RowsOutput:
    """Samples by the first operator, on float32 logits rounded to float16 after a shift of the best ones to near 0."""
    rounded = divided_by_temperature(cleaned.logits, cleaned.maximum, parameters.temperature).to(torch.float16)
    noise = exponential_noise(parameters.seed, parameters.position, group.most_k, purpose=purpose)
    token_ids = _sample_by_operator(rounded, parameters, noise)
    return RowsOutput(_or_first(token_ids, cleaned), cleaned.status)


def _sample_by_operator(logits: Tensor, parameters: RowParameters, first_lanes: Tensor) -> Tensor:
    """Calls top_k_top_p_sample once, on rows that all have a top_k: it reads no lane beyond the first ones."""
    noise = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    noise[:, : first_lanes.shape[1]] = first_lanes
    top_p = convert_p(parameters.top_p, logits)  # what is below 1 stays below 1
    token_ids: Tensor = torch.ops.ascend_sample.top_k_top_p_sample(
        logits, parameters.top_k, top_p, noise, 0.0, False, 32
    )[0]
    return token_ids
