"""transformers: a decoding loop for `generate`, and a logits processor.

Tested with transformers 5.23.0 and 5.24.0 (docs/integrations.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig, GenerationMode
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import StoppingCriteriaList

from ascend_sample._errors import check_bool, is_integer, refuse, show_with_type
from ascend_sample.integrations._rows import UniformRows
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.requests.checks import SMALLEST_POSITIVE
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.requests.seeds import derive_seeds, random_seeds, seed_bits

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

NAME: Final = "fused_sampling"
FUSED_ORDER: Final = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
"""The order in which `generate` puts its warpers; it is the sampling layer's too, of the fields of `DISTRIBUTION`."""


def fused_sampling(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    seeds: int | Sequence[int] | Tensor | None = None,
    keep_ties: bool = False,
    token_streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decodes as `generate` does, with temperature, top-k, top-p, min-p and the draw in one call a step.

    Give it to `generate` as ``custom_generate``; `generate` prepares the arguments up to ``generation_config``, and
    passes on ``seeds``, ``keep_ties`` and ``token_streamer``. Everything but the choice of the token is the loop of
    transformers itself: caches, masks, padding, criteria, several end tokens, outputs. A temperature, top-k, top-p,
    min-p at the end of the processors, in this order, becomes part of the draw; processors before it run as they are.

    Args:
        model: the model, from `generate`.
        input_ids: int64 [rows, length], from `generate`, as are the next three.
        logits_processor: all processors, the warpers last.
        stopping_criteria: all of them.
        generation_config: with `do_sample` False the best token is taken, the lowest id among equals.
        seeds: one seed for each row (rows are prompts times `num_return_sequences`), which makes the row's tokens
            independent of the other rows. A single int is the seed of the first row; the other rows get seeds derived
            from it and from their place. None draws them from torch's default generator.
        keep_ties: top-k keeps every logit that is equal to the k-th, as transformers' own does.
        token_streamer: gets the prompt and every token. It is the ``streamer`` of `generate`, which transformers does
            not hand to a ``custom_generate``.
        model_kwargs: what else `generate` prepared.

    Returns:
        What `generate` returns in sampling and greedy mode.

    Raises:
        ValueError: a generation mode that is neither, or seeds that do not fit the rows.
        RuntimeError: transformers' loop did not take the tokens that were drawn.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = LlamaForCausalLM(config).eval()
        >>> prompt = {"input_ids": torch.tensor([[1, 5, 9]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
        >>> settings = {"do_sample": True, "top_k": 20, "top_p": 0.9, "max_new_tokens": 8, "pad_token_id": 0}
        >>> first, again = (
        ...     model.generate(**prompt, **settings, custom_generate=fused_sampling, seeds=[7]) for _ in range(2)
        ... )
        >>> first.shape, torch.equal(first, again)
        (torch.Size([1, 11]), True)
    """
    if token_streamer is not None:  # `generate` does that for a streamer that it knows
        token_streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
    arguments = (input_ids, logits_processor, stopping_criteria, generation_config, seeds, keep_ties)
    return decoded_by(model._sample, model, *arguments, token_streamer, model_kwargs)


def decoded_by(
    loop: Callable[..., Any],
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    seeds: int | Sequence[int] | Tensor | None,
    keep_ties: bool,
    streamer: BaseStreamer | None,
    model_kwargs: dict[str, Any],
) -> Any:
    """Does what `fused_sampling` does, around a loop that is transformers' `_sample`, bound to the model."""
    check_bool(NAME, "keep_ties", keep_ties)
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        remedy = "Leave out what asks for another one, such as num_beams."
        refuse(NAME, "the generation mode", "be sampling or greedy search", mode.value, remedy)
    rows = len(input_ids)
    remaining, parameters = split_warpers(logits_processor)
    if mode is GenerationMode.GREEDY_SEARCH:
        remaining, parameters = list(logits_processor), {"temperature": 0.0}
    chooser = _Chooser(
        UniformRows(keep_ties, **parameters),
        _seeds_of_rows(seeds, rows),
        _positions_after(input_ids, generation_config, model_kwargs, model.config.is_encoder_decoder),
        input_ids.shape[1],
        are_scores_kept=bool(generation_config.return_dict_in_generate and generation_config.output_scores),
    )
    # The loop's greedy branch asks the scores for their argmax, and these scores answer with what was drawn.
    greedy_config = copy.copy(generation_config)
    greedy_config.do_sample = False
    output = loop(
        input_ids,
        logits_processor=LogitsProcessorList([*remaining, chooser]),
        stopping_criteria=stopping_criteria,
        generation_config=greedy_config,
        streamer=streamer,
        **model_kwargs,
    )
    chooser.check_taken()
    if getattr(output, "scores", None) is not None:
        output.scores = tuple(scores.as_subclass(Tensor) for scores in output.scores)
    return output


def draws_already(processors: Sequence[Any]) -> bool:
    """Tells whether processors end with what draws a token of each row."""
    return len(processors) > 0 and isinstance(processors[-1], _Chooser)


class SamplingLogitsProcessor(LogitsProcessor):
    """Temperature, top-k, top-p and min-p in one processor of `generate`, with the sampling layer's exact rules.

    Unlike a chain of transformers' warpers it keeps exactly k of several equal logits, those with the lowest ids.

    Args:
        temperature: 0 keeps the best token alone.
        top_k: None is off.
        top_p: in (0, 1], 1 is off.
        min_p: in [0, 1], 0 is off.
        keep_ties: top-k keeps every logit that is equal to the k-th, as transformers' own does.

    Raises:
        TypeError: a parameter has the wrong type.
        ValueError: a parameter is out of range.

    Example:
        >>> processor = SamplingLogitsProcessor(temperature=0.5, top_k=2)
        >>> processor(torch.tensor([[0]]), torch.tensor([[3.0, 1.0, 2.0, 2.0]]))
        tensor([[6., -inf, 4., -inf]])
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        keep_ties: bool = False,
    ) -> None:
        values: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        SamplingParams(**values)
        check_bool(type(self).__name__, "keep_ties", keep_ties)
        self._rows = UniformRows(keep_ties, **values)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns the kept scores divided by the temperature, and -inf elsewhere: float32 [rows, vocab_size]."""
        return self._rows.filter(scores)


def split_warpers(processors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Takes the warpers that the draw can do itself off the end of the processors.

    Args:
        processors: in the order in which they would run.

    Returns:
        The processors that still have to run, and the parameters of the draw that replaces the others.

    Example:
        >>> remaining, parameters = split_warpers([TopPLogitsWarper(0.5), TopKLogitsWarper(9), TopPLogitsWarper(0.9)])
        >>> len(remaining), parameters
        (1, {'top_p': 0.9, 'top_k': 9})
    """
    remaining = list(processors)
    parameters: dict[str, Any] = {}
    last = len(FUSED_ORDER)
    while remaining and type(remaining[-1]) in FUSED_ORDER[:last] and _is_plain(remaining[-1]):
        warper = remaining.pop()
        last = FUSED_ORDER.index(type(warper))
        name = DISTRIBUTION[last]
        parameters[name] = getattr(warper, name)
    if "top_p" in parameters:  # 0, which transformers allows, keeps one token, as the smallest of ours does
        parameters["top_p"] = max(parameters["top_p"], SMALLEST_POSITIVE)
    return remaining, parameters


def _is_plain(warper: Any) -> bool:
    """Tells whether a warper removes entries for good, and may leave a single one."""
    has_limit = isinstance(warper, (TopPLogitsWarper, MinPLogitsWarper))
    return getattr(warper, "filter_value", -torch.inf) == -torch.inf and not (
        has_limit and warper.min_tokens_to_keep > 1
    )


def _seeds_of_rows(seeds: int | Sequence[int] | Tensor | None, rows: int) -> Tensor:
    """Returns int64 [rows] on the CPU."""
    if seeds is None:
        return random_seeds(rows)
    if is_integer(seeds):
        seeds = derive_seeds(int(seeds) % 2**64, rows)
    values: Any = seeds.tolist() if isinstance(seeds, Tensor) else seeds
    are_ints = isinstance(values, Sequence) and all(map(is_integer, values))
    if not are_ints or len(values) != rows:
        got = f"{len(values)} of them" if are_ints else show_with_type(seeds)
        rule = f"be None, an int, or {rows} ints, one for each returned sequence"
        refuse(NAME, "seeds", rule, got, "Give prompts times num_return_sequences many.")
    return torch.tensor([seed_bits(seed) for seed in values], dtype=torch.int64, device="cpu")


def _positions_after(
    input_ids: Tensor, config: GenerationConfig, model_kwargs: dict[str, Any], is_encoder_decoder: bool
) -> Tensor:
    """Counts the tokens of each row without padding, int64 [rows]: what its first new token's noise belongs to.

    On the CPU, which makes the noise of a device then and sends it with each step; a mask is waited for, once.
    """
    mask = model_kwargs.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask.sum(dim=1, dtype=torch.int64).cpu()
    # A mask of ones was dropped by `generate`. With embeddings as the prompt there are no ids to count.
    length = input_ids.shape[1] or getattr(config, "_mask_length", None) or 0
    return torch.full((len(input_ids),), length, dtype=torch.int64, device="cpu")


class _Chooser(LogitsProcessor):
    """The last processor: draws each row's token and hands out scores that answer with it."""

    def __init__(
        self, rows: UniformRows, seed: Tensor, first_position: Tensor, first_length: int, are_scores_kept: bool
    ) -> None:
        self._rows = rows
        self._seed = seed
        self._first_position = first_position
        self._first_length = first_length
        self._are_scores_kept = are_scores_kept
        self._last: _DrawnScores | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.check_taken()
        position = self._first_position + (input_ids.shape[1] - self._first_length)
        token_ids = self._rows.draw(scores, self._seed, position)
        if self._are_scores_kept and not self._rows.is_greedy:
            scores = self._rows.filter(scores)
        self._last = scores.as_subclass(_DrawnScores)
        self._last.token_ids = token_ids
        self._last.is_taken = False
        return self._last

    def check_taken(self) -> None:
        """Raises if the loop has chosen a token in another way than by the argmax of the scores."""
        if self._last is not None and not self._last.is_taken:
            raise RuntimeError(
                f"{NAME}: transformers' decoding loop did not take the token that was drawn. The model brings a loop "
                "of its own, or this is not a tested version of transformers."
            )


class _DrawnScores(Tensor):
    """Scores whose argmax is the token that was drawn from them; plain scores in everything else."""

    token_ids: Tensor
    is_taken: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.argmax, Tensor.argmax) and isinstance(args[0], _DrawnScores):
            args[0].is_taken = True
            return args[0].token_ids
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
