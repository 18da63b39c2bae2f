"""Samplers that are wrong in one way each: faults that engines have shipped, and near misses.

A fault replaces a function of the layer while a case is drawn: what stands around it is the layer's own. `wrong` is the
distribution that comes of it, from which the gate's power follows by formula; None where the fault leaves no
distribution (draws that are no longer independent), and its power is a frequency over several keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import faults
import numpy as np
import torch
from draws import Case
from experiments import HEAD_NATS, LARGE_VOCAB_SIZE, heavy_tail, tail_probability
from gate import Booleans, Floats
from torch import Tensor

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference import process_row

SIZE: Final = 200


@dataclass(frozen=True)
class Mutant:
    """A fault, and the experiment that has to stop it.

    Attributes:
        name: what is wrong.
        plant: puts it into the layer.
        case: what is drawn; None where the experiment has a row of its own.
        experiment: "counts" of the case, or a key of `experiments.JUDGES`, or "batches".
        wrong: the distribution that comes of it.
        rate: of tail hits, for the heavy tail.
        draws: how many the gate needs to be sure of it.
        is_quick: also in the normal run.
        on: the machine whose functions it replaces.
    """

    name: str
    plant: faults.Plant
    case: Case | None = None
    experiment: str = "counts"
    wrong: Callable[[Case], Floats] | None = None
    rate: float | None = None
    draws: int = 20_000
    is_quick: bool = True
    on: str = "second operator"


def _of_kept(case: Case, kept: Booleans) -> Floats:
    processed = process_row(case.logits.double().numpy(), case.params, case.prompt_ids, case.output_ids)
    scaled = (processed - processed[kept].max()) / case.params.temperature
    weights = np.where(kept, np.exp(scaled), 0)
    return weights / weights.sum()


def _changed(**changes: Any) -> Callable[[Case], Floats]:
    """Another request's distribution."""

    def wrong(case: Case) -> Floats:
        return replace(case, params=SamplingParams.from_mapping(case.params.to_mapping() | changes)).target()

    return wrong


def _with_nucleus(longer: int = 0, **changes: Any) -> Callable[[Case], Floats]:
    """The weights of the case, on the set that another request keeps or with a nucleus of another length."""

    def wrong(case: Case) -> Floats:
        kept = case.kept(**changes)
        if longer:
            scaled = case.logits.double().unsqueeze(0) / case.params.temperature
            kept = faults.in_nucleus(scaled, torch.tensor([case.params.top_p]), longer)[0].numpy()
        return _of_kept(case, kept)

    return wrong


def _edited_before(case: Case) -> Floats:
    processed = process_row(case.logits.double().numpy(), case.params, case.prompt_ids, case.output_ids)
    return replace(case, logits=torch.from_numpy(processed)).target()


def _biased(case: Case) -> Floats:
    wrong = case.target() * np.where(np.arange(case.vocab_size) == 3, 1.03, 1)
    return wrong / wrong.sum()


def _softmax_twice(case: Case) -> Floats:
    target = case.target()
    weights = np.where(target > 0, np.exp(target), 0)
    return weights / weights.sum()


def _of_rounded_quotients(case: Case) -> Floats:
    weights = (case.logits / case.params.temperature).bfloat16().double().softmax(0)
    return weights.numpy()


def _both_filters_on_the_whole(case: Case) -> Floats:
    return _of_kept(case, case.kept(top_k=None) & case.kept(top_p=1.0))


def _without_a_tenth(case: Case) -> Floats:
    return _of_kept(case, case.kept(top_p=0.9))


def _case(name: str, logits: Tensor, **params: Any) -> Case:
    return Case(name, logits, SamplingParams(**params))


def _normal(sigma: float, seed: int) -> Tensor:
    return torch.from_numpy(sigma * np.random.default_rng(seed).normal(size=SIZE)).float()


HAND_WORKED: Final = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
STAIRS: Final = torch.from_numpy(np.random.default_rng(5).integers(0, 5, size=SIZE)).float()
FLAT: Final = _normal(0.02, 6)
PENALISED: Final = Case(
    "penalties",
    _normal(1.0, 7),
    SamplingParams(repetition_penalty=1.25, presence_penalty=0.75),
    prompt_ids=tuple(range(0, 100)),
    output_ids=tuple(range(60, 140)),
)
PLAIN: Final = _case("sigma 1.5", _normal(1.5, 8))


def _tail_rate_of_24_bits() -> float:
    """One of the 128255 lanes is at the lowest step, 2^-24, and the head's noise exceeds e^18 of that."""
    lanes = LARGE_VOCAB_SIZE - 1
    steps = np.arange(1, 40) * 2.0**-24
    first_at = np.exp(-lanes * (steps - 2.0**-24)) - np.exp(-lanes * steps)  # the least noise of the tail
    return float((first_at * np.exp(-math.exp(HEAD_NATS) * steps)).sum())


