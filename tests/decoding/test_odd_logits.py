"""What strategies make of logits that are infinite, NaN, of another dtype, or in a graph; of beams the warnings."""

from __future__ import annotations

import linecache
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import model as model_module
from ascend_sample.decoding import steps
from ascend_sample.decoding.beams import run
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.model import StepOutput, entered
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies import contrastive, sampled
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample, sample_and_rank
from ascend_sample.sampling import SamplingParams
from tests.decoding.planting import Trap, noticed
from tests.decoding.table_models import random_table

INF, NAN = math.inf, math.nan
VOCAB_SIZE = 7
SEEDED = SamplingParams(seed=1)
STRATEGIES: dict[str, Callable[..., Any]] = {
    "greedy_search": greedy_search,
    "sample": lambda *given, **options: sample(*given, SEEDED, **options),
    "sample_and_rank": lambda *given, **options: sample_and_rank(*given, SEEDED, num_samples=3, **options),
    "contrastive_search": contrastive_search,
    "speculative_sample": lambda model, *given, **options: speculative_sample(
        model, *given, SEEDED, drafter=model, gamma=2, **options
    ),
}


BEAM_SEARCHES: dict[str, Callable[..., Any]] = {
    "beam_search": lambda *given, **options: beam_search(*given, num_beams=3, **options),
    "beam_search in the beam": lambda *given, **options: beam_search(
        *given, num_beams=3, finished="in_beam", **options
    ),
    "beam_sample": lambda *given, **options: beam_sample(*given, SEEDED, num_beams=3, **options),
    "group_beam_search": lambda *given, **options: group_beam_search(
        *given, num_beams=4, num_beam_groups=2, diversity_penalty=1.0, **options
    ),
}


def model_of(table: Tensor) -> ModuleModel:
    """What follows a token is its row of table; its hidden state is its own."""
    states = torch.eye(len(table), device=table.device)
    return ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))


def with_column(value: float, *columns: int) -> Tensor:
    table = random_table(VOCAB_SIZE)
    table[:, columns] = value
    return table


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", STRATEGIES)
def test_entries_of_plus_infinity_share_the_mass(name: str, device: str) -> None:
    prompts = torch.tensor([[1], [2]], device=device)
    alone = STRATEGIES[name](model_of(with_column(INF, 3).to(device)), prompts, max_new_tokens=4)
    assert alone.to_lists() == [[3] * 4] * 2
    assert alone.sequences_scores.tolist() == [0.0, 0.0]
    shared = STRATEGIES[name](model_of(with_column(INF, 3, 5).to(device)), prompts, max_new_tokens=1)
    assert {text[0] for text in shared.to_lists()} <= {3, 5}
    assert shared.sequences_scores.tolist() == [pytest.approx(-math.log(2))] * 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", STRATEGIES)
def test_nan_counts_as_minus_infinity(name: str, device: str) -> None:
    prompts = torch.tensor([[1], [2]], device=device)
    found, expected = (
        STRATEGIES[name](model_of(with_column(value, 3).to(device)), prompts, max_new_tokens=4) for value in (NAN, -INF)
    )
    assert found.to_lists() == expected.to_lists()
    assert found.sequences_scores.isfinite().all()
    assert found.sequences_scores.equal(expected.sequences_scores)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("value", [NAN, -INF])
def test_rows_with_nothing_to_choose_are_named_at_the_callers_line(name: str, value: float) -> None:
    """After token 2 there is nothing; token 2 is never generated."""
    table = with_column(-INF, 2)
    table[2] = value
    named = "prompts" if name == "sample_and_rank" else "rows"
    with pytest.warns(RuntimeWarning, match=rf"^{name}: in the {named} \[1\] some step had no token left") as caught:
        output = STRATEGIES[name](model_of(table), torch.tensor([[1], [2], [4]]), max_new_tokens=1)
    assert output.sequences_scores.isneginf().tolist() == [False, True, False]
    assert [warning.filename for warning in caught] == [__file__]
    line = linecache.getline(__file__, caught[0].lineno)
    assert f"{name}(" in line or "STRATEGIES[name](" in line


