"""Speculative sampling of whole texts: greedy is greedy, rows stop by themselves, none overshoots, stats are true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import distributions
from ascend_sample.decoding.model import StepModel, StepOutput
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Drafter, ModelDrafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.draws import placed_noise
from ascend_sample.sampling.draws.placed_noise import MOST_SENT
from tests.decoding.every_strategy import GREEDY
from tests.decoding.table_models import SUCCESSOR, random_table, table_model, tiny_model
from tests.decoding.tiny_transformers import encoder_inputs, recomputing_model, step_model

PROMPTS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 7], [0, 8, 0, 9]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]])


class Bounded(ModuleModel):
    """A model that fails when a row's tokens, or a rollback, go beyond what they may; and counts what it reads."""

    def __init__(self, inner: ModuleModel, longest: list[int]) -> None:
        super().__init__(inner.module)
        self.longest = torch.tensor(longest)
        self.widths: list[int] = []

    def decode(self, tokens: Tensor, cache: Any) -> StepOutput:
        self.widths.append(tokens.shape[1])
        assert (cache.lengths + tokens.shape[1] <= self.longest).all(), "beyond the row's end"
        return super().decode(tokens, cache)

    def rollback(self, cache: Any, lengths: Tensor) -> Any:
        assert (lengths <= cache.lengths).all(), "a rollback cannot add tokens"
        assert (lengths >= 0).all()
        return super().rollback(cache, lengths)


def greedy(model: StepModel, most: int | list[int], eos: tuple[int, ...] = ()) -> list[list[int]]:
    """The target's own."""
    return greedy_search(model, PROMPTS, max_new_tokens=most, eos_token_id=eos, attention_mask=MASK).to_lists()


