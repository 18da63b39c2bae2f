"""Mistakes that a copy of the source documents' speculative decoding makes: each is planted, and a test notices it."""

from __future__ import annotations

import torch

from ascend_sample.decoding import distributions
from ascend_sample.decoding.speculation import acceptance, drafters, ragged_texts, speculative
from ascend_sample.sampling.step import distribution
from tests.decoding.planting import Trap, noticed
from tests.decoding.speculation import test_acceptance, test_drafters, test_speculative
from tests.decoding.speculation.speculative_worlds import make_worlds
from tests.decoding.speculation.test_speculative_exact import assert_exact
from tests.decoding.tiny_models import tiny_model

ROWS_EACH = 1500


def places_are_exact() -> None:
    test_acceptance.test_each_place_has_the_targets_distribution(True)


def places_are_exact_without_q() -> None:
    test_acceptance.test_each_place_has_the_targets_distribution(False)


def joint_is_exact() -> None:
    assert_exact(make_worlds()[:2], 2, None, ROWS_EACH)


def places_are_drafted_anew() -> None:
    test_drafters.test_by_block_a_place_is_drafted_anew_in_each_round("block")


def greedy_is_greedy() -> None:
    for seed in (1, 2, 3):
        test_speculative.test_greedy_is_the_targets_greedy("another", tiny_model(seed=seed), 3)


def greedy_is_greedy_in_any_batch() -> None:
    for seed in (1, 2, 3):
        test_speculative.test_a_greedy_row_beside_a_drawn_one_is_greedy(seed)


def probabilities_are_right() -> None:
    test_acceptance.test_probabilities_of_all_places_at_once_are_those_of_each(torch.float32, "cpu")


def drafts_are_the_models() -> None:
    test_drafters.test_a_model_drafts_from_its_own_distribution_wherever_rows_are(3)