EPS: Final = 1e-8
MUTANTS: Final = (
    Mutant(
        "3 % more of one token",
        faults.around_operator(faults.bias),
        _case("hand", HAND_WORKED),
        wrong=_biased,
        draws=1_000_000,
    ),
    Mutant(
        "uniforms of 24 bits",
        faults.large_rows(faults.of_24_bits, 0.0),
        heavy_tail(),
        "heavy tail",
        rate=_tail_rate_of_24_bits(),
        draws=30_000,
        is_quick=False,
        on="native",
    ),
    Mutant(
        "eps = 1e-8",
        faults.large_rows(lambda noise: noise, EPS),
        heavy_tail(),
        "heavy tail",
        # The tail wins where its noise is below e^-18 of the head's, less eps: an exponential one above eps e^18.
        rate=tail_probability() * math.exp(-EPS * math.exp(HEAD_NATS)),
        draws=170_000,
        is_quick=False,
        on="native",
    ),
    Mutant(
        "the least likely tenth of the mass lost",
        faults.around_operator(faults.lost_mass),
        PLAIN,
        wrong=_without_a_tenth,
    ),
    Mutant(
        "nucleus one short",
        faults.nucleus_of_length(-1),
        _case("p = 0.9", _normal(1, 1), top_p=0.9),
        wrong=_with_nucleus(-1),
    ),
    Mutant(
        "nucleus one long",
        faults.nucleus_of_length(1),
        _case("p = 0.9", _normal(1, 1), top_p=0.9),
        wrong=_with_nucleus(1),
    ),
    Mutant(
        "p = 0.9 rounded to bfloat16",
        faults.around_operator(faults.rounded_p),
        _case("p = 0.9", FLAT, top_p=0.9),
        wrong=_changed(top_p=0.8984375),
    ),
    Mutant(
        "p = 0.999 rounded to bfloat16",
        faults.around_operator(faults.rounded_p),
        _case("p = 0.999", _normal(2, 2), top_p=0.999),
        wrong=_changed(top_p=1.0),
        draws=40_000,
    ),
    Mutant(
        "top-p before temperature",
        faults.filter_before_temperature("top_p"),
        _case("p = 0.8, T = 0.7", _normal(1, 3), top_p=0.8, temperature=0.7),
        wrong=_with_nucleus(temperature=1.0),
    ),
    Mutant(
        "min-p before temperature",
        faults.filter_before_temperature("min_p"),
        _case("min-p = 0.1, T = 1.5", _normal(1, 4), min_p=0.1, temperature=1.5),
        wrong=_with_nucleus(temperature=1.0),
    ),
    Mutant(
        "top-p before top-k",
        faults.around_operator(faults.top_p_before_top_k),
        _case("k = 50, p = 0.9", _normal(1, 5), top_k=50, top_p=0.9),
        wrong=_both_filters_on_the_whole,
    ),
    Mutant(
        "k one too large",
        faults.around_operator(faults.one_more_k),
        _case("k = 20", PLAIN.logits, top_k=20),
        wrong=_changed(top_k=21),
    ),
    Mutant(
        "ties kept where nobody asks",
        faults.around_operator(faults.ties_kept),
        _case("k = 20, ties", STAIRS, top_k=20),
        wrong=lambda case: replace(case, keep_ties=True).target(),
    ),
    Mutant("second softmax", faults.second_softmax, _case("p = 0.9", PLAIN.logits, top_p=0.9), wrong=_softmax_twice),
    Mutant(
        "presence penalty on the prompt",
        faults.occurrences(lambda seen: seen._replace(output_ids=np.concatenate(seen))),
        PENALISED,
        wrong=lambda case: replace(case, output_ids=case.output_ids + case.prompt_ids).target(),
    ),
    Mutant(
        "repetition penalty on the output alone",
        faults.occurrences(lambda seen: seen._replace(prompt_ids=seen.prompt_ids[:0])),
        PENALISED,
        wrong=lambda case: replace(case, prompt_ids=()).target(),
        draws=40_000,
    ),
    Mutant("edits applied twice", faults.edits_applied_twice, PENALISED, wrong=_edited_before),
    Mutant(
        "a word of a mask read for the next one",
        faults.masks_one_word_late,
        _case("allowed", PLAIN.logits, allowed_ids=range(10, 90)),
        wrong=_changed(allowed_ids=range(42, 122)),
    ),
    Mutant(
        "division by the temperature in bfloat16",
        faults.divided_in_16_bits,
        _case("T = 0.7", _normal(1, 9) + 20, temperature=0.7),
        wrong=_of_rounded_quotients,
        draws=200_000,
    ),
    Mutant(
        "noise by rank read by id",
        faults.around_operator(faults.rank_noise_by_id),
        _case("k = 20", PLAIN.logits, top_k=20),
    ),
    Mutant("one seed for all rows", faults.around_noise(faults.one_seed), PLAIN),
    Mutant("position ignored", faults.around_noise(faults.position_ignored), PLAIN),
    Mutant("uniform noise", faults.around_noise(faults.uniform_noise), _case("hand", HAND_WORKED)),
    Mutant("two lanes share a number", faults.around_noise(faults.shared_lanes), PLAIN),
    Mutant("seed plus position", faults.around_noise(faults.seed_plus_position), None, "seeds"),
    Mutant("positions in pairs", faults.around_noise(faults.positions_in_pairs), None, "lags"),
    Mutant("purposes are one", faults.around_noise(faults.one_purpose), None, "purposes"),
    Mutant("noise of the row's place", faults.around_noise(faults.noise_of_the_place), None, "batches"),
)
