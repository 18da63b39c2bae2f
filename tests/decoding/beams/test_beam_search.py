"""Beam search: cases that one can check by hand, options, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.run import choose
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.table_models import EOS, LETTERS, START, A, B, probability_table, random_table, table_model

BOTH = pytest.mark.parametrize("finished", ["pool", "in_beam"])
INF = math.inf


def search(model: Any = LETTERS, prompt: int = START, **options: Any) -> DecodeOutput:
    """What two beams find within three tokens, or what else is asked for; returned are as many as there are beams."""
    given = {"max_new_tokens": 3, "num_beams": 2, "length_penalty": 0.0, "eos_token_id": EOS, **options}
    if not isinstance(model, ModuleModel):
        model = table_model(model if isinstance(model, Tensor) else probability_table(model))
    return beam_search(model, torch.tensor([[prompt]]), **{"num_return_sequences": given["num_beams"], **given})


@BOTH
def test_two_beams_by_hand(finished: Any) -> None:
    # Step 1: a 0.5, b 0.4. Step 2: b-end 0.36, a-b 0.25 (a-end 0.2 is third). Step 3: a-b-end 0.225, the rest 0.025.
    found = search(finished=finished)
    assert found.to_lists() == [[B, EOS], [A, B, EOS]]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.36, 0.225]))
    assert found.lengths.tolist() == [2, 3]
    assert found.beam_indices is not None
    # The pool's a-b goes on as the best beam that has not ended; in the beam it is second, after b-end.
    assert found.beam_indices.tolist() == [[0, 1, -1], [0, 0, 0 if finished == "pool" else 1]]
    assert search(finished=finished, eos_token_id=[EOS, B]).to_lists() == [[B], [A, B]]
    if finished == "in_beam":  # which stops where all have ended
        assert len(search(finished=finished, max_new_tokens=9, return_scores=True).scores or ()) == 3


def test_the_pool_divides_by_a_power_of_the_length() -> None:
    found = search(length_penalty=1.0)
    assert found.to_lists() == [[A, B, EOS], [B, EOS]]
    torch.testing.assert_close(found.sequences_scores, torch.tensor([math.log(0.225) / 3, math.log(0.36) / 2]))


def test_the_beam_divides_by_gnmts_penalty_at_the_end() -> None:
    found = search(finished="in_beam", length_penalty=5.0)
    assert found.to_lists() == [[A, B, EOS], [B, EOS]]
    expected = torch.tensor([math.log(0.225) / (8 / 6) ** 5, math.log(0.36) / (7 / 6) ** 5])
    torch.testing.assert_close(found.sequences_scores, expected)


@pytest.mark.parametrize("length_penalty", [-8.0, 0.0, 8.0])
def test_no_penalty_makes_a_hypothesis_of_a_beam_without_one(length_penalty: float) -> None:
    """Divided by a penalty above 1, "nothing" would be as good a score as that of a hypothesis."""
    chain = ModuleModel(lambda ids: torch.eye(5).log()[(ids + 1) % 5])  # one text is possible, and certain
    options: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": (), "finished": "in_beam"}
    found = search(chain, length_penalty=length_penalty, **options)
    assert found.to_lists() == [[1, 2, 3, 4], []]
    assert found.sequences_scores.tolist() == [0.0, -INF]


def test_the_start_may_be_the_end() -> None:
    # START is the stop token, and follows B for sure.
    table = [[0.0, 0.6, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    found = search(table, max_new_tokens=4, length_penalty=1.0, finished="in_beam", eos_token_id=START)
    assert found.to_lists() == [[A, B, START], [B, START]]
    assert found.lengths.tolist() == [3, 2]


def test_early_stopping() -> None:
    table = [[0, 0.3, 0.3, 0.4], [0, 0.45, 0.45, 0.1], [0, 0.45, 0.45, 0.1], [0, 0, 0, 1.0]]

    def steps(early_stopping: Any, length_penalty: float, num_beams: int = 1) -> int:
        options: dict[str, Any] = {"early_stopping": early_stopping, "length_penalty": length_penalty}
        return len(search(table, max_new_tokens=6, num_beams=num_beams, return_scores=True, **options).scores or ())

    # One beam: the end, 0.4, is in the pool after step 1; what goes on has 0.3, and 0.3 * 0.45 after two steps.
    assert steps(True, 1.0) == 1
    assert steps(False, 0.0) == 1
    # log(0.3) = -1.20 is below log(0.4) = -0.92, but a sixth of it is not; the mean of longer ones falls below it.
    assert steps(False, 1.0) == 1
    assert steps("never", 0.0) == 1
    assert steps("never", 1.0) == 6
    # Two beams: the pool has one only, until the end is among the best two again.
    assert steps(True, 1.0, num_beams=2) == 6


def test_a_penalty_below_zero_is_not_looked_at_at_the_maximal_length() -> None:
    end, a, _, c = range(4)
    table = [[0.5, 0.3, 0.2, 0.0], [0.3, 0.0, 0.0, 0.7], [0.1, 0.3, 0.3, 0.3], [1.0, 0.0, 0.0, 0.0]]
    options: dict[str, Any] = {"max_new_tokens": 10, "length_penalty": -0.5, "early_stopping": "never"}
    found = search(table, end, eos_token_id=end, **options)
    # After two steps the pool is full with 0.09 for a-end. a-c has 0.21, and would lose at length 10, not at 3.
    assert found.to_lists() == [[end], [a, c, end]]
    assert found.sequences_scores[1].item() == pytest.approx(math.log(0.21) * math.sqrt(3))


@BOTH
@pytest.mark.filterwarnings("error::RuntimeWarning")  # which is for prompts that have none at all
def test_more_beams_than_tokens_or_hypotheses(finished: Any) -> None:
    # Of two tokens, at most 2 long, with 0 as the end: 0, 10, 11 and no more.
    found = search([[0.5, 0.5], [0.3, 0.7]], 1, max_new_tokens=2, num_beams=5, finished=finished, eos_token_id=0)
    assert found.to_lists() == [[1, 1], [0], [1, 0], [], []]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.49, 0.3, 0.21, 0.0, 0.0]))
    assert found.sequences.tolist()[3:] == [[0, 0], [0, 0]]


@BOTH
def test_the_penalty_of_the_end_multiplies_its_probability(finished: Any) -> None:
    found = search(finished=finished, eos_penalty=0.5)
    assert found.to_lists() == [[B, EOS], [A, B, EOS]]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.18, 0.1125]))
    # Now a-b 0.25 and a-a 0.05 are better than b-end 0.0036, and a-b-a and a-a-b 0.025 than a-b-end 0.00225.
    assert search(finished=finished, eos_penalty=0.01).to_lists()[0] in ([A, B, A], [A, A, B])


@BOTH
def test_smoothing_divides_the_logits_whoever_looks_at_the_scores(device: str, finished: Any) -> None:
    table, prompts = random_table(30, seed=2), torch.tensor([[1], [2]], device=device)
    for smoothing in (1e-45, 0.3, 3e4, 3e38):
        options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 3, "num_return_sequences": 3}
        options |= {"finished": finished, "softmax_smoothing": smoothing}
        found, again = (
            beam_search(table_model(table, device), prompts, return_scores=is_kept, **options)
            for is_kept in (False, True)
        )
        assert torch.equal(again.sequences, found.sequences)
        assert torch.equal(again.sequences_scores, found.sequences_scores)
        # However little it differs, the larger logit comes first.
        assert found.sequences[0, 0] == table[1].argmax()
    half = (LETTERS[0] / 2).softmax(dim=0)
    found = search(finished=finished, softmax_smoothing=2.0, max_new_tokens=1)
    assert found.sequences_scores[0].exp().item() == pytest.approx(half[A].item(), abs=1e-6)


def test_no_length_is_the_encoders() -> None:
    model = ModuleModel(lambda input_ids, **encoder: torch.tensor([0.0, 90.0]).expand(*input_ids.shape, 2))
    mask, start = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]), torch.zeros(2, 1, dtype=torch.int64)
    masked = {"encoder_input_ids": mask, "encoder_attention_mask": mask}
    for finished in ("pool", "in_beam"):
        options: dict[str, Any] = {"num_beams": 2, "finished": finished}
        for zero in (0, torch.tensor(0), np.int64(0)):
            assert beam_search(model, start, max_new_tokens=zero, encoder=masked, **options).lengths.tolist() == [3, 2]
        options |= {"max_new_tokens": 0, "encoder": {"features": torch.ones(2, 4, 3)}}
        assert beam_search(model, start, **options).lengths.tolist() == [4, 4]


def in_both_ways(model: ModuleModel, **options: Any) -> list[DecodeOutput]:
    """Of each mode, by the native operator and, because of a processor, by torch."""
    ways = ([], [lambda input_ids, scores: scores])
    given: dict[str, Any] = {"eos_token_id": (), **options}
    return [search(model, finished=mode, logits_processor=way, **given) for mode in ("pool", "in_beam") for way in ways]


def test_eight_beams_of_30000_tokens() -> None:
    logits = torch.randn(1, 30000, generator=torch.Generator().manual_seed(0))
    model = ModuleModel(lambda input_ids: logits.expand(*input_ids.shape, 30000))
    for found in in_both_ways(model, max_new_tokens=1, num_beams=8):
        assert found.sequences[:, 0].tolist() == logits[0].topk(8).indices.tolist()


def test_flat_ids_above_2_to_the_24() -> None:
    each = 2**23 + 1001
    log_probs = torch.full((1, 3, each), -1.0)
    log_probs[0, 2, -1] = 0.0
    chosen = choose(torch.zeros(1, 3), log_probs, torch.arange(each).expand(1, 3, each), 1)
    assert (chosen.beams.item(), chosen.tokens.item()) == (2, each - 1)


def test_equal_scores_come_in_the_order_of_beams_and_tokens() -> None:
    for found in in_both_ways(table_model(torch.zeros(7, 7)), max_new_tokens=2, num_beams=5):
        assert found.to_lists() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4]]


def test_the_improbable_is_better_than_nothing() -> None:
    model = ModuleModel(lambda input_ids: torch.tensor([0.0, -200.0, -300.0]).expand(*input_ids.shape, 3))
    for found in in_both_ways(model, max_new_tokens=1, num_beams=3):
        assert found.sequences_scores.tolist() == [0.0, -200.0, -300.0]


@BOTH
def test_equal_sums_come_in_the_order_of_the_logits(device: str, finished: Any) -> None:
    table = torch.full((7, 7), -5.0)
    table[:, 2], table[:, 5] = 0.0, 1e-4  # what 1e-4 makes is lost in a sum of -30000
    table[0] = torch.tensor([0.0, -INF, -INF, -30000.0, -INF, -INF, -INF])
    options: dict[str, Any] = {"max_new_tokens": 2, "num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}
    prompt = torch.tensor([[0]], device=device)
    found = beam_search(table_model(table, device), prompt, eos_token_id=0, finished=finished, **options)
    assert found.to_lists() == [[0], [3, 5], [3, 2]]
    assert found.sequences_scores[1] == found.sequences_scores[2]


def test_of_equal_scores_in_a_pool_the_one_that_ended_first_comes_first() -> None:
    for steps in (2, 3, 4):
        found = search([[0.0, 0.5, 0.0, 0.5], *[[0.0, 0.0, 0.0, 1.0]] * 3], max_new_tokens=steps)
        assert found.to_lists() == [[EOS], [A, EOS]]
        assert found.sequences_scores[0] == found.sequences_scores[1]


def test_a_stop_token_beyond_the_vocabulary_is_never_said(device: str) -> None:
    prompts, model = torch.tensor([[1], [2]], device=device), table_model(random_table(7, seed=1), device)
    for finished in ("pool", "in_beam"):
        options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 2, "finished": finished, "eos_penalty": 0.5}
        found = beam_search(model, prompts, eos_token_id=[7, 0, 99], **options)
        expected = beam_search(model, prompts, eos_token_id=0, **options)
        assert torch.equal(found.sequences, expected.sequences)
        assert torch.equal(found.sequences_scores, expected.sequences_scores)
