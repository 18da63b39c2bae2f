"""What ranks find of their parts of rows: what logprobs are made of, leads and histograms."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import pad

from ascend_sample.sampling import exponential_noise
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.segmented import SEGMENT

OPERATORS = torch.ops.ascend_sample
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rows_of(dtype: torch.dtype, vocab_size: int = 3500) -> torch.Tensor:
    """Rows of normal logits, of ones with -inf and NaN, with +inf in two chunks, and of -inf alone."""
    logits = 5 * torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    logits[1, ::3] = -torch.inf
    logits[1, 1::7] = torch.nan
    logits[2, 5], logits[2, 2000:2003] = torch.inf, torch.inf
    logits[3] = -torch.inf
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_make_the_sum_and_the_entropy_of_the_row(dtype: torch.dtype) -> None:
    logits = rows_of(dtype)
    found = OPERATORS.chunk_sums(logits, None, entropy=True)
    maxima, sums, distances = found
    assert maxima.shape == sums.shape == distances.shape == (5, 4)
    plain = OPERATORS.chunk_sums(logits, None)
    assert all(map(torch.equal, plain[:2], found[:2]))
    in_parts = [OPERATORS.chunk_sums(part, None, entropy=True) for part in (logits[:, :2048], logits[:, 2048:])]
    assert all(torch.equal(torch.cat(parts, 1), whole) for whole, *parts in zip(found, *in_parts, strict=True))
    assert sums[2].tolist()[:2] == [1, 3]  # of +inf: how many
    assert OPERATORS.chunk_sums(torch.full((2, 1030), torch.inf, dtype=dtype), None)[1].tolist() == [[1024, 6]] * 2
    assert not distances[3].any()
    maximum, log_sum, entropies = OPERATORS.log_of_sums(*found)
    assert all(map(torch.equal, OPERATORS.log_of_sums(maxima, sums)[:2], (maximum, log_sum)))
    clean = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    assert torch.equal(maximum, clean.amax(1))
    finite = torch.tensor([0, 1, 4])
    expected = (clean[finite].double() - maximum[finite, None]).logsumexp(1)
    torch.testing.assert_close(log_sum[finite], expected, rtol=0, atol=1e-6)
    assert log_sum[2:4].tolist() == [torch.tensor(4.0).double().log().item(), 0]
    values, _, _, of_rows = OPERATORS.row_logprobs(logits, None, clean.argmax(1), 0, entropy=True)
    assert torch.equal(values[finite, 0], (-log_sum[finite]).float())
    assert torch.equal(entropies, of_rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_above_a_bound_are_counted(dtype: torch.dtype) -> None:
    for vocab_size in (1, 31, 33, 1024, 3500):
        logits = rows_of(dtype, max(vocab_size, 2003))[:, :vocab_size]
        rows = torch.tensor([4, 1, 2, 3, 0])
        for bounds in (logits[rows, vocab_size // 2].float(), torch.full((5,), -torch.inf), torch.zeros(5)):
            expected = (logits[rows].float() > bounds[:, None]).sum(1)
            assert torch.equal(OPERATORS.count_above(logits, rows, bounds), expected)


@pytest.mark.parametrize("slack", [0.0, 0.9])
@pytest.mark.parametrize("before", [0, 40])  # of the first segment, ids that another part has
@pytest.mark.parametrize("segments", [1, 2, 9])
def test_leads_are_the_first_the_best_and_the_last_segment(segments: int, before: int, slack: float) -> None:
    """Of cuts that differ: a score each, what others may reach, and the same of the places of a segment."""
    rows, vocab_size, first_id = 100, SEGMENT * segments - before - 7, 3 * SEGMENT + before
    generator = torch.Generator().manual_seed(segments)
    logits, shift = (torch.randn(rows, size, generator=generator).mul(4).round().div(8) for size in (vocab_size, 2))
    values = shift.sort(1, descending=True).values + torch.tensor([1.0, 0.0])
    last_ids = torch.randint(-1, vocab_size, (rows, 2), generator=generator)
    every, ones = torch.arange(rows), torch.ones(rows)
    weights = (logits - logits.amax(1, keepdim=True)).double().exp()
    noise = exponential_noise(every, every, SEGMENT * (segments + 4)).double()
    for _ in range(2):
        cuts = [cut for pair in zip(values.unbind(1), last_ids.unbind(1), strict=True) for cut in pair]
        leads, ids, own, _ = OPERATORS.shard_leads(
            logits, None, first_id, ones, ones * 0, every, every, Purpose.DRAW, slack, None, *cuts
        )
        assert torch.equal(own, logits.amax(1))
        beyond, ends = torch.arange(vocab_size) > last_ids.unsqueeze(2), values.unsqueeze(2)
        kept = (logits.unsqueeze(1) > ends) | ((logits.unsqueeze(1) == ends) & ~beyond)
        padded = pad(weights.unsqueeze(1) * kept, (before, 7)).view(rows, 2, segments, SEGMENT)
        scores = padded.sum(3) / noise[:, None, SEGMENT + 3 : SEGMENT + 3 + segments]
        places = padded / noise[:, None, None, :SEGMENT]
        for row, (number, there) in itertools.product(range(rows), enumerate(([0], range(1, segments - 1), [-1]))):
            found, token_id = leads[row, number].tolist(), int(ids[row, number])
            least, most = scores[row, :, list(there)].tolist()
            if max(most, default=0) == 0 or (number == 2 and segments == 1):
                assert not any(found), (row, number)
                continue
            segment, place = divmod(token_id + before, SEGMENT)
            index = segment - 1 if number == 1 else 0
            assert found[:2] == pytest.approx([max(least), most[index]])
            assert found[0] == pytest.approx(least[index])
            others = most[:index] + most[index + 1 :]
            assert found[2] <= max(others, default=0) * (1 + 1e-6)
            assert found[2] >= max((one for one in others if one >= found[0] * (1 - slack)), default=0) * (1 - 1e-6)
            first, second = places[row, 1, segment].topk(2).values.tolist()
            assert found[3:] == pytest.approx([float(places[row, 0, segment, place]), first, second])
            assert float(places[row, 1, segment, place]) == pytest.approx(first)
        # Of each row, the least that keeps one of its leads.
        last_ids[:, 0] = ids[every, every % 3]
        values[:, 0] = logits[every, last_ids[:, 0]].maximum(values[:, 1])


def test_rows_in_another_order() -> None:
    logits, rows, ones, numbers = rows_of(torch.float32), torch.tensor([3, 0, 0]), torch.ones(5), torch.arange(5)
    whole = OPERATORS.chunk_sums(logits, None, True)
    assert all(map(torch.equal, OPERATORS.chunk_sums(logits, rows, True), (each[rows] for each in whole)))
    whole = OPERATORS.shard_leads(logits, None, 300, ones, 0 * ones, numbers, numbers)
    found = OPERATORS.shard_leads(logits, rows, 300, ones[:3], 0 * ones[:3], rows, rows)
    assert all(map(torch.equal, found, (each[rows] for each in whole)))


@pytest.mark.parametrize("first_id", [0, 17, 256])
def test_nothing_leads_beside_a_maximum_that_is_none(first_id: int) -> None:
    logits, number, ones = rows_of(torch.float32, 100), torch.arange(5), torch.ones(5)
    leads, ids, _, _ = OPERATORS.shard_leads(
        logits, None, first_id, ones, 0 * ones, number, number, maximum=torch.nan * ones
    )
    assert not leads.any()
    assert not ids.any()