@pytest.mark.parametrize("name", BEAM_SEARCHES)
@pytest.mark.parametrize("value", [NAN, -INF])
@pytest.mark.parametrize("steps", [1, 3])
def test_prompts_whose_beams_find_nothing_are_named(name: str, value: float, steps: int, device: str) -> None:
    """After token 2 there is nothing, and after token 5 nothing but 2."""
    table = with_column(-INF, 2)
    table[2], table[5, :] = value, -INF
    table[5, 2] = 0.0
    prompts = torch.tensor([[1], [2], [4], [5]], device=device)
    named = [1] if steps == 1 else [1, 3]
    strategy = name.split()[0]
    message = rf"^{strategy}: in the prompts {re.escape(str(named))} some step had no token left to choose, every"
    with pytest.warns(RuntimeWarning, match=message) as caught:
        output = BEAM_SEARCHES[name](model_of(table.to(device)), prompts, max_new_tokens=steps)
    assert [warning.filename for warning in caught if warning.category is RuntimeWarning] == [__file__]
    assert output.sequences_scores.isneginf().nonzero().flatten().tolist() == named
    assert [row for row, length in enumerate(output.lengths.tolist()) if length == 0] == named


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BEAM_SEARCHES)
def test_fewer_hypotheses_than_beams_are_no_reason_to_warn(name: str) -> None:
    """The only text is 3, 3; the other beams have nothing."""
    output = BEAM_SEARCHES[name](
        model_of(torch.full((7, 7), -INF).index_fill(1, torch.tensor([3]), 0.0)), torch.tensor([[1]]), max_new_tokens=2,
        num_return_sequences=2,
    )  # fmt: skip
    assert output.to_lists() == [[3, 3], []] or name == "group_beam_search"
    assert output.sequences_scores[0].item() > -2.0


def masks_leave_nan_alone() -> None:
    """The only finite logits are those of tokens that are not allowed, the token of an empty row among them."""
    model = model_of(torch.tensor([[1.0, NAN, NAN, 2.0]]).expand(4, -1))
    with pytest.warns(RuntimeWarning, match=r"sample: in the rows \[0\] some step had no token left"):
        output = sample(model, torch.tensor([[0]]), SamplingParams(allowed_ids=[1, 2], seed=1), max_new_tokens=1)
    assert output.sequences_scores.tolist() == [-INF]


def test_the_prompts_of_ranked_texts_are_named() -> None:
    table = with_column(-INF, 2)
    table[2] = NAN
    with pytest.warns(RuntimeWarning, match=r"sample_and_rank: in the prompts \[2\] some step had no token left"):
        output = sample_and_rank(
            model_of(table), torch.tensor([[1], [4], [2]]), SEEDED, max_new_tokens=1, num_samples=5,
            num_return_sequences=2,
        )  # fmt: skip
    assert output.sequences_scores.isneginf().tolist() == [False, False, False, False, True, True]


@pytest.mark.filterwarnings("error")
def test_a_token_without_probability_is_not_taken_for_being_new() -> None:
    """With alpha 1 probability counts for nothing, and 3 was seen; but it has the whole mass."""
    output = contrastive_search(model_of(with_column(INF, 3)), torch.tensor([[3]]), max_new_tokens=2, penalty_alpha=1.0)
    assert output.to_lists() == [[3, 3]]
    assert output.sequences_scores.tolist() == [0.0]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_other_dtypes_are_converted(name: str, dtype: torch.dtype) -> None:
    table = random_table(VOCAB_SIZE, spread=4.0).round()
    prompts = torch.tensor([[1], [2]])
    found, expected = (STRATEGIES[name](model_of(each), prompts, max_new_tokens=5) for each in (table.to(dtype), table))
    assert found.to_lists() == expected.to_lists()
    assert found.sequences_scores.equal(expected.sequences_scores)


def test_a_drafter_of_another_dtype() -> None:
    table = random_table(VOCAB_SIZE)
    output = speculative_sample(
        model_of(table), torch.tensor([[1]]), SEEDED, drafter=model_of(table.double()), max_new_tokens=9, gamma=2
    )
    assert output.stats is not None
    assert output.stats.acceptance_rate() == 1.0


