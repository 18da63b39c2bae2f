"""Beam search: cases that one can check by hand, options, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.beams.probability_models import EOS, LETTERS, START, A, B, random_table, table_model
from tests.decoding.table_models import UNCALLED
from tests.decoding.tiny_models import tiny_model

BOTH = pytest.mark.parametrize("finished", ["pool", "in_beam"])
ONE = torch.tensor([[START]])


def search(**options: Any) -> DecodeOutput:
    given = {"max_new_tokens": 3, "num_beams": 2, "length_penalty": 0.0, "eos_token_id": EOS, **options}
    return beam_search(table_model(LETTERS), ONE, **given)


@BOTH
def test_torchs_default_type_changes_nothing(finished: Any) -> None:
    table = random_table(5, seed=1)
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.9, "eos_token_id": EOS}
    expected = beam_search(table_model(table), ONE, max_new_tokens=7, finished=finished, **options)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = beam_search(table_model(table), ONE, max_new_tokens=7, finished=finished, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.to_lists() == expected.to_lists()
    assert torch.equal(found.sequences_scores, expected.sequences_scores)


@BOTH
def test_a_prompt_without_a_token_left_ends_the_search_with_the_others(finished: Any) -> None:
    """No module sees a place beyond what the prompts may have, also where nothing else ends a text."""
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(1))
    table[6] = -torch.inf
    places = torch.zeros(5, 7)  # that of 6 fails
    model = ModuleModel(lambda ids: table[ids] + places[torch.arange(ids.shape[1])])
    prompts, mask = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 6]]), torch.tensor([[1, 1, 1, 1], [0, 0, 0, 1]])
    with pytest.warns(RuntimeWarning, match=r"in the prompts \[1\]"):
        found = beam_search(
            model,
            prompts,
            attention_mask=mask,
            max_new_tokens=[2, 5],
            num_beams=2,
            finished=finished,
            logits_processor=[lambda _, scores: scores.index_fill(1, torch.tensor([6]), -torch.inf)],
        )
    assert found.lengths.tolist() == [2, 0]


@pytest.mark.parametrize("length_penalty", [-8.0, 0.0, 8.0])
def test_no_penalty_makes_a_hypothesis_of_a_beam_without_one(length_penalty: float) -> None:
    """Divided by a penalty above 1, "nothing" would be as good a score as that of a hypothesis."""
    chain = ModuleModel(lambda ids: torch.eye(5).log()[(ids + 1) % 5])  # one text is possible, and certain
    found = beam_search(
        chain,
        ONE,
        max_new_tokens=4,
        num_beams=2,
        num_return_sequences=2,
        finished="in_beam",
        length_penalty=length_penalty,
    )
    assert found.to_lists() == [[1, 2, 3, 4], []]
    assert found.sequences_scores.tolist() == [0.0, -math.inf]


@BOTH
def test_two_beams_by_hand(finished: Any) -> None:
    # Step 1: a 0.5, b 0.4. Step 2: b-end 0.36, a-b 0.25 (a-end 0.2 is third). Step 3: a-b-end 0.225, the rest 0.025.
    found = search(finished=finished, num_return_sequences=2)
    assert found.to_lists() == [[B, EOS], [A, B, EOS]]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.36, 0.225]))
    assert found.lengths.tolist() == [2, 3]
    assert found.beam_indices is not None
    # The pool's a-b goes on as the best beam that has not ended; in the beam it is second, after b-end.
    assert found.beam_indices.tolist() == [[0, 1, -1], [0, 0, 0 if finished == "pool" else 1]]


def test_the_pool_divides_by_a_power_of_the_length() -> None:
    found = search(num_return_sequences=2, length_penalty=1.0)
    assert found.to_lists() == [[A, B, EOS], [B, EOS]]
    expected = torch.tensor([math.log(0.225) / 3, math.log(0.36) / 2])
    torch.testing.assert_close(found.sequences_scores, expected)


def test_the_beam_divides_by_gnmts_penalty_at_the_end() -> None:
    found = search(finished="in_beam", num_return_sequences=2, length_penalty=5.0)
    assert found.to_lists() == [[A, B, EOS], [B, EOS]]
    expected = torch.tensor([math.log(0.225) / (8 / 6) ** 5, math.log(0.36) / (7 / 6) ** 5])
    torch.testing.assert_close(found.sequences_scores, expected)


def steps_of(**options: Any) -> int:
    return len(search(return_scores=True, **options).scores or ())


def test_early_stopping() -> None:
    table = [[0, 0.3, 0.3, 0.4], [0, 0.45, 0.45, 0.1], [0, 0.45, 0.45, 0.1], [0, 0, 0, 1.0]]

    def steps(early_stopping: Any, length_penalty: float, num_beams: int = 1) -> int:
        found = beam_search(
            table_model(table),
            ONE,
            max_new_tokens=6,
            num_beams=num_beams,
            eos_token_id=EOS,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            return_scores=True,
        )
        assert found.scores is not None
        return len(found.scores)

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
    found = beam_search(
        table_model(table),
        torch.tensor([[end]]),
        max_new_tokens=10,
        num_beams=2,
        num_return_sequences=2,
        eos_token_id=end,
        length_penalty=-0.5,
        early_stopping="never",
    )
    # After two steps the pool is full with 0.09 for a-end. a-c has 0.21, and would lose at length 10, not at 3.
    assert found.to_lists() == [[end], [a, c, end]]
    assert found.sequences_scores[1].item() == pytest.approx(math.log(0.21) * math.sqrt(3))


def test_the_beam_stops_when_all_have_ended() -> None:
    assert steps_of(finished="in_beam", max_new_tokens=9) == 3


def test_prompts_stop_one_by_one_and_at_their_own_lengths() -> None:
    table = random_table(9, seed=3)
    prompts = torch.tensor([[1], [2], [3], [4]])
    together = beam_search(table_model(table), prompts, max_new_tokens=[2, 7, 4, 1], num_beams=3, eos_token_id=0)
    for row, (prompt, length) in enumerate(zip(prompts, [2, 7, 4, 1], strict=True)):
        alone = beam_search(table_model(table), prompt[None], max_new_tokens=length, num_beams=3, eos_token_id=0)
        assert alone.to_lists() == [together.to_lists()[row]]
        assert torch.equal(alone.sequences_scores, together.sequences_scores[row : row + 1])


@BOTH
@pytest.mark.parametrize("num_beams", [1, 3, 40])
def test_a_prompt_alone_finds_what_it_finds_in_a_batch(finished: Any, num_beams: int) -> None:
    model = tiny_model(vocab_size=11, sharpness=1.0)
    lengths = torch.tensor([4, 1, 2, 3])
    ids = torch.randint(1, 11, (4, 4), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(4) >= 4 - lengths[:, None]
    options: dict[str, Any] = {
        "num_beams": num_beams,
        "num_return_sequences": min(num_beams, 3),
        "finished": finished,
        "eos_token_id": [0, 5],
        "length_penalty": 0.8,
    }
    together = beam_search(model, ids, attention_mask=mask, max_new_tokens=[6, 2, 5, 6], **options)
    rows = together.to_lists()
    each = options["num_return_sequences"]
    for prompt, maximum in enumerate([6, 2, 5, 6]):
        alone = beam_search(
            model, ids[prompt : prompt + 1][mask[prompt : prompt + 1]][None], max_new_tokens=maximum, **options
        )
        assert alone.to_lists() == rows[prompt * each : (prompt + 1) * each]
        torch.testing.assert_close(
            alone.sequences_scores, together.sequences_scores[prompt * each : (prompt + 1) * each]
        )


@BOTH
@pytest.mark.filterwarnings("error::RuntimeWarning")  # which is for prompts that have none at all
def test_more_beams_than_tokens_or_hypotheses(finished: Any) -> None:
    # Of two tokens, at most 2 long, with 0 as the end: 0, 10, 11 and no more.
    table = torch.tensor([[0.5, 0.5], [0.3, 0.7]])
    found = beam_search(
        table_model(table),
        torch.tensor([[1]]),
        max_new_tokens=2,
        num_beams=5,
        num_return_sequences=5,
        finished=finished,
        length_penalty=0.0,
        eos_token_id=0,
    )
    assert found.to_lists() == [[1, 1], [0], [1, 0], [], []]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.49, 0.3, 0.21, 0.0, 0.0]))
    assert found.sequences.tolist()[3:] == [[0, 0], [0, 0]]


@BOTH
def test_the_penalty_of_the_end_multiplies_its_probability(finished: Any) -> None:
    found = search(finished=finished, eos_penalty=0.5, num_return_sequences=2)
    assert found.to_lists() == [[B, EOS], [A, B, EOS]]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.18, 0.1125]))
    # Now a-b 0.25 and a-a 0.05 are better than b-end 0.0036, and a-b-a and a-a-b 0.025 than a-b-end 0.00225.
    assert search(finished=finished, eos_penalty=0.01).to_lists()[0] in ([A, B, A], [A, A, B])


@BOTH
def test_smoothing_divides_the_logits(finished: Any) -> None:
    half = torch.tensor(LETTERS[0]).sqrt()
    found = search(finished=finished, softmax_smoothing=2.0, max_new_tokens=1)
    assert found.sequences_scores.exp().item() == pytest.approx((half[A] / half.sum()).item(), abs=1e-6)


@BOTH
@pytest.mark.parametrize("smoothing", [1e-45, 0.3, 3e4, 3e38])
def test_smoothing_finds_the_same_whoever_looks_at_the_scores(device: str, finished: Any, smoothing: float) -> None:
    model = table_model(random_table(30, seed=2), device)
    options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 3, "num_return_sequences": 3, "finished": finished}
    prompts = torch.tensor([[1], [2]], device=device)
    found = beam_search(model, prompts, softmax_smoothing=smoothing, **options)
    again = beam_search(model, prompts, softmax_smoothing=smoothing, return_scores=True, **options)
    assert torch.equal(again.sequences, found.sequences)
    assert torch.equal(again.sequences_scores, found.sequences_scores)
    # However little it differs, the larger logit comes first.
    assert found.sequences[0, 0] == random_table(30, seed=2)[1].argmax()


def test_no_length_is_the_encoders() -> None:
    table = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).clamp_min(1e-30).log()
    model = ModuleModel(lambda input_ids, **encoder: torch.nn.functional.embedding(input_ids, table))
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    start = torch.zeros(2, 1, dtype=torch.int64)
    for finished in ("pool", "in_beam"):
        options: dict[str, Any] = {"max_new_tokens": 0, "num_beams": 2, "finished": finished}
        masked = {"encoder_input_ids": mask, "encoder_attention_mask": mask}
        assert beam_search(model, start, encoder=masked, **options).lengths.tolist() == [3, 2]
        assert beam_search(model, start, encoder={"features": torch.ones(2, 4, 3)}, **options).lengths.tolist() == [
            4,
            4,
        ]
        for zero in (torch.tensor(0), np.int64(0)):
            other = {**options, "max_new_tokens": zero}
            assert beam_search(model, start, encoder=masked, **other).lengths.tolist() == [3, 2]
        with pytest.raises(ValueError, match="max_new_tokens must be at least 1 where no encoder's input has a length"):
            beam_search(model, start, **options)


@BOTH
def test_a_stopping_criterion_ends_a_hypothesis(finished: Any) -> None:
    found = search(
        finished=finished,
        stopping_criteria=[lambda input_ids, scores: (input_ids[:, -2:] == torch.tensor([A, B])).all(dim=1)],
        num_return_sequences=2,
    )
    assert found.to_lists() == [[B, EOS], [A, B]]
    # A plain bool is for all.
    assert search(finished=finished, stopping_criteria=[lambda *_: True]).to_lists() == [[A]]


@BOTH
def test_a_processor_sees_the_prompt_and_changes_what_is_searched(finished: Any) -> None:
    seen = []

    def forbid_b(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids.tolist())
        scores = scores.clone()
        scores[:, B] = -torch.inf
        return scores

    found = search(finished=finished, logits_processor=[forbid_b], return_scores=True)
    assert seen[:2] == [[[START], [START]], [[START, A], [START, EOS]] if finished == "in_beam" else seen[1]]
    assert found.to_lists() == [[A, EOS]]
    assert found.scores is not None
    assert found.scores[0].shape == (2, 4)
    assert found.scores[0][0, B] == -torch.inf


def test_a_processor_sees_padding_after_an_end_in_the_beam() -> None:
    end, padding, seen = 0, 5, []

    def look(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.extend(input_ids.tolist())
        return scores

    options: dict[str, Any] = {"max_new_tokens": 6, "num_beams": 3, "eos_token_id": end, "pad_token_id": padding}
    for seed in range(6):
        model = table_model(random_table(6, seed))
        beam_search(model, torch.tensor([[1]]), finished="in_beam", logits_processor=[look], **options)
    after = [row[row.index(end) + 1 :] for row in seen if end in row]
    assert max(map(len, after)) > 1
    assert all(set(tokens) <= {padding} for tokens in after)


@BOTH
def test_progress_shows_the_steps(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    search(finished=finished, progress=True)
    assert "beam_search" in capsys.readouterr().err


@BOTH
def test_half_precision_logits(finished: Any) -> None:
    table = random_table(9, seed=1).log().to(torch.bfloat16)
    model = ModuleModel(lambda input_ids: table[input_ids])
    found = beam_search(model, torch.tensor([[3]]), max_new_tokens=4, num_beams=3, finished=finished)
    assert found.sequences_scores.dtype == torch.float32
    same = ModuleModel(lambda input_ids: table.float()[input_ids])
    expected = beam_search(same, torch.tensor([[3]]), max_new_tokens=4, num_beams=3, finished=finished)
    assert torch.equal(found.sequences, expected.sequences)


@BOTH
def test_equal_scores_come_in_the_order_of_beams_and_tokens(finished: Any) -> None:
    even = torch.full((7, 7), 1 / 7)
    found = beam_search(
        table_model(even), torch.tensor([[0]]), max_new_tokens=2, num_beams=5, num_return_sequences=5, finished=finished
    )
    assert found.to_lists() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4]]


@BOTH
def test_equal_sums_come_in_the_order_of_the_logits(device: str, finished: Any) -> None:
    table = torch.full((7, 7), -5.0)
    table[:, 2], table[:, 5] = 0.0, 1e-4  # what 1e-4 makes is lost in a sum of -30000
    table[0] = torch.tensor([0.0, -torch.inf, -torch.inf, -30000.0, -torch.inf, -torch.inf, -torch.inf])
    table = table.to(device)
    found = beam_search(
        ModuleModel(lambda input_ids: table[input_ids]),
        torch.tensor([[0]], device=device),
        max_new_tokens=2,
        num_beams=3,
        num_return_sequences=3,
        eos_token_id=0,
        length_penalty=0.0,
        finished=finished,
    )
    assert found.to_lists() == [[0], [3, 5], [3, 2]]
    assert found.sequences_scores[1] == found.sequences_scores[2]


@BOTH
def test_with_a_processor_equal_log_probabilities_come_in_the_order_of_the_tokens(device: str, finished: Any) -> None:
    logits = torch.tensor([-1.0, 0.0, 1e-9, -1.0], device=device)
    model = ModuleModel(lambda input_ids: logits.expand(*input_ids.shape, 4))
    options: dict[str, Any] = {"max_new_tokens": 1, "num_beams": 2, "num_return_sequences": 2, "finished": finished}
    prompt = torch.tensor([[0]], device=device)
    assert beam_search(model, prompt, **options).to_lists() == [[2], [1]]
    processed = beam_search(model, prompt, logits_processor=[lambda input_ids, scores: scores], **options)
    assert processed.to_lists() == [[1], [2]]


@BOTH
def test_the_devices_find_the_same(device: str, finished: Any) -> None:
    table = random_table(300, seed=5)
    prompts, options = torch.tensor([[3], [4], [5]]), {"max_new_tokens": 5, "num_beams": 3, "eos_token_id": [0, 7]}
    found = beam_search(table_model(table, device), prompts.to(device), finished=finished, **options)
    expected = beam_search(table_model(table), prompts, finished=finished, **options)
    assert found.sequences.device.type == device
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    torch.testing.assert_close(found.sequences_scores.cpu(), expected.sequences_scores)


BAD = [
    ({"num_beams": 0}, ValueError, "num_beams must be at least 1, got 0"),
    ({"num_beams": 2.0}, TypeError, "num_beams must be an int, got float 2.0"),
    ({"num_return_sequences": 0}, ValueError, "num_return_sequences must be at least 1, got 0"),
    ({"num_return_sequences": 3}, ValueError, "num_return_sequences must be at most num_beams, 2, got 3"),
    ({"finished": "beam"}, ValueError, 'finished must be "pool" or "in_beam", got \'beam\''),
    ({"early_stopping": "always"}, ValueError, "early_stopping must be True, False or \"never\", got 'always'"),
    ({"early_stopping": 1}, ValueError, 'early_stopping must be True, False or "never", got 1'),
    (
        {"early_stopping": True, "finished": "in_beam"},
        ValueError,
        'early_stopping must be False where finished is "in_beam", got True',
    ),
    ({"length_penalty": float("nan")}, ValueError, "length_penalty must be a finite number"),
    ({"length_penalty": "1"}, TypeError, "length_penalty must be a float"),
    ({"softmax_smoothing": 0.0}, ValueError, "softmax_smoothing must be a finite number above 0, got 0.0"),
    ({"softmax_smoothing": 1e-60}, ValueError, "softmax_smoothing must be a finite float32 above 0, got 1e-60"),
    ({"softmax_smoothing": 1e39}, ValueError, r"softmax_smoothing must be a finite float32 above 0, got 1e\+39"),
    ({"softmax_smoothing": 1e39, "return_scores": True}, ValueError, "softmax_smoothing must be a finite float32"),
    ({"length_penalty": 19.0, "max_new_tokens": 12}, ValueError, r"length_penalty must be in \[-18.5, 18.5\] with"),
    ({"length_penalty": 23.7, "max_new_tokens": 7}, ValueError, r"length_penalty must be in \[-23.6, 23.6\] with"),
    (
        {"length_penalty": -45.0, "max_new_tokens": 12, "finished": "in_beam"},
        ValueError,
        r"length_penalty must be in \[-44.2, 44.2\] with that many new tokens, got -45.0",
    ),
    ({"eos_penalty": 0.0}, ValueError, "eos_penalty must be a finite number above 0 and at most 1, got 0.0"),
    ({"eos_penalty": 1.5}, ValueError, "eos_penalty must be a finite number above 0 and at most 1, got 1.5"),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1 where no encoder's input has a length"),
    ({"max_new_tokens": [0]}, ValueError, "max_new_tokens must be at least 1, got 0"),
    ({"max_new_tokens": False}, TypeError, "max_new_tokens must be an int"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_bad_input_is_named_before_the_model_is_called(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"max_new_tokens": 3, "num_beams": 2, **wrong}
    with pytest.raises(error, match=rf"^beam_search: {message}.*\. [A-Z]"):
        beam_search(UNCALLED, ONE, **arguments)