DRAFTERS: dict[str, StepModel | Drafter] = {
    "itself": tiny_model(),
    "another": tiny_model(seed=1),
    "nearly": tiny_model(sharpness=2.0),
    "n-gram": NGramDrafter(),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_is_the_targets_greedy(name: str) -> None:
    model, most, eos = tiny_model(), [14, 9, 1, 11], (3, 12)
    expected = greedy(model, most, eos)
    options: dict[str, Any] = {"max_new_tokens": most, "eos_token_id": eos, "pad_token_id": 0, "attention_mask": MASK}
    for gamma in (1, 2, 5, 20, "adaptive"):
        output = speculative_sample(model, PROMPTS, GREEDY, drafter=DRAFTERS[name], gamma=gamma, **options)
        assert output.to_lists() == expected, gamma
        assert (output.sequences[torch.arange(output.sequences.shape[1]) >= output.lengths[:, None]] == 0).all()
        assert output.stats is not None
        if gamma != "adaptive" and name == "itself":
            assert output.stats.acceptance_rate() == 1.0


def test_a_greedy_row_beside_a_drawn_one_is_greedy() -> None:
    """Then the batch goes by distributions, which greedy rows alone have no need of."""
    model = tiny_model()
    params = [GREEDY, SamplingParams(seed=5), SamplingParams(temperature=0, top_p=0.5), SamplingParams(seed=6)]
    for seed in range(4):
        given: dict[str, Any] = {"drafter": tiny_model(seed=seed), "max_new_tokens": 12, "attention_mask": MASK}
        mixed, alone = (speculative_sample(model, PROMPTS, it, gamma=3, **given).to_lists() for it in (params, GREEDY))
        for row in (0, 2):
            assert mixed[row] == alone[row] == greedy(model, 12)[row]


def test_no_model_sees_a_place_beyond_a_rows_end() -> None:
    most = [14, 9, 1, 11]
    ends = (MASK.sum(dim=1) + torch.tensor(most) - 1).tolist()  # nobody reads a row's last token
    for gamma in (1, 3, 6, 12):
        # A window of gamma + 1 tokens does not fit into a shorter row: there it begins at its first token.
        longest = [max(end, gamma + 2) for end in ends]
        target, draft = Bounded(tiny_model(), longest), Bounded(tiny_model(seed=1), longest)
        options: dict[str, Any] = {"attention_mask": MASK, "gamma": gamma, "max_new_tokens": most}
        output = speculative_sample(target, PROMPTS, drafter=draft, **options)
        assert output.lengths.tolist() == most
        assert max(target.widths) == gamma + 1


def test_stop_tokens_inside_a_draft_end_the_row_there() -> None:
    streamed: list[tuple[Tensor, Tensor]] = []
    options: dict[str, Any] = {"gamma": 4, "max_new_tokens": [12, 12, 3], "eos_token_id": [4, 8], "pad_token_id": 9}
    options["on_tokens"] = lambda tokens, counts: streamed.append((tokens.clone(), counts.clone()))
    output = speculative_sample(SUCCESSOR, torch.tensor([[0], [5], [8]]), drafter=SUCCESSOR, **options)
    assert output.to_lists() == [[1, 2, 3, 4], [6, 7, 8], [9, 0, 1]]
    assert output.sequences[1, 3].item() == 9
    assert [counts.tolist() for _, counts in streamed] == [[1, 1, 1], [3, 2, 2]]
    joined = [torch.cat([tokens[row, : counts[row]] for tokens, counts in streamed]).tolist() for row in range(3)]
    assert joined == output.to_lists()
    assert output.stats is not None
    assert output.stats.accepted.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert output.stats.drafted.tolist() == output.stats.accepted.tolist()
    assert (output.stats.target_passes, output.stats.draft_passes) == (1, 4)


def test_passes_are_saved_and_counted() -> None:
    model = tiny_model()
    for gamma, rounds in ((1, 6), (3, 3), (5, 2), (11, 1)):
        output = speculative_sample(model, PROMPTS[:1], drafter=model, params=GREEDY, gamma=gamma, max_new_tokens=13)
        assert output.stats is not None
        assert output.stats.target_passes == rounds, "each round gives gamma tokens and one more"
        assert int(output.stats.accepted.sum()) + rounds + 1 == 13
    expected = greedy(model, 13)[0]
    unsaid = next(token for token in range(13) if token not in expected)
    never = speculative_sample(model, PROMPTS[:1], drafter=Wrong(unsaid), params=GREEDY, gamma=3, max_new_tokens=13)
    assert never.stats is not None
    assert never.stats.drafted.tolist() == [[11, 0, 0]], "one of 12 tokens has no room for a draft before it"
    assert int(never.stats.accepted.sum()) == 0
    assert never.to_lists() == [expected]


def test_what_is_drawn_from_the_target_itself_stays() -> None:
    """Seed 0 is a seed as any."""
    model = tiny_model()
    for seed in (0, 5):
        output = speculative_sample(model, PROMPTS[:1], SamplingParams(seed=seed), drafter=model, max_new_tokens=30)
        assert output.stats is not None
        assert output.stats.acceptance_rate() == 1.0


class Wrong(NGramDrafter):
    """Proposes one token alone."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def draft(self, state: None, texts: Any) -> Any:
        draft, state = super().draft(state, texts)
        return draft._replace(tokens=torch.full_like(draft.tokens, self.token), counts=texts.wanted), state


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_what_a_neighbour_asks_for_changes_no_row(rule: Any) -> None:
    target, draft = (table_model(random_table(seed=seed)) for seed in (1, 2))
    options: dict[str, Any] = {"drafter": draft, "max_new_tokens": 8, "gamma": 3, "rule": rule}
    prompts, plain = torch.tensor([[1, 2]]).expand(41, 2), [SamplingParams(seed=seed) for seed in range(40)]
    alone = speculative_sample(target, prompts[1:], plain, **options)
    beside = speculative_sample(target, prompts, [*plain, SamplingParams(presence_penalty=0.5, seed=40)], **options)
    assert beside.to_lists()[:-1] == alone.to_lists()


def test_plain_decoding_and_its_seeds() -> None:
    """Gamma 0 draws what is drawn one token at a time."""
    model = tiny_model()
    given = {"params": SamplingParams(seed=9, top_p=0.9), "max_new_tokens": 8, "attention_mask": MASK}
    first = speculative_sample(model, PROMPTS, drafter=model, gamma=0, **given)
    assert first.stats is not None
    assert first.stats.draft_passes == 0
    assert first.to_lists() == sample(model, PROMPTS, **given).to_lists()
    other = speculative_sample(model, PROMPTS, drafter=model, gamma=3, **given)
    assert other.to_lists() != first.to_lists(), "the same distribution, other noise"
    assert first.sequences[:, 0].equal(other.sequences[:, 0]), "the first token comes with the prompt"


@pytest.mark.parametrize(
    ("gamma", "drafts", "most_sent"), [(1, "model", MOST_SENT), (3, "model", 0), (2, "n-grams", MOST_SENT)]
)
def test_the_same_tokens_on_each_device(
    npu: str, monkeypatch: pytest.MonkeyPatch, gamma: int, drafts: str, most_sent: int
) -> None:
    """Integer noise and float32 tables: the emulated device gives what the CPU gives, filtered and greedy rows too."""
    monkeypatch.setattr(placed_noise, "MOST_SENT", most_sent)
    monkeypatch.setattr(distributions, "MAX_SENT_NUMBERS", most_sent)
    table = random_table(4, seed=1)
    ids, mask = torch.tensor([[1, 2, 3], [3, 0, 0], [2, 1, 0]] * 6), torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]] * 6)
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_k": 3, "top_p": 0.95}, {"temperature": 0}]
    params = [SamplingParams(seed=seed, **kinds[seed % 3]) for seed in range(len(ids))]

    def run(where: str) -> DecodeOutput:
        draft = table_model(table + 0.3 * random_table(4, seed=2), where)
        options: dict[str, Any] = {"drafter": draft if drafts == "model" else NGramDrafter(min_ngram=1), "gamma": gamma}
        options |= {"max_new_tokens": [17, 9, 13] * 6, "eos_token_id": [3], "attention_mask": mask.to(where)}
        return speculative_sample(table_model(table, where), ids.to(where), params, **options)

    found, expected = run(npu), run("cpu")
    assert found.to_lists() == expected.to_lists()
    assert found.stats is not None
    assert expected.stats is not None
    assert found.stats.accepted.cpu().equal(expected.stats.accepted)


def test_token_0_is_a_token() -> None:
    zero = table_model(torch.eye(4)[[0] * 4] * 90.0)
    output = speculative_sample(zero, torch.tensor([[1]]), drafter=zero, max_new_tokens=5)
    assert output.to_lists() == [[0] * 5]


@pytest.mark.parametrize(
    "kind", ["llama", "t5", pytest.param("bloom", marks=pytest.mark.long), pytest.param("bart", marks=pytest.mark.long)]
)
def test_models_of_transformers_with_their_caches(kind: str) -> None:
    """Ragged rollbacks of real caches, of target and draft: greedy texts are those of the model without a cache."""
    given: dict[str, Any] = {
        "attention_mask": MASK,
        "encoder": encoder_inputs(kind, len(PROMPTS)),
        "max_new_tokens": [20, 9, 1, 14],
        "eos_token_id": [11, 12],
    }
    plain = speculative_sample(recomputing_model(kind), PROMPTS, GREEDY, drafter=NGramDrafter(), gamma=0, **given)
    for seed, gamma in ((0, 3), (1, 2), (1, AdaptiveGamma(5))):
        drafter = ModelDrafter(step_model(kind, seed))
        output = speculative_sample(step_model(kind), PROMPTS, GREEDY, drafter=drafter, gamma=gamma, **given)
        assert output.to_lists() == plain.to_lists()
        torch.testing.assert_close(output.sequences_scores, plain.sequences_scores, atol=1e-4, rtol=1e-4)
        assert output.stats is not None
        assert seed or output.stats.acceptance_rate() == 1.0