def test_what_enters_is_not_copied_without_need(device: str) -> None:
    for dtype in model_module.DTYPES:
        logits = torch.ones(2, 3, dtype=dtype, device=device)
        output = entered(StepOutput(logits, "cache", logits))
        assert output.logits is logits
        logits[1, 2] = NAN
        changed = entered(output).logits
        if device == "cpu":
            assert changed.tolist() == [[1.0] * 3, [1.0, 1.0, -INF]]
            assert changed.dtype == dtype
        else:
            assert changed is logits, "what chooses knows what NaN is"
        assert logits[1, 2].isnan(), "the model's own stay as they are"
        assert output[1:] == ("cache", logits)


class InAGraph:
    """A `StepModel` that leaves gradients to its caller, as one of a user may; each token has the model's row."""

    def __init__(self) -> None:
        self.table = torch.nn.Parameter(random_table(VOCAB_SIZE))
        self.states = torch.eye(VOCAB_SIZE)

    def _output(self, tokens: Tensor, lengths: Tensor) -> StepOutput:
        assert not torch.is_grad_enabled()
        return StepOutput(self.table[tokens], lengths, self.states[tokens])

    def prefill(self, input_ids: Tensor, attention_mask: Tensor) -> StepOutput:
        output = self._output(input_ids, attention_mask.sum(dim=1))
        return output._replace(logits=output.logits[:, -1])

    def decode(self, tokens: Tensor, cache: Tensor) -> StepOutput:
        return self._output(tokens, cache + tokens.shape[1])

    def expand(self, cache: Tensor, count: int) -> Tensor:
        return cache.repeat_interleave(count)

    def reorder(self, cache: Tensor, index: Tensor) -> Tensor:
        return cache[index]

    def rollback(self, cache: Tensor, lengths: Tensor) -> Tensor:
        return lengths


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_graph_is_made(name: str) -> None:
    output = STRATEGIES[name](InAGraph(), torch.tensor([[1], [2]]), max_new_tokens=4)
    assert not output.sequences_scores.requires_grad
    assert torch.is_grad_enabled()


def plus_infinity_is_whole_in_contrastive_search() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        test_entries_of_plus_infinity_share_the_mass("contrastive_search", "cpu")


TRAPS = [
    Trap("NaN hides that nothing is left", model_module,
         "logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)", "logits", masks_leave_nan_alone),
    Trap("drawn rows are taken for prompts", sampled, 'generator, named="prompts")', "generator)",
         test_the_prompts_of_ranked_texts_are_named),
    Trap("what has no probability is taken for being new", contrastive, "log_probs == -torch.inf, -torch.inf",
         "scores.gather(1, candidates) == -torch.inf, -torch.inf",
         test_a_token_without_probability_is_not_taken_for_being_new),
    Trap("+inf - +inf is NaN", contrastive, "log_probs_of(scores, candidates)",
         "(scores.gather(1, candidates) - scores.logsumexp(dim=1, keepdim=True))",
         plus_infinity_is_whole_in_contrastive_search),
    Trap("beams that find nothing do so quietly", run, '~found[:, 0], "prompts"', 'found[:, 0] & False, "prompts"',
         lambda: test_prompts_whose_beams_find_nothing_are_named("beam_search", NAN, 3, "cpu")),
    Trap("a warning points at the layer", steps, "stacklevel=_level_of_the_caller()", "stacklevel=2",
         lambda: test_rows_with_nothing_to_choose_are_named_at_the_callers_line("greedy_search", NAN)),
    Trap("a warning points at torch.no_grad", steps, ".startswith(NOT_THE_CALLERS)", ".startswith(NOT_THE_CALLERS[:1])",
         lambda: test_rows_with_nothing_to_choose_are_named_at_the_callers_line("greedy_search", NAN)),
]  # fmt: skip


test_trap = pytest.mark.filterwarnings("ignore:sample_and_rank")(noticed(TRAPS))
