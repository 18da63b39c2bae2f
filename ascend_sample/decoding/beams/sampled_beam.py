"""Beam sample is a beam search whose continuations are drawn, and not the best ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample._errors import refuse
from ascend_sample.decoding.beams.endings import EarlyStopping, FinishedPool, check_early_stopping
from ascend_sample.decoding.beams.run import BeamRun, Candidates, at_least_nothing, check_beams
from ascend_sample.decoding.beams.search import search_beams
from ascend_sample.decoding.checks import check_length_penalty
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import GenerationOptions, check_request
from ascend_sample.decoding.row_params import all_but_draw_fields, check_generator, checked_params
from ascend_sample.sampling import Purpose, SamplingBatch, SamplingParams
from ascend_sample.sampling.draws.best_tokens import best_entries
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.distribution import Distributions


@torch.no_grad()
def beam_sample(
    model: StepModel,
    input_ids: Tensor,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    num_beams: int,
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    generator: torch.Generator | None = None,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Searches with beams and a pool, where each step draws its continuations without replacement.

    Step by step: log-probabilities, the processors, temperature, top-k, top-p and min-p, in each beam. These are added
    to the beams' scores. Of all continuations of a prompt max(2, 1 + stop tokens) * num_beams are drawn without
    replacement, with probabilities proportional to the exponentials of their sums (Plackett-Luce); the race that
    draws them is the best of (sum - log(noise)), the noise being a function of the prompt's seed, the position and
    the place of the continuation (docs/seeds.md). What was drawn is put in the order of its sums, and from there on
    all is as in `beam_search`. What has no probability is never drawn, even where that leaves too few.

    Temperature and filters change a step's log-probabilities, never what was accumulated. They are not normalised
    again, so a score is the sum of what processors, temperature and filters made of the log-probabilities.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        params: temperature above 0, top_k, top_p, min_p and seed for each prompt, or for all. None: nothing is
            changed. Other fields must be off.
        max_new_tokens: at least 1, for all prompts or for each.
        num_beams: how many hypotheses go on, of each prompt.
        num_return_sequences: how many hypotheses are returned of each prompt, at most num_beams.
        length_penalty: the exponent of the length that sums are divided by, see `beam_search`.
        early_stopping: when a prompt with num_beams ended hypotheses is done, see `beam_search`.
        generator: where the seeds of prompts without one come from, on the CPU; None is torch's default one.
        **common: see `GenerationOptions`.

    Returns:
        What `beam_search` returns.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> coin = ModuleModel(lambda input_ids: torch.tensor([0.5, 0.3, 0.2]).log().expand(*input_ids.shape, 3))
        >>> prompts, params = torch.tensor([[0], [0]]), [SamplingParams(seed=1), SamplingParams(seed=5)]
        >>> found = beam_sample(coin, prompts, params, max_new_tokens=4, num_beams=1, length_penalty=0.0)
        >>> found.to_lists(), found.sequences_scores.exp()
        ([[0, 0, 0, 0], [0, 1, 0, 0]], tensor([0.0625, 0.0375]))

    Source: docs/decoding.md, section "Beam sample".
    """
    name = "beam_sample"
    request = check_request(name, model, input_ids, max_new_tokens, **common)
    check_beams(name, num_beams, num_return_sequences)
    check_length_penalty(name, length_penalty, request.max_steps)
    check_early_stopping(name, early_stopping)
    rows = checked_params(
        request, params, all_but_draw_fields(), "Use a logits_processor, which sees each beam's own tokens."
    )
    if any(one.temperature == 0.0 for one in rows):
        refuse(name, "params", "have a temperature above 0", 0.0, "Use beam_search, which draws nothing.")
    check_generator(request, generator)
    run = BeamRun(model, request, num_beams)
    batch = SamplingBatch(run.vocab_size, request.device, capacity=len(rows), generator=generator)
    batch.extend(rows)
    warp = _warper(batch, num_beams)
    seeds, first_positions = batch.seed.clone(), request.prompt_lengths()
    seeds_cpu, first_cpu = batch.host.seed.copy(), first_positions.cpu().numpy()

    pool = FinishedPool(run, num_return_sequences, length_penalty, early_stopping)

    def pick(scores: Tensor, beams: list[Candidates]) -> Candidates:
        step = len(run.step_tokens)
        log_probs = warp(run.log_probs()).view(request.batch_size, num_beams, run.vocab_size)
        keys = DrawKeys(seeds_cpu, first_cpu + step)
        return draw(scores, log_probs, seeds, first_positions + step, pool.count, keys, run.lanes)

    return search_beams(run, pool, pick)


def draw(
    beam_scores: Tensor,
    log_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    count: int,
    keys: DrawKeys | None = None,
    lanes: Tensor | None = None,
) -> Candidates:
    """Draws continuations of each prompt without replacement, in proportion to the exponentials of their sums.

    Args:
        beam_scores: float32 [batch, beams].
        log_probs: float32 [batch, beams, vocab_size].
        seeds: int64 [batch].
        positions: int64 [batch], the position of the tokens that are drawn.
        count: how many continuations are drawn, or all where there are fewer.
        keys: the seeds and positions, where the host knows them.
        lanes: as for `best_entries`.

    Returns:
        The continuations in the order of their sums. Where too few have a probability, the rest has the score NOTHING.
    """
    vocab_size = log_probs.shape[2]
    totals = at_least_nothing(beam_scores[:, :, None] + log_probs).flatten(1)
    prompts = NoiseOfRows(RowSet.all(len(totals)), seeds, totals.shape[1])
    noise = noise_of_groups([prompts], positions, keys, Purpose.DRAW)[0]
    assert noise is not None, "there are tokens to draw"
    # The largest exp(total) / noise wins: the race of `ascend_sample.sampling`, on a scale where nothing underflows.
    _, places = best_entries(totals - noise.log(), min(count, totals.shape[1]), lanes)
    scores, order = totals.gather(1, places).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    return Candidates(scores, places.div(vocab_size, rounding_mode="floor"), places.remainder(vocab_size))


def _warper(batch: SamplingBatch, num_beams: int) -> Callable[[Tensor], Tensor]:
    """Returns what applies temperature and filters to num_beams rows a prompt; what is off for all is left out."""
    parameters = batch.row_parameters().repeated(num_beams)
    if not parameters.filters():
        return lambda log_probs: log_probs
    return Distributions(parameters, batch.vocab_size).kept
