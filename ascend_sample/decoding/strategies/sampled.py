"""Sampling draws texts; `sample_and_rank` ranks what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample._errors import check_integer
from ascend_sample.decoding.checks import check_length_penalty
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import GenerationOptions, Request, check_request
from ascend_sample.decoding.row_params import check_generator, checked_params
from ascend_sample.decoding.steps import prefilled
from ascend_sample.decoding.strategies.loop import Choice, Texts, append_tokens
from ascend_sample.decoding.streaming import refuse_listener
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.requests.seeds import derive_seeds
from ascend_sample.sampling.step.distribution import drawn_from

DEFAULT_SAMPLES: Final = 20
"""The number of samples in Adiwardana et al., "Towards a Human-like Open-Domain Chatbot", 2020."""


@torch.no_grad()
def sample(
    model: StepModel,
    input_ids: Tensor,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    num_return_sequences: int = 1,
    generator: torch.Generator | None = None,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Draws every token from the distribution that the parameters of its prompt define.

    A draw is a function of the logits' bits, the seed and the number of tokens before it, padding not counted
    (docs/seeds.md): a seeded prompt has the same tokens alone and in any batch, as far as the model computes the same
    logits.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        params: one `SamplingParams` for each prompt, or one for all. None: the model's distribution as it is. Prompts
            that share a seed share their noise, so equal ones have equal texts; those without a seed never do. Rows
            end at eos_token_id, which has to name their stop_token_ids.
        max_new_tokens: how many tokens are appended at most; one number, or one for each prompt.
        num_return_sequences: how many independent texts each prompt gets. The first has the prompt's seed, the others
            have seeds derived from it.
        generator: where the seeds of prompts without one come from, on the CPU; None is torch's default one.
        **common: see `GenerationOptions`. The logits_processor come before the params. Without any, and without
            penalties and masks, 16-bit logits are drawn from as they are, by the fused operator where it is exact.

    Returns:
        num_return_sequences rows a prompt, in the order in which they were drawn. A row's score is the sum of its
        tokens' log-probabilities under the model alone, before logits_processor and params. `scores`, if asked for,
        is what a softmax of was drawn from. A row that had no token left to draw has -inf, and a RuntimeWarning
        names it.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> coin = ModuleModel(lambda input_ids: torch.tensor([0.5, 0.5, 0.0]).log().expand(*input_ids.shape, 3))
        >>> params = SamplingParams(seed=3)
        >>> output = sample(coin, torch.tensor([[2, 2]]), params, max_new_tokens=6, num_return_sequences=3)
        >>> output.to_lists(), output.sequences_scores
        ([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1]], tensor([-4.1589, -4.1589, -4.1589]))

    Source: docs/decoding.md, section "Greedy search and sampling".
    """
    request = check_request("sample", model, input_ids, max_new_tokens, **common)
    rows = checked_params(request, params)
    check_integer("sample", "num_return_sequences", num_return_sequences, low=1)
    check_generator(request, generator)
    return _sampled(model, request, rows, num_return_sequences, generator)


@torch.no_grad()
def sample_and_rank(
    model: StepModel,
    input_ids: Tensor,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    num_samples: int = DEFAULT_SAMPLES,
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    generator: torch.Generator | None = None,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Draws several texts for each prompt, and returns those that the model itself finds most probable.

    They are ranked by (the sum of the tokens' log-probabilities) / length^length_penalty, where the log-probabilities
    are those of the model alone, before logits_processor and params, and length counts the generated tokens with the
    stop token.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        params: see `sample`. With a temperature of 0 all texts of a prompt are equal.
        max_new_tokens: how many tokens are appended at most; one number, or one for each prompt.
        num_samples: how many texts are drawn for each prompt, with seeds as in `sample`.
        num_return_sequences: how many of them are returned, at most num_samples. Equal texts are not merged.
        length_penalty: 1 ranks by the mean log-probability, 0 by the probability of the text, which prefers short ones.
        generator: see `sample`.
        **common: see `GenerationOptions`. on_tokens is refused, because no text is sure to be returned before all are
            drawn; return_scores keeps those of all that were.

    Returns:
        num_return_sequences rows a prompt, the best first, the one drawn first among equals. A row's score is what it
        was ranked by. A text that had no token left to draw has -inf, and a RuntimeWarning names its prompt.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> coin = ModuleModel(lambda input_ids: torch.tensor([0.8, 0.2]).log().expand(*input_ids.shape, 2))
        >>> prompt, params = torch.tensor([[0]]), SamplingParams(seed=3)
        >>> sample(coin, prompt, params, max_new_tokens=4, num_return_sequences=3).sequences_scores
        tensor([-2.2789, -0.8926, -2.2789])
        >>> sample_and_rank(coin, prompt, params, max_new_tokens=4, num_samples=3).sequences_scores
        tensor([-0.2231])

    Source: docs/decoding.md, section "Greedy search and sampling".
    """
    request = check_request("sample_and_rank", model, input_ids, max_new_tokens, **common)
    rows = checked_params(request, params)
    check_integer("sample_and_rank", "num_samples", num_samples, low=1)
    check_integer("sample_and_rank", "num_return_sequences", num_return_sequences, low=1, high=num_samples)
    check_length_penalty("sample_and_rank", length_penalty, request.max_steps, low=0.0)
    check_generator(request, generator)
    refuse_listener(request.strategy, request.on_tokens)
    drawn = _sampled(model, request, rows, num_samples, generator, named="prompts")
    scores = drawn.sequences_scores / drawn.lengths.float() ** length_penalty
    by_prompt = scores.view(request.batch_size, num_samples)
    order = by_prompt.argsort(dim=1, descending=True, stable=True)[:, :num_return_sequences]
    first = torch.arange(request.batch_size, device=request.device)[:, None] * num_samples
    best = (first + order).flatten()
    lengths = drawn.lengths[best]
    sequences = drawn.sequences[best, : int(lengths.max())]
    return drawn._replace(sequences=sequences, sequences_scores=scores[best], lengths=lengths)


def _sampled(
    model: StepModel,
    request: Request,
    params: list[SamplingParams],
    copies: int,
    generator: torch.Generator | None,
    named: Literal["rows", "prompts"] = "rows",
) -> DecodeOutput:
    texts, start = Texts(request, copies, named), prefilled(model, request, copies)
    rows = _copied(params, copies)
    batch = SamplingBatch(start.logits.shape[1], request.device, capacity=len(rows), generator=generator)
    batch.extend(rows, [prompt for prompt in request.prompts() for _ in range(copies)])
    sampler = Sampler()
    # Where logits are drawn from as they are, a token of probability 0 says that there was no other.
    is_changed = bool(request.logits_processor) or bool(batch.host.is_processed.any())

    def choose(logits: Tensor) -> Choice:
        processed = texts.processed(logits) if request.logits_processor else logits
        scores = drawn_from(processed, batch) if request.needs_scores else processed
        drawn = sampler(processed, batch)
        return Choice(drawn.token_ids, logits, scores, drawn.status if is_changed else None)

    return append_tokens(model, start, texts, choose)


def _copied(params: list[SamplingParams], copies: int) -> list[SamplingParams]:
    """Repeats the parameters of each prompt copies times, each with a seed of its own if it has one at all."""
    copied = []
    for one in params:
        seeds = [None] * copies if one.seed is None else derive_seeds(one.seed, copies)
        copied += [replace(one, seed=seed) for seed in seeds]
    return copied
