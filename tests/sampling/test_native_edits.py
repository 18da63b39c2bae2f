"""Arguments of the CPU kernel for edits: made once for as long as they stay, and made again whenever they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_sample.sampling import SamplingBatch, SamplingParams
from ascend_sample.sampling.edits.value_ranges import RangeNumbers

EVENTS: tuple[Callable[[SamplingBatch], Any], ...] = (
    lambda batch: batch.extend(
        [SamplingParams(), SamplingParams(suppress_token_ids=[1]), SamplingParams(presence_penalty=1.0)]
    ),
    lambda batch: batch.add(SamplingParams()),
    lambda batch: batch.append(torch.tensor([1, 2, 3, 4])),
    lambda batch: batch.append(torch.arange(40), rows=[2] * 40),  # more than the list has room for
    lambda batch: batch.add(SamplingParams(logit_bias={3: 1.0, 4: 2.0}, no_repeat_ngram_size=2), [5, 6, 5]),
    lambda batch: batch.append(torch.tensor([7, 5, 8, 5]), rows=[4] * 4),  # three bans beside two biases, no longer one
    lambda batch: batch.append(torch.tensor([1, 2, 3, 4, 9])),
    lambda batch: batch.swap(0, 2),
    lambda batch: batch.add(SamplingParams(stop_token_ids=[7], min_tokens=1, allowed_token_ids=[1, 7, 9])),
    lambda batch: batch.append(torch.tensor([1, 2, 3, 4, 5, 9])),  # has its min_tokens
    lambda batch: batch.remove(3),
    lambda batch: batch.remove(1),
    lambda batch: batch.reorder([2, 3, 0, 1]),
    lambda batch: batch.add(SamplingParams(top_a=0.2, seed=1)),
    lambda batch: batch.add(SamplingParams(xtc_probability=0.5, seed=2)),
    lambda batch: batch.append(torch.arange(len(batch))),
    lambda batch: batch.append(torch.arange(len(batch))),
    lambda batch: batch.add(SamplingParams(mirostat_tau=3.0, seed=3)),
    lambda batch: batch.states.__setitem__(len(batch) - 1, (1.0,)),
)


def test_arguments_are_made_once_for_as_long_as_they_stay() -> None:
    """And are those of a batch that has not been asked before, whatever happens in between."""
    asked = SamplingBatch(100)
    for number, event in enumerate(EVENTS, start=1):
        event(asked)
        fresh = SamplingBatch(100)
        for again in EVENTS[:number]:
            again(fresh)
        found, wanted = asked.native_edits(), fresh.native_edits()
        assert found.keys() == wanted.keys(), number
        for name, argument in wanted.items():
            assert torch.equal(found[name], argument), (number, name)
        same = asked.native_edits()
        changing = {"addend_lengths"}  # a view, as cheap as the question whether it is another one
        if RangeNumbers(asked.host, asked.row_edits.states).change:
            changing.add("ranges")
        assert all(same[name] is argument for name, argument in found.items() if name not in changing), number
