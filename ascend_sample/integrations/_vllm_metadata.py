"""What a step of vLLM's V1 runner asks for, by its `SamplingMetadata`."""

from __future__ import annotations

from typing import Any, Final

SMALLEST_TEMPERATURE: Final = 1e-5
"""Below it vLLM takes the best token."""
MIN_P: Final = "MinPLogitsProcessor"
MIN_TOKENS: Final = "MinTokensLogitsProcessor"
IDLE: Final = {MIN_P: "min_p_count", "LogitBiasLogitsProcessor": "biases", MIN_TOKENS: "min_toks"}
"""What V1's own processors of logits have where a request asks for them; else they change nothing."""


def is_unedited(sampling_metadata: Any) -> bool:
    """Tells whether nothing changes the logits before the temperature: penalties, masks, biases and the like."""
    thinking = getattr(sampling_metadata, "thinking_budget_state_holder", None)  # 0.18 has none
    return (
        sampling_metadata.no_penalties
        and sampling_metadata.allowed_token_ids_mask is None
        and not sampling_metadata.bad_words_token_ids
        and (thinking is None or not thinking.has_tracked_requests())
        and all(map(is_idle, sampling_metadata.logitsprocs.non_argmax_invariant))
    )


def names_ids(sampling_metadata: Any) -> bool:
    """Tells whether a request asks for logprobs of ids that it names."""
    return bool(getattr(sampling_metadata, "logprob_token_ids", None))  # 0.18 has none


def is_idle(processor: Any) -> bool:
    """Tells whether a processor of logits changes nothing in this step; of a foreign one nobody knows."""
    name = type(processor).__name__
    return is_vllms(processor) and name in IDLE and not getattr(processor, IDLE[name])


def is_vllms(processor: Any) -> bool:
    """Tells whether a processor of logits is one of vLLM's own."""
    return type(processor).__module__.startswith("vllm.")