TRAPS = [
    Trap(
        "u is constant: reseeded for each token",
        acceptance,
        "(position[:, None] + places).flatten()",
        "(0 * (position[:, None] + places)).flatten()",
        test_acceptance.test_one_seed_at_many_positions_is_as_random_as_many_seeds,
    ),
    Trap(
        "u is the same at all places of a round",
        acceptance,
        "(position[:, None] + places).flatten()",
        "(position[:, None] + 0 * places).flatten()",
        places_are_exact,
    ),
    Trap(
        "seed 0 means u = 1",
        acceptance,
        "uniform = torch.exp(-of_places)",
        "uniform = torch.where(sampling.seed[:, None] == 0, 1.0, torch.exp(-of_places))",
        test_acceptance.test_one_seed_at_many_positions_is_as_random_as_many_seeds,
    ),
    Trap("u is 1", acceptance, "torch.exp(-of_places)", "torch.exp(0 * of_places)", places_are_exact),
    Trap(
        "greedy rows are accepted by p / q of the softmax",
        distribution,
        "            logits, own.temperature, own.top_k, own.top_p, own.min_p",
        "            logits, own.temperature.clamp(min=1.0), own.top_k.clamp(min=2), own.top_p, own.min_p",
        greedy_is_greedy_in_any_batch,
    ),
    Trap(
        "greedy rows keep what they are offered",
        acceptance,
        "_first_rejected(draft.tokens == best[:, :count], counts, sampling.places)",
        "_first_rejected(draft.tokens == draft.tokens, counts, sampling.places)",
        greedy_is_greedy,
    ),
    Trap(
        "greedy rows get the best token of the place before",
        acceptance,
        "counts, sampling.places), best",
        "counts, sampling.places), best.roll(1, 1)",
        test_acceptance.test_greedy_rows_by_hand,
    ),
    Trap(
        "top-k is hard-coded to 2",
        distribution,
        "            logits, own.temperature, own.top_k, own.top_p, own.min_p",
        "            logits, own.temperature, torch.full_like(own.top_k, 2), own.top_p, own.min_p",
        probabilities_are_right,
    ),
    Trap(
        "the filter changes the logits that it is given",
        distribution,
        "            found: Tensor = torch.ops.ascend_sample.filter_probabilities(",
        "            logits.mul_(0.5)\n            found: Tensor = torch.ops.ascend_sample.filter_probabilities(",
        test_acceptance.test_probabilities_leave_the_logits_as_they_are,
    ),
    Trap(
        "a draw of id 0 is an error",
        distributions,
        "return (weights / noise).argmax(dim=1)",
        "tokens = (weights / noise).argmax(dim=1)\n"
        "    if (tokens == 0).any():\n        raise RuntimeError\n    return tokens",
        test_speculative.test_token_0_is_a_token,
    ),
    Trap(
        "an empty residual is NaN",
        acceptance,
        "return torch.where((rest > 0).any(dim=1, keepdim=True), rest, p)",
        "return rest / rest.sum(dim=1, keepdim=True)",
        test_acceptance.test_an_empty_residual_gives_a_draw_from_the_target,
    ),
    Trap(
        "the last round overshoots the maximum length",
        speculative,
        "wanted = (texts.room - 1).clamp(min=0, max=count) if",
        "wanted = torch.full_like(texts.room, count) if",
        test_speculative.test_no_model_sees_a_place_beyond_a_rows_end,
    ),
    Trap(
        "one acceptance for the whole batch",
        acceptance,
        "first = torch.where(stays, each[-1], each[:-1]).amin(dim=1)",
        "first = torch.where(stays, each[-1], each[:-1]).amin(dim=1).amin().expand(len(stays))",
        test_acceptance.test_rows_do_not_depend_on_their_batch,
    ),
    Trap(
        "a rejected token is drawn again from p",
        acceptance,
        "rest = (p - _at_place(draft.probabilities, place)).clamp(min=0)",
        "rest = p",
        places_are_exact,
    ),
    Trap(
        "a rejected token of a drafter without q is drawn again from p",
        acceptance,
        "rest = p.scatter(1, token, 0.0)",
        "rest = p",
        places_are_exact_without_q,
    ),
    Trap(
        "the residual is that of the place before",
        acceptance,
        "place = accepted.clamp(max=count - 1)",
        "place = (accepted - 1).clamp(min=0)",
        places_are_exact,
    ),
    Trap(
        "the bonus token is missing",
        speculative,
        "emitted = texts.append(new, accepted + 1)",
        "emitted = texts.append(new, torch.minimum(accepted + 1, draft.counts.clamp(min=1)))",
        test_speculative.test_passes_are_saved_and_counted,
    ),
    Trap(
        "the bonus token is drawn from the place before",
        acceptance,
        "bonus = sampling.draw(_at_place(logits, accepted)",
        "bonus = sampling.draw(_at_place(logits, accepted.clamp(max=count - 1))",
        places_are_exact,
    ),
    Trap(
        "by block a draft that went is drawn again from the noise that decided",
        drafters,
        'if self.rule != "block":',
        "if True:",
        places_are_drafted_anew,
    ),
    Trap(
        "the target's cache keeps rejected tokens",
        speculative,
        "self.cache = self.model.rollback(self.cache, start)",
        "pass",
        joint_is_exact,
    ),
    Trap(
        "the draft's cache keeps rejected tokens",
        drafters,
        "cache = self.model.rollback(state.cache, first)",
        "cache = state.cache",
        drafts_are_the_models,
    ),
    Trap(
        "the draft's cache lacks its last token after a draft that was accepted",
        drafters,
        "state._replace(cache=cache, missing=2)",
        "state._replace(cache=cache, missing=1)",
        drafts_are_the_models,
    ),
    Trap(
        "tokens behind a stop token stay",
        ragged_texts,
        "torch.minimum(counts, up_to_eos)",
        "counts",
        test_speculative.test_stop_tokens_inside_a_draft_end_the_row_there,
    ),
    Trap(
        "one of several stop tokens ends no row",
        ragged_texts,
        "self.request.is_eos(tokens)",
        "(tokens == self.request.eos_token_ids[:1])",
        test_speculative.test_stop_tokens_inside_a_draft_end_the_row_there,
    ),
]

test_trap = noticed(TRAPS)
