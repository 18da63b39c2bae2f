"""What may be wrong with a call of speculative sampling, and with its parts: it is named before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascend_sample.decoding import AdaptiveGamma, ModuleModel, NGramDrafter, speculative_sample
from ascend_sample.decoding.speculation.acceptance import Draft
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import GREEDY
from tests.decoding.speculation.test_speculative import PROMPTS
from tests.decoding.tiny_models import tiny_model


def test_costs_come_after_rounds_of_both_kinds() -> None:
    for gammas, got in (((0, 0), "2 plain rounds and 0 other gammas"), ((3,), "0 plain rounds and 1 other gammas")):
        control = AdaptiveGamma()
        for gamma in gammas:
            control.observe(gamma, 1.0, looked=gamma, accepted=0)
        with pytest.raises(ValueError, match=f"AdaptiveGamma: relative_costs must come after .*, got {got}"):
            control.relative_costs(3)


def test_a_vocabulary_that_params_name_is_the_models() -> None:
    with pytest.raises(ValueError, match=r"^SamplingParams: vocab_size"):
        speculative_sample(tiny_model(), PROMPTS, SamplingParams(vocab_size=5), drafter=tiny_model(), max_new_tokens=4)


@pytest.mark.parametrize("gamma", [2, "adaptive"])
def test_a_drafter_of_fewer_tokens_is_refused_before_it_reads_what_it_does_not_know(gamma: Any) -> None:
    """It can read the prompts, which say how many tokens it has; but not token 12, which follows everything."""
    model = ModuleModel(lambda ids: torch.nn.functional.one_hot(0 * ids + 12, 13) * 90.0)
    drafter = ModuleModel(lambda ids: torch.zeros(10, 10)[ids])
    message = "^speculative_sample: drafter must have the model's vocabulary of 13 tokens, got 10"
    with pytest.raises(ValueError, match=message):
        speculative_sample(model, PROMPTS, drafter=drafter, gamma=gamma, max_new_tokens=9)


class Returns(NGramDrafter):
    """Changes what it would propose."""

    def __init__(self, change: Callable[[Draft], Any]) -> None:
        super().__init__()
        self.change = change

    def draft(self, state: Any, texts: Any) -> Any:
        draft, state = super().draft(state, texts)
        return self.change(draft), state


BAD_DRAFTS: list[tuple[Callable[[Draft], Any], type[Exception], str]] = [
    (lambda it: None, TypeError, "return a Draft and the next state, got NoneType None"),
    (tuple, TypeError, "return a Draft and the next state, got tuple"),
    # These have once given other texts than the model's, without a word, to rows that want fewer drafts than others.
    (lambda it: it._replace(tokens=it.tokens[:, :1]), ValueError, r"return tokens \[4, 2\] of .* \[4, 1\]"),
    (lambda it: it._replace(tokens=it.tokens.repeat(1, 2)), ValueError, r"return tokens \[4, 2\] of .* \[4, 4\]"),
    (lambda it: it._replace(tokens=it.tokens.int()), ValueError, r"return tokens .*, got a tensor of torch.int32"),
    (lambda it: it._replace(counts=[1] * 4), TypeError, r"return counts \[4\] of torch.int64, got list"),
    (lambda it: it._replace(counts=it.counts[:, None]), ValueError, r"return counts \[4\] of torch.int64, got a"),
    # This one has run for ever.
    (lambda it: it._replace(counts=it.counts * 0 - 1), ValueError, "return counts from 0 to 2, got -1"),
    (lambda it: it._replace(counts=it.counts * 0 + 3), ValueError, "return counts from 0 to 2, got 3"),
    (lambda it: it._replace(probabilities=torch.ones(4, 13)), ValueError, r"return probabilities \[4, 2, 13\] of"),
    (lambda it: it._replace(probabilities=torch.ones(4, 2, 9)), ValueError, r"return probabilities \[4, 2, 13\] of"),
    (lambda it: it._replace(probabilities=torch.ones(4, 2, 13).half()), ValueError, r"return probabilities .*, got a"),
]  # fmt: skip


@pytest.mark.parametrize("rule", ["standard", "match"])
def test_what_a_drafter_returns_is_checked(rule: Any, subtests: pytest.Subtests) -> None:
    options: dict[str, Any] = {"rule": rule, "params": GREEDY, "gamma": 2, "max_new_tokens": 5}
    for change, error, message in BAD_DRAFTS:
        whole = rf"^speculative_sample: drafter Returns must {message}.*\. [A-Z]"
        with subtests.test(msg=message), pytest.raises(error, match=whole):
            speculative_sample(tiny_model(), PROMPTS, drafter=Returns(change), **options)
