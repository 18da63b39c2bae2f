"""Adaptive gamma: two more after a round whose drafts all stayed, one fewer after any other, within its limits."""

from __future__ import annotations

from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from tests.decoding.every_strategy import GREEDY
from tests.decoding.speculation.test_speculative import PROMPTS
from tests.decoding.table_models import tiny_model


def test_the_schedule_by_hand() -> None:
    control, found = AdaptiveGamma(7), []
    for looked, accepted in ((4, 4), (6, 6), (7, 7), (3, 2), (1, 0), (0, 0), (10, 9), (5, 5)):
        control.observe(looked, accepted)
        found.append(control.gamma)
    assert found == [6, 7, 7, 6, 5, 5, 4, 6]
    for _ in range(9):
        control.observe(1, 0)
    assert control.gamma == 1
    assert AdaptiveGamma(2).gamma == 2


def test_an_object_learns_from_call_to_call() -> None:
    control, model = AdaptiveGamma(), tiny_model()
    options = {"params": GREEDY, "gamma": control, "max_new_tokens": 40}
    speculative_sample(model, PROMPTS[:1], drafter=model, **options)
    assert control.gamma == control.max_gamma, "a model that drafts for itself is always right"
    speculative_sample(model, PROMPTS[:1], drafter=tiny_model(seed=1), **options)
    assert control.gamma < control.max_gamma
    before = control.gamma
    speculative_sample(model, PROMPTS[:1], drafter=NGramDrafter(max_ngram=9, min_ngram=9), **options)
    assert control.gamma == before, "rounds without drafts say nothing"
