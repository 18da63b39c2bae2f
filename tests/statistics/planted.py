"""Samplers that are wrong in one way each: faults that engines have shipped, and near misses.

A fault replaces a function of the layer while a case is drawn: what stands around it is the layer's own. `wrong` is the
distribution that comes of it, from which the gate's power follows by formula; None where the fault leaves no
distribution (draws that are no longer independent), and its power is a frequency over several keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import faults
import numpy as np
import segment_faults
import torch
from draws import Case
from experiments import HEAD_NATS, LARGE_VOCAB_SIZE, heavy_tail, mirrored, tail_probability
from gate import Booleans, Floats
from planting import Plant
from torch import Tensor

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.draws.segmented import SEGMENT, segments_of
from ascend_sample.sampling.edits.processing import words_of

SIZE: Final = 200


@dataclass(frozen=True)
class Mutant:
    """A fault, and the experiment that has to stop it.

    Attributes:
        name: what is wrong.
        plant: puts it into the layer.
        case: what is drawn; None where the experiment has a row of its own.
        experiment: "counts" of the case, alone or "in a batch", or a key of `experiments.JUDGES`, or "batches".
        wrong: the distribution that comes of it.
        rate: of tail hits, for the heavy tail.
        draws: how many the gate needs to be sure of it.
        is_quick: also in the normal run.
        on: the machine whose functions it replaces.
    """

    name: str
    plant: Plant
    case: Case | None = None
    experiment: str = "counts"
    wrong: Callable[[Case], Floats] | None = None
    rate: float | None = None
    draws: int = 20_000
    is_quick: bool = True
    on: str = "second operator"


def _of_kept(case: Case, kept: Booleans) -> Floats:
    processed = case.processed()
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
    return replace(case, logits=torch.from_numpy(case.processed())).target()


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


def _with_sums(sums_of: Callable[[Case], Floats]) -> Callable[[Case], Floats]:
    """Places as they should be, and segments drawn from other sums."""

    def wrong(case: Case) -> Floats:
        target, segments = case.target(), segments_of(case.vocab_size)
        of_ids = np.repeat(np.arange(segments), SEGMENT)[: case.vocab_size]
        right, sums = np.bincount(of_ids, target), sums_of(case)
        mixed: Floats = (sums / sums.sum())[of_ids] * target / np.where(right > 0, right, 1)[of_ids]
        mixed[(np.arange(segments) * SEGMENT)[right == 0]] = (sums / sums.sum())[right == 0]
        return mixed

    return wrong


def _sums(case: Case) -> Floats:
    """Of the segments, in the weights that the draw has: the largest of all is 1."""
    target = case.target()
    whole = np.zeros(segments_of(case.vocab_size) * SEGMENT)
    whole[: case.vocab_size] = target / target.max()
    return whole.reshape(-1, SEGMENT).sum(1)


def _changed_sums(change: segment_faults.Sums) -> Callable[[Case], Floats]:
    def sums_of(case: Case) -> Floats:
        changed: Floats = change(torch.from_numpy(_sums(case)).unsqueeze(0), case.vocab_size)[0].numpy()
        return changed

    return _with_sums(sums_of)


def _rolled_bitmask(case: Case) -> Floats:
    assert case.bitmask is not None
    return replace(case, bitmask=case.bitmask.roll(1)).target()


def _unmasked(case: Case) -> Floats:
    return replace(case, bitmask=None).target()


def bitmask_of(vocab_size: int, allowed: Iterable[int]) -> Tensor:
    """int32 [words], with the bits of these ids."""
    bits = np.zeros(words_of(vocab_size) * 32, np.bool_)
    bits[list(allowed)] = True
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def _case(name: str, logits: Tensor, **params: Any) -> Case:
    return Case(name, logits, SamplingParams(**params))


def _normal(sigma: float, seed: int, size: int = SIZE) -> Tensor:
    return torch.from_numpy(sigma * np.random.default_rng(seed).normal(size=size)).float()


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
SEGMENTS: Final = _case("three segments", _normal(1.0, 10, 600) + torch.arange(600) / 400)
"""Of which the last one has 88 ids, and each has another sum."""
HOLLOW: Final = _case("a segment of no mass", SEGMENTS.logits, allowed_ids=[*range(256), *range(512, 600)])
GRAMMAR: Final = replace(PLAIN, name="grammar", bitmask=bitmask_of(SIZE, range(10, 90)))


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
        "a word of a bitmask read for the next one",
        segment_faults.bitmasks_one_word_late,
        GRAMMAR,
        wrong=_rolled_bitmask,
    ),
    Mutant(
        "the same on a CPU",
        segment_faults.native_bitmasks_one_word_late,
        GRAMMAR,
        "in a batch",
        wrong=_rolled_bitmask,
        draws=2_000,
        on="native",
    ),
    Mutant(
        "the bitmask of the row before",
        segment_faults.bitmasks_of_the_row_before,
        GRAMMAR,
        "in a batch",
        wrong=_unmasked,
        draws=2_000,
    ),
    Mutant(
        "the same on a CPU, too",
        segment_faults.native_bitmasks_of_the_row_before,
        GRAMMAR,
        "in a batch",
        wrong=_unmasked,
        draws=2_000,
        on="native",
    ),
    Mutant(
        "segment sums of the row before",
        segment_faults.of_sums(segment_faults.of_the_row_before),
        SEGMENTS,
        "in a batch",
        wrong=_with_sums(lambda case: _sums(mirrored(case))),
        draws=4_000,
    ),
    Mutant(
        "a short last segment lost",
        segment_faults.of_sums(segment_faults.without_a_short_end),
        SEGMENTS,
        wrong=_changed_sums(segment_faults.without_a_short_end),
    ),
    Mutant(
        "a short last segment taken for a full one",
        segment_faults.of_sums(segment_faults.full_ends),
        SEGMENTS,
        wrong=_changed_sums(segment_faults.full_ends),
    ),
    Mutant(
        "a segment of no mass may win",
        segment_faults.of_sums(segment_faults.never_nothing),
        HOLLOW,
        wrong=_changed_sums(segment_faults.never_nothing),
    ),
    Mutant("one noise for segments and places", segment_faults.shared_noise, SEGMENTS, draws=80_000),
    Mutant("a stale buffer of noise", segment_faults.stale_buffer(), None, "seeds"),
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
