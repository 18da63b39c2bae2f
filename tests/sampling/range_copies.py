"""Rows that keep a range of their values, beside copies of them that were cut to it before."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.edits import value_ranges
from ascend_sample.sampling.edits.value_ranges import RangeNumbers


def check_drawn_as_from_a_copy(logits: Tensor, params: list[SamplingParams]) -> None:
    """Raises unless rows draw and keep what copies of them do in which what is outside of the range is -inf."""
    batch, alone = SamplingBatch(logits.shape[1]), SamplingBatch(logits.shape[1])
    batch.extend(params)
    off = {name: SamplingParams().to_mapping()[name] for name in value_ranges.RANGE}
    alone.extend([replace(one, **off) for one in params])
    numbers = torch.from_numpy(RangeNumbers(batch.host, batch.row_edits.states).of_step())
    temperature = torch.tensor([one.temperature for one in params])
    least, most = (bound.unsqueeze(1) for bound in torch.ops.ascend_sample.value_ranges(logits, temperature, numbers))
    copy = logits.masked_fill((logits < least) | (logits > most), -torch.inf)
    drawn, expected = Sampler()(logits, batch), Sampler()(copy, alone)
    assert torch.equal(drawn.token_ids, expected.token_ids)
    assert torch.equal(drawn.status, expected.status)
    if drawn.kept is not None and expected.kept is not None:
        assert torch.equal(drawn.kept.counts, expected.kept.counts)
        assert torch.equal(drawn.kept.ids, expected.kept.ids)
