"""A GenerationConfig of transformers tells the strategies which tokens are possible, and where texts end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ascend_sample.decoding.model import ENCODER_IDS, ENCODER_MASK
from ascend_sample.decoding.request import NO_DEFAULTS, GenerationDefaults, LogitsProcessor, Request


class _Group(NamedTuple):
    """Holds prompts of one length, which transformers may be told of as a batch without padding."""

    prompts: Tensor  # int64 [n], their numbers
    input_ids: Tensor  # int64 [n, length], their tokens without padding
    # int64 [n, source length], what the encoder reads, without padding; the prompts where there is none
    source_ids: torch.LongTensor
    most: int  # the length of the texts at their max_new_tokens, prompts included
    eos: Tensor  # the stop tokens of the request
    begin: int  # the length of the texts when the first token is chosen that nothing forces

    @property
    def length(self) -> int:
        """Returns the length of the prompts."""
        return self.input_ids.shape[1]


_PROCESSORS: Final[dict[str, Callable[[Any, _Group], LogitsProcessor]]] = {
    "sequence_bias": lambda value, group: SequenceBiasLogitsProcessor(value),
    "encoder_repetition_penalty": lambda value, group: EncoderRepetitionPenaltyLogitsProcessor(value, group.source_ids),
    "repetition_penalty": lambda value, group: RepetitionPenaltyLogitsProcessor(value),
    "no_repeat_ngram_size": lambda value, group: NoRepeatNGramLogitsProcessor(value),
    "encoder_no_repeat_ngram_size": lambda value, group: EncoderNoRepeatNGramLogitsProcessor(value, group.source_ids),
    "bad_words_ids": lambda value, group: NoBadWordsLogitsProcessor(value, group.eos),
    "min_length": lambda value, group: MinLengthLogitsProcessor(value, group.eos),
    "min_new_tokens": lambda value, group: MinNewTokensLengthLogitsProcessor(group.length, value, group.eos),
    "forced_bos_token_id": lambda value, group: ForcedBOSTokenLogitsProcessor(value),
    "forced_eos_token_id": lambda value, group: ForcedEOSTokenLogitsProcessor(
        group.most, value, device=group.eos.device.type
    ),
    "exponential_decay_length_penalty": lambda value, group: ExponentialDecayLengthPenalty(
        value, group.eos, group.length
    ),
    "suppress_tokens": lambda value, group: SuppressTokensLogitsProcessor(value),
    "begin_suppress_tokens": lambda value, group: SuppressTokensAtBeginLogitsProcessor(value, group.begin),
}
"""The settings that are honoured by processors, in the order in which transformers applies them."""

_NEED_SOURCE: Final = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
_NEED_STOP_TOKENS: Final = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")


def defaults_of_config(config: GenerationConfig | None) -> GenerationDefaults:
    """Returns what a configuration says about which tokens are possible and where a text ends.

    Example:
        >>> defaults = defaults_of_config(GenerationConfig(eos_token_id=[2, 5], no_repeat_ngram_size=3, top_k=7))
        >>> defaults.eos_token_id, defaults.pad_token_id, defaults.rules
        ((2, 5), None, ('no_repeat_ngram_size=3',))
    """
    if config is None:
        return NO_DEFAULTS
    settings = {name: value for name in _PROCESSORS if _is_on(name, value := getattr(config, name, None))}
    if getattr(config, "min_new_tokens", None) is not None:  # which generate takes in its place
        settings.pop("min_length", None)

    def processors(request: Request) -> Sequence[LogitsProcessor]:
        found = _OfEachLength(settings, request)
        return [found] if any(found.processors) else []

    return GenerationDefaults(
        eos_token_id=tuple(_tokens(config.eos_token_id)),
        pad_token_id=next(iter(_tokens(config.pad_token_id)), None),
        rules=tuple(f"{name}={value}" for name, value in settings.items()),
        processors=processors,
    )


def start_tokens(config: GenerationConfig | None) -> list[int]:
    """Returns what a decoder starts with: one token, or one for each row; empty where nothing is said."""
    if config is None:
        return []
    return _tokens(config.decoder_start_token_id) or _tokens(config.bos_token_id)


def _tokens(value: int | Sequence[int] | None) -> list[int]:
    """Returns the tokens that value names, where some configurations say -1 for none."""
    values = [] if value is None else [value] if isinstance(value, int) else list(value)
    return [token for token in values if token >= 0]


def _is_on(name: str, value: Any) -> bool:
    if name.startswith("forced_"):  # 0 is a token
        return value is not None
    return bool(value) and not (name.endswith("repetition_penalty") and value == 1.0)


class _OfEachLength:
    """Applies logits processors of transformers, which are told of each row as if it were alone and not padded.

    transformers counts columns: beside a longer prompt, a row's padding would count as a part of its text. So the
    prompts of each length have processors of their own, and so have those of each max_new_tokens.

    Args:
        settings: the settings that ask for processors, by name.
        request: the request that they serve. Where its own logits_processor has one of the same class, that one
            replaces it.
    """

    def __init__(self, settings: dict[str, Any], request: Request) -> None:
        self._prompts, self._width = request.batch_size, request.input_ids.shape[1]
        own = {type(processor) for processor in request.logits_processor}
        has_source = ENCODER_IDS in request.encoder or not request.encoder
        names = [
            name
            for name in settings
            if (has_source or name not in _NEED_SOURCE)
            and (len(request.eos_token_ids) or name not in _NEED_STOP_TOKENS)
        ]
        self._groups = _groups_of(request, settings) if names else []
        made = [[_PROCESSORS[name](settings[name], group) for name in names] for group in self._groups]
        self.processors = [[one for one in those if type(one) not in own] for those in made]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `LogitsProcessor`; there may be several rows for each prompt, one after the other."""
        copies = len(input_ids) // self._prompts
        # Padding behind the end of a text may be none of the vocabulary, and what becomes of such a row is of no use.
        new = input_ids[:, self._width :].clamp(max=scores.shape[1] - 1)
        result = torch.empty_like(scores)
        each = torch.arange(copies, device=scores.device)
        for group, processors in zip(self._groups, self.processors, strict=True):
            rows = (group.prompts[:, None] * copies + each).flatten()
            texts = torch.cat((group.input_ids.repeat_interleave(copies, dim=0), new[rows]), dim=1)
            changed = scores[rows]
            for processor in processors:
                changed = processor(texts, changed)
            result[rows] = changed
        return result


def _groups_of(request: Request, settings: dict[str, Any]) -> list[_Group]:
    source_ids = request.encoder.get(ENCODER_IDS, request.input_ids)
    mask = request.attention_mask
    source_mask = request.encoder.get(ENCODER_MASK, torch.ones_like(source_ids)).bool() if request.encoder else mask
    sizes = torch.stack((mask.sum(dim=1), request.max_new_tokens, source_mask.sum(dim=1)), dim=1).tolist()
    groups = []
    for length, room, source_length in sorted(set(map(tuple, sizes))):
        members = [row for row, size in enumerate(sizes) if tuple(size) == (length, room, source_length)]
        prompts = torch.tensor(members, device=request.device)
        first_is_forced = length == 1 and "forced_bos_token_id" in settings
        groups.append(
            _Group(
                prompts=prompts,
                input_ids=request.input_ids[prompts][mask[prompts]].view(-1, length),
                source_ids=cast(torch.LongTensor, source_ids[prompts][source_mask[prompts]].view(-1, source_length)),
                most=length + room,
                eos=request.eos_token_ids.to(request.device),
                begin=length + first_is_forced,
            )
        )
    return groups
