"""What faithful copies of the source documents get wrong about beams: each mistake is planted, and noticed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from ascend_sample.decoding import request
from ascend_sample.decoding.beams import beam, group_beam, in_beam, pool, run, sampled_beam
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.draws import best_tokens
from tests.decoding.beams.probability_models import EOS, LETTERS, START, A, B, random_table, table_model
from tests.decoding.beams.test_beam_brute_force import assert_best_two
from tests.decoding.planting import Trap, noticed
from tests.decoding.tiny_models import TinyCausal, tiny_model


def letters(**options: Any) -> DecodeOutput:
    given = {"max_new_tokens": 3, "num_beams": 2, "length_penalty": 0.0, "eos_token_id": EOS, **options}
    return beam.beam_search(table_model(LETTERS), torch.tensor([[START]]), **given)


def flat_ids_above_2_to_the_24() -> None:
    each = 2**23 + 1001
    log_probs = torch.full((1, 3, each), -1.0)
    log_probs[0, 2, -1] = 0.0
    tokens = torch.arange(each).expand(1, 3, each)
    chosen = run.choose(torch.zeros(1, 3), log_probs, tokens, 1)
    assert (chosen.beams.item(), chosen.tokens.item()) == (2, each - 1)


def beams_differ() -> None:
    for finished in ("pool", "in_beam"):
        assert letters(finished=finished, num_return_sequences=2).to_lists() == [[B, EOS], [A, B, EOS]]


def a_penalty_discourages_the_end() -> None:
    assert EOS not in letters(finished="in_beam", eos_penalty=0.01).to_lists()[0]


def lengths_count_generated_tokens() -> None:
    found = letters(finished="in_beam", length_penalty=2.0)
    assert found.sequences_scores.item() == pytest.approx(math.log(0.36) / (7 / 6) ** 2, abs=1e-5)


def the_start_may_be_the_end() -> None:
    # START is the stop token, and follows B for sure.
    table = [[0.0, 0.6, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    found = beam.beam_search(
        table_model(table),
        torch.tensor([[START]]),
        max_new_tokens=4,
        num_beams=2,
        num_return_sequences=2,
        finished="in_beam",
        eos_token_id=START,
    )
    assert found.to_lists() == [[A, B, START], [B, START]]
    assert found.lengths.tolist() == [3, 2]


def more_beams_than_tokens() -> None:
    for finished in ("pool", "in_beam"):
        found = letters(finished=finished, num_beams=7, num_return_sequences=3)
        assert found.to_lists()[0] == [B, EOS]


def more_sequences_than_beams_are_refused() -> None:
    with pytest.raises(ValueError, match="num_return_sequences must be at most num_beams, 2, got 3"):
        letters(num_return_sequences=3)


def scores_come_with_the_best() -> None:
    found = letters(num_return_sequences=2)
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.36, 0.225]))


def beams_move_with_their_cache() -> None:
    module, prompts = TinyCausal(vocab_size=6, sharpness=0.5), torch.tensor([[0], [1]])
    for finished in ("pool", "in_beam"):
        found = beam.beam_search(
            ModuleModel(module),
            prompts,
            max_new_tokens=5,
            num_beams=3,
            num_return_sequences=3,
            finished=finished,
            length_penalty=0.0,
        )
        whole = torch.cat((prompts.repeat_interleave(3, dim=0), found.sequences), dim=1)
        with torch.no_grad():
            log_probs = module(whole[:, :-1])[0].log_softmax(dim=2)
        scores = log_probs.gather(2, found.sequences[:, :, None]).sum(dim=(1, 2))
        torch.testing.assert_close(found.sequences_scores, scores)


def each_stop_token_stops() -> None:
    for finished in ("pool", "in_beam"):
        found = letters(finished=finished, eos_token_id=[EOS, B], num_return_sequences=2)
        assert found.to_lists() == [[B], [A, B]]


def a_score_adds_each_step_once() -> None:
    table = random_table(7, seed=4)
    params = SamplingParams(temperature=0.5, seed=3)
    found = sampled_beam.beam_sample(
        table_model(table), torch.tensor([[1]]), params, max_new_tokens=4, num_beams=2, length_penalty=0.0
    )
    path = [1, *found.to_lists()[0]]
    score = sum(2 * float(table[a, b].log()) for a, b in itertools.pairwise(path))
    assert found.sequences_scores.item() == pytest.approx(score, abs=1e-4)


def the_impossible_is_never_drawn() -> None:
    table = torch.tensor([0.5, 0.5, 0, 0]).log()
    model = ModuleModel(lambda input_ids: table.expand(*input_ids.shape, 4))
    found = sampled_beam.beam_sample(model, torch.tensor([[0]]), max_new_tokens=1, num_beams=3, num_return_sequences=3)
    assert sorted(found.to_lists()) == [[], [0], [1]]


def the_prompt_has_no_length() -> None:
    found = letters(length_penalty=1.0)
    assert found.sequences_scores.item() == pytest.approx(math.log(0.225) / 3, abs=1e-5)


def in_groups(**options: Any) -> DecodeOutput:
    given = {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5, "num_return_sequences": 2, **options}
    prompt = torch.tensor([[START]])
    model = table_model(LETTERS)
    return group_beam.group_beam_search(model, prompt, max_new_tokens=3, eos_token_id=EOS, **given)


def each_group_has_its_pool() -> None:
    assert sorted(in_groups().to_lists()) == [[A, B, EOS], [B, EOS]]


def groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(ValueError, match="num_beams must be a multiple of num_beam_groups, 2, got 3"):
        in_groups(num_beams=3)


def in_both_modes(model: ModuleModel, **options: Any) -> list[DecodeOutput]:
    """Of each mode, by the native operator and, because of a processor, by torch."""
    return [
        beam.beam_search(model, torch.tensor([[0]]), finished=finished, logits_processor=processors, **options)
        for finished in ("pool", "in_beam")
        for processors in ([], [lambda input_ids, scores: scores])
    ]


def eight_beams_of_30000_tokens() -> None:
    logits = torch.randn(1, 30000, generator=torch.Generator().manual_seed(0))
    model = ModuleModel(lambda input_ids: logits.expand(*input_ids.shape, 30000))
    for found in in_both_modes(model, max_new_tokens=1, num_beams=8, num_return_sequences=8):
        assert found.sequences[:, 0].tolist() == logits[0].topk(8).indices.tolist()


def equal_scores_have_slots_of_their_own() -> None:
    even = table_model(torch.full((7, 7), 1 / 7))
    for found in in_both_modes(even, max_new_tokens=2, num_beams=4, num_return_sequences=4):
        assert found.to_lists() == [[0, 0], [0, 1], [0, 2], [0, 3]]


def the_improbable_is_better_than_nothing() -> None:
    model = ModuleModel(lambda input_ids: torch.tensor([0.0, -200.0, -300.0]).expand(*input_ids.shape, 3))
    for found in in_both_modes(model, max_new_tokens=1, num_beams=3, num_return_sequences=3):
        assert found.sequences_scores.tolist() == [0.0, -200.0, -300.0]


def all_of_a_hypothesis_moves_with_it() -> None:
    for seed in range(0, 40, 3):
        assert_best_two("in_beam", seed)
    found = beam.beam_search(
        tiny_model(vocab_size=5, sharpness=1.0),
        torch.tensor([[1], [2], [3]]),
        max_new_tokens=6,
        num_beams=3,
        num_return_sequences=3,
        finished="in_beam",
        eos_token_id=0,
    )
    for tokens, length in zip(found.sequences.tolist(), found.lengths.tolist(), strict=True):
        assert tokens.index(0) + 1 == length if 0 in tokens[:length] else length == 6


_LAST_LINE = "return run.finish(final.gather(1, order), lengths.gather(1, order), tokens, beams)"
_POOLS = "[FinishedPool(request, size, length_penalty, early_stopping) for _ in range(num_beam_groups)]"
_GATHERED = "values.gather(1, places)"
_SAME_SLOT = "best := values.topk(count, dim=1).values, (values[:, None] == best[:, :, None]).int().argmax(dim=2)"

TRAPS = [
    Trap(
        "000: a division in float32 loses the last bits of flat ids above 2^24",
        run,
        'beams = places.div(each, rounding_mode="floor")',
        "beams = (places.to(torch.float32) / each).floor().long()",
        flat_ids_above_2_to_the_24,
    ),
    Trap(
        "000: a mask that multiplies makes NaN of infinities",
        in_beam,
        "log_probs = torch.where(ended[:, :, None], itself, log_probs)",
        "log_probs = log_probs * ~ended[:, :, None] + itself.where(itself == 0, -torch.inf) * ended[:, :, None]",
        beams_differ,
    ),
    Trap(
        "000: with scores of zero all beams begin as copies of the greedy one",
        run,
        "scores[:, 0] = 0.0",
        "scores[:] = 0.0",
        beams_differ,
    ),
    Trap(
        "000: a factor below 1 on a negative log-probability encourages the end",
        run,
        "log_probs[:, self.penalized_tokens] += self.log_eos_penalty",
        "log_probs[:, self.penalized_tokens] *= math.exp(self.log_eos_penalty)",
        a_penalty_discourages_the_end,
    ),
    Trap(
        "000: the length counts the start",
        in_beam,
        "((5.0 + lengths.to(torch.float32)) / 6.0)",
        "((6.0 + lengths.to(torch.float32)) / 6.0)",
        lengths_count_generated_tokens,
    ),
    Trap(
        "000: the last token is lost where the start is the end",
        in_beam,
        _LAST_LINE,
        _LAST_LINE.replace("lengths.gather(1, order)", "(tokens != request.eos_token_ids[0]).sum(dim=0)"),
        the_start_may_be_the_end,
    ),
    Trap(
        "000: more beams than tokens crash",
        run,
        "count = min(count, self.vocab_size)",
        "count = max(count, 1)",
        more_beams_than_tokens,
    ),
    Trap(
        "000: more sequences than beams crash",
        run,
        "if num_return_sequences > num_beams:",
        "if num_return_sequences > num_beams * num_beams:",
        more_sequences_than_beams_are_refused,
    ),
    Trap(
        "000: the scores of the n best are dropped",
        run,
        "sequences_scores=scores.where(found, -torch.inf).flatten()",
        "sequences_scores=torch.zeros_like(scores).flatten()",
        scores_come_with_the_best,
    ),
    Trap(
        "000: the cache stays where it was",
        run,
        "self.model.reorder(self.cache, rows)",
        "self.cache",
        beams_move_with_their_cache,
    ),
    Trap(
        "001: two stop tokens never stop",
        request,
        "return torch.isin(tokens, self.eos_token_ids)",
        "return (tokens[..., None] == self.eos_token_ids).all(dim=-1)",
        each_stop_token_stops,
    ),
    Trap(
        "001: beam sample divides what was accumulated by the temperature in each step",
        sampled_beam,
        "return draw(scores, log_probs,",
        "return draw(scores / batch.temperature[:, None], log_probs,",
        a_score_adds_each_step_once,
    ),
    Trap(
        "001: where too few have a probability, those without one are drawn",
        sampled_beam,
        "at_least_nothing(beam_scores[:, :, None] + log_probs)",
        "(beam_scores[:, :, None] + log_probs).clamp_min(-1e9)",
        the_impossible_is_never_drawn,
    ),
    Trap(
        "001: the length penalty counts the prompt",
        pool,
        "float(length) ** self.length_penalty).where",
        "float(length + 1) ** self.length_penalty).where",
        the_prompt_has_no_length,
    ),
    Trap(
        "001: all groups share one pool",
        group_beam,
        f"pools = {_POOLS}",
        f"pools = {_POOLS[: _POOLS.index(' for')]}] * num_beam_groups",
        each_group_has_its_pool,
    ),
    Trap(
        "001: beams that do not divide into groups are left over",
        group_beam,
        "if num_beams % num_beam_groups != 0:",
        "if num_beams < num_beam_groups:",
        groups_of_unequal_size_are_refused,
    ),
    Trap(
        "002: the second round of top-k reads 1024 candidates only",
        best_tokens,
        _GATHERED,
        f"{_GATHERED}[:, :1024]",
        eight_beams_of_30000_tokens,
    ),
    Trap(
        "002: equal scores share a slot",
        best_tokens,
        "return first_of_total_order(values, count)",
        f"return ({_SAME_SLOT})",
        equal_scores_have_slots_of_their_own,
    ),
    Trap(
        "002: the logarithm of a softmax that underflowed is below the sentinel",
        best_tokens,
        "return differences.sub_(log_sum)",
        "return differences.exp().div(log_sum.exp()).log()",
        the_improbable_is_better_than_nothing,
    ),
    Trap(
        "002: lengths are not taken from the parent",
        in_beam,
        "lengths = lengths.gather(1, chosen.beams) + ~had_ended",
        "lengths = lengths + ~had_ended",
        all_of_a_hypothesis_moves_with_it,
    ),
    Trap(
        "002: whether it has ended is not taken from the parent",
        in_beam,
        "had_ended = ended.gather(1, chosen.beams)",
        "had_ended = ended",
        all_of_a_hypothesis_moves_with_it,
    ),
]

test_trap = noticed(TRAPS)
