"""transformers' GenerationConfig, as an object or as a mapping of its fields."""

from __future__ import annotations

from typing import Final

from ascend_sample.requests.dialect import (
    ANSWER,
    LENGTH,
    ROWS,
    Context,
    Dialect,
    Values,
    copied,
    each,
    engines,
    refused,
    same,
    taken,
)
from ascend_sample.requests.values import (
    FLAG,
    ID_OR_IDS,
    IDS,
    PAIRS_OF_IDS,
    SEQUENCES,
    above_zero,
    pairs_of,
    sequence_of,
)

DEFAULT_TOP_K: Final = 50
"""What `generate` takes where the configuration has None."""

RUN: Final = engines("The model's or generate's: how logits are computed.")
CUTOFFS: Final = ("typical_p", "epsilon_cutoff", "eta_cutoff")
"""Filters that come last in generate, each measured among what is left."""
IN_BEAMS: Final = "Call ascend_sample.decoding.beam_search"


def _is_measured_elsewhere(ours: Values) -> bool:
    """Tells whether one of these filters is on beside another: alone it does the same."""
    cutoffs = [ours.get("typical_p", 1) < 1, ours.get("epsilon_cutoff", 0) > 0, ours.get("eta_cutoff", 0) > 0]
    others = [ours.get("top_k") is not None, ours.get("top_p", 1) < 1, ours.get("min_p", 0) > 0]
    return any(cutoffs) and sum(cutoffs) + sum(others) > 1


def _combine(ours: Values, given: Values, context: Context) -> None:
    if given.get("do_sample"):
        ours["top_k"] = given.get("top_k", DEFAULT_TOP_K) or None
    else:
        for name in ("top_p", "min_p", *CUTOFFS):
            ours.pop(name, None)
        ours["temperature"] = 0.0
    never_bad = {(end,) for end in (*ours.get("stop_token_ids", ()), *(context.eos_ids or ()))}
    ours["bad_words"] = {sequence_of(word) for word in given.get("bad_words_ids", ())} - never_bad
    pairs = pairs_of(given.get("sequence_bias", {}))
    for ids, _ in pairs:
        if len(ids) != 1:
            context.refuse("sequence_bias", "hold sequences of one id each", ids, "Longer ones have no bias here.")
    ours["logit_bias"] = {token_id: value for (token_id,), value in pairs}


GENERATION_CONFIG: Final = Dialect(
    "generation_config",
    "transformers.GenerationConfig (5.24.0)",
    {
        "do_sample": taken("temperature", note="False or None is greedy, whatever the filters are.", form=FLAG),
        "top_k": taken("top_k", note="None is 50, as generate takes it, and 0 is off."),
        "top_p": copied("top_p", convert=above_zero),
        **same("temperature", "min_p", *CUTOFFS, "repetition_penalty", "no_repeat_ngram_size"),
        "bad_words_ids": taken(
            "bad_words",
            "suppress_token_ids",
            note="Those of one id are suppress_token_ids; an id that ends the text is none.",
            form=SEQUENCES,
        ),
        "suppress_tokens": copied("suppress_token_ids", form=IDS),
        "sequence_bias": taken("logit_bias", note="Sequences of one id; longer ones are refused.", form=PAIRS_OF_IDS),
        "min_new_tokens": copied("min_tokens", note="Beside eos_token_id or eos_ids, which are not drawn before."),
        "eos_token_id": copied("stop_token_ids", form=ID_OR_IDS, convert=sequence_of),
        "min_length": refused("It counts the prompt: give min_new_tokens.", 0),
        "top_h": refused("No filter here does this."),
        "encoder_no_repeat_ngram_size": refused("The prompt of the encoder is not seen here.", 0),
        "encoder_repetition_penalty": refused("The prompt of the encoder is not seen here.", 1.0),
        "begin_suppress_tokens": refused("Ids are forbidden for the whole text here, by suppress_token_ids.", []),
        "forced_bos_token_id": refused("No id is forced here: append it without a draw."),
        "forced_eos_token_id": refused("No id is forced here: append it without a draw."),
        "exponential_decay_length_penalty": refused("No rule here raises the end's logit."),
        "guidance_scale": refused("Combine the logits of both prompts before the sampler.", 1.0, 1),
        "watermarking_config": refused("Draws are not watermarked here."),
        "num_beams": refused(f"{IN_BEAMS} or beam_sample.", 1),
        "num_beam_groups": refused("Call ascend_sample.decoding.group_beam_search.", 1),
        "diversity_penalty": refused("Call ascend_sample.decoding.group_beam_search.", 0.0),
        "penalty_alpha": refused("Call ascend_sample.decoding.contrastive_search.", 0.0),
        "constraints": refused("A grammar's bitmask can force a text."),
        "force_words_ids": refused("A grammar's bitmask can force a text."),
        "dola_layers": refused("It changes the logits: do that before the sampler."),
        "token_healing": refused("It changes the prompt's end: do that before.", False),
        **each("length_penalty early_stopping", engines("Of beams alone, which are refused.")),
        **each("max_length max_new_tokens max_time stop_strings", LENGTH),
        "num_return_sequences": ROWS,
        **each(
            "renormalize_logits remove_invalid_values",
            engines("No draw depends on it: weights need no sum, and invalid logits are never drawn."),
        ),
        **each(
            "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate "
            "transformers_version",
            ANSWER,
        ),
        **each(
            "use_cache use_mtp cache_implementation cache_config max_cache_len pad_token_id bos_token_id "
            "decoder_start_token_id is_assistant num_assistant_tokens num_assistant_tokens_schedule "
            "assistant_confidence_threshold assistant_early_exit assistant_lookbehind "
            "assistant_ensemble_weight target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size "
            "speculation_type compile_config disable_compile continuous_batching_config low_memory "
            "prefill_chunk_size",
            RUN,
        ),
    },
    _combine,
    {
        "generate applies typical_p, epsilon_cutoff and eta_cutoff last, to what other filters keep (its top_k is 50 "
        "where it is left out); here they come first, and all look at the same distribution.": _is_measured_elsewhere,
    },
)
