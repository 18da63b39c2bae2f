"""Faults to plant: each replaces a function of the layer, and what stands around it is the layer's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from planting import Plant, Planter
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling import RowsOutput, SamplingRoute
from ascend_sample.sampling.draws import placed_noise
from ascend_sample.sampling.draws.leftover import Leftover
from ascend_sample.sampling.draws.total_order import mask_below_top_k
from ascend_sample.sampling.edits import plan, slots
from ascend_sample.sampling.edits import row_edits as edits
from ascend_sample.sampling.rows.parameters import TENSORS
from ascend_sample.sampling.step import device_routes, serving

Noise = Callable[..., Tensor]


def around_operator(change: Callable[..., tuple[Any, Any, Tensor]]) -> Plant:
    """Lets something happen to scaled logits, parameters and noise just before an operator or a softmax takes them."""

    def draw(self: Any, values: Tensor, noise: Tensor, left: Leftover | None = None) -> Tensor:
        values, parameters, noise = change(values, self.rows.parameters, device_routes.widened(noise, values))
        return device_routes.FusedV2(self.rows._replace(parameters=parameters))._draw(values, noise, left)

    def weigh(self: Any, values: Tensor, weights: Tensor) -> Tensor:
        values, parameters, _ = change(values.clone(), self.rows.parameters, torch.ones_like(weights))
        return device_routes.Segments(self.rows._replace(parameters=parameters))._weigh(values, weights)

    def plant(planter: Planter) -> None:
        site = "FusedV2._draw or Segments._weigh"
        planter.override([SamplingRoute.FUSED_V2], "_draw", draw, site)
        planter.override([SamplingRoute.SEGMENTS, SamplingRoute.FUSED_SEGMENTS], "_weigh", weigh, site)

    return plant


def around_noise(change: Callable[..., Tensor]) -> Plant:
    """Replaces the noise; ``change`` gets the right function first."""
    original = placed_noise.exponential_noise

    def changed(seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
        return change(original, seed, position, lanes, **options)

    return lambda planter: planter.replace(placed_noise, "exponential_noise", changed)


def without(parameters: Any, *names: str) -> Any:
    """The parameters with some of the filters off."""
    off = {
        "top_k": torch.full_like(parameters.top_k, SKIP_TOP_K),
        "top_p": torch.ones_like(parameters.top_p),
        "min_p": torch.zeros_like(parameters.min_p),
        "temperature": torch.ones_like(parameters.temperature),
    }
    return replace(parameters, **{name: off[name] for name in names})


def in_nucleus(scaled: Tensor, top_p: Tensor, longer: int = 0) -> Tensor:
    """Whether each entry is kept, of a nucleus that is so many entries longer than it should be."""
    weights, ids = scaled.double().softmax(1).sort(dim=1, descending=True, stable=True)
    lengths = ((weights.cumsum(1) - weights) <= top_p.double().unsqueeze(1)).sum(1, keepdim=True) + longer
    kept = torch.arange(scaled.shape[1]) < lengths.clamp_min(1)
    return torch.zeros_like(kept).scatter_(1, ids, kept)


def kept_only(scaled: Tensor, kept: Tensor) -> Tensor:
    return scaled.masked_fill(~kept, -torch.inf)


def bias(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    scaled = scaled.clone()
    scaled[:, 3] += math.log(1.03)
    return scaled, parameters, noise


def nucleus_of_length(longer: int) -> Plant:
    def change(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
        return kept_only(scaled, in_nucleus(scaled, parameters.top_p, longer)), without(parameters, "top_p"), noise

    return around_operator(change)


def rounded_p(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    return scaled, replace(parameters, top_p=parameters.top_p.bfloat16().float()), noise


def divided_in_16_bits(planter: Planter) -> None:
    def divided(values: Tensor, base: Tensor, divisor: Tensor, out: Tensor) -> Tensor:
        return out.copy_((values / divisor).bfloat16())

    planter.replace(device_routes, "scaled", divided)


def every_lane(scaled: Tensor, parameters: Any) -> Tensor:
    """All of the noise: of a row with top-k, the layer draws no more than k lanes."""
    return placed_noise.exponential_noise(parameters.seed, parameters.position, scaled.shape[1])


def one_more_k(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    return scaled, replace(parameters, top_k=parameters.top_k + 1), every_lane(scaled, parameters)


def ties_kept(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    masked = mask_below_top_k(scaled, parameters.top_k, keep_ties=True)
    return masked, without(parameters, "top_k"), every_lane(scaled, parameters)


def top_p_before_top_k(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    return kept_only(scaled, in_nucleus(scaled, parameters.top_p)), without(parameters, "top_p"), noise


def lost_mass(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    return kept_only(scaled, in_nucleus(scaled, torch.full_like(parameters.top_p, 0.9))), parameters, noise


def rank_noise_by_id(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
    """The noise of the first k lanes is all that was drawn; what reads by id finds a buffer of ones beyond."""
    drawn = torch.arange(noise.shape[1]) < parameters.top_k.unsqueeze(1)
    masked = mask_below_top_k(scaled, parameters.top_k, keep_ties=False)
    return masked, without(parameters, "top_k"), torch.where(drawn, noise, 1.0)


def filter_before_temperature(name: str) -> Plant:
    """Top-p or min-p of the softmax at temperature 1, then the temperature."""

    def change(scaled: Tensor, parameters: Any, noise: Tensor) -> tuple[Tensor, Any, Tensor]:
        if name == "top_p":
            kept = in_nucleus(scaled, parameters.top_p)
        else:
            kept = scaled.exp() >= parameters.min_p.unsqueeze(1)
        warm = kept_only(scaled, kept) / parameters.temperature.unsqueeze(1)
        return warm, without(parameters, name), noise

    def undivided(values: Tensor, base: Tensor, divisor: Tensor, out: Tensor) -> Tensor:
        return torch.sub(values, base, out=out)

    def plant(planter: Planter) -> None:
        around_operator(change)(planter)
        planter.replace(device_routes, "scaled", undivided)

    return plant


def second_softmax(planter: Planter) -> None:
    """The first operator for rows of top-p alone: it takes the softmax of the kept probabilities again."""

    def flattened(self: Any, logits: Tensor, noise: Tensor | None, is_own: bool) -> Tensor:
        own, operator = self.rows.parameters, torch.ops.ascend_sample.top_k_top_p_sample
        assert noise is not None, "it has a number for each place"
        q = noise[:, : logits.shape[1]]
        token_ids: Tensor = operator(logits, own.top_k, own.top_p, q, 0.0, False, 32)[0]
        return token_ids

    planter.override([SamplingRoute.FUSED_SEGMENTS], "__call__", flattened)


def occurrences(change: Callable[[slots.Seen], slots.Seen]) -> Plant:
    """Lets the batch count other tokens than those that a row has seen."""
    original = slots.occurrences_of
    return lambda planter: planter.replace(slots, "occurrences_of", lambda seen: original(change(seen)))


def edits_applied_twice(planter: Planter) -> None:
    original = edits.edited

    def twice(logits: Tensor, *changes: Any) -> Tensor:
        return original(original(logits, *changes), *changes)

    planter.replace(edits, "edited", twice)


def masks_one_word_late(planter: Planter) -> None:
    original = plan.mask_out

    def late(logits: Tensor, words: Tensor, bits: Tensor) -> None:
        original(logits, words.roll(1, 1), bits)

    planter.replace(plan, "mask_out", late)


def large_rows(noise_of: Callable[[Tensor], Tensor], eps: float) -> Plant:
    """Whole rows of a large vocabulary by the operator, with another noise or eps: what engines put together."""
    original = placed_noise.exponential_noise

    def changed(logits: Tensor, _rows: slice, tensors: Sequence[Tensor], *_: Any) -> RowsOutput:
        given = dict(zip(TENSORS, tensors, strict=True))
        noise = noise_of(original(given["seed"], given["position"], logits.shape[1]))
        token_ids = torch.ops.ascend_sample.top_k_top_p_sample_v2(
            logits, given["top_k"], given["top_p"], noise, None, eps, False, 32, 1024
        )[0]
        return RowsOutput(token_ids, torch.zeros_like(token_ids, dtype=torch.int8))

    return lambda planter: planter.replace(serving, "_serve_natively", changed)


def of_24_bits(noise: Tensor) -> Tensor:
    """As of a uniform number that is a multiple of 2^-24 (where that differs, the two are equal to 24 bits)."""
    return noise.mul_(2.0**24).ceil_().mul_(2.0**-24)


def one_seed(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(torch.full_like(seed, 7), position, lanes, **options)


def position_ignored(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(seed, torch.zeros_like(position), lanes, **options)


def seed_plus_position(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(seed + position, torch.zeros_like(position), lanes, **options)


def positions_in_pairs(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(seed, position // 2, lanes, **options)


def noise_of_the_place(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(torch.arange(len(seed)), position, lanes, **options)


def one_purpose(noise: Noise, seed: Tensor, position: Tensor, lanes: int, purpose: Any, **options: Any) -> Tensor:
    return noise(seed, position, lanes, **options)


def uniform_noise(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return -torch.expm1(-noise(seed, position, lanes, **options))


def shared_lanes(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
    return noise(seed, position, lanes, **options)[:, ::2].repeat_interleave(2, 1)
