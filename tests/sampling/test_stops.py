"""What ends a text: by hand, as in vLLM, beside a search of whole texts, for drafts, on devices, at what cost."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import Ended, Sampler, SamplingBatch, SamplingParams, StaticVerification, verify_drafts
from ascend_sample.sampling.edits.stops import StopMatcher
from ascend_sample.sampling.reference.distribution import end_of
from ascend_sample.sampling.rows import host_copy

VOCAB_SIZE = 9
End = tuple[tuple[int, ...], int]
RULED: dict[str, Any] = {"stop_token_ids": [2], "stop_sequences": [[5, 6], [3, 5, 6], [1, 2], [4, 4]]}


def matched(output: list[int], before: list[int] | None = None, **fields: Any) -> End | None:
    matcher = StopMatcher(SamplingParams(**fields), before or [], VOCAB_SIZE)
    matcher.extend(output)
    return matcher.end


def new_batch(params: list[SamplingParams], device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(params)
    return batch


def ids(*tokens: int, device: str = "cpu") -> Tensor:
    return torch.tensor(tokens, device=device)


BY_HAND: list[tuple[int, list[int], End | None]] = [
    (0, [1, 2, 1], ((2,), 2)),
    (0, [1, 5, 6], ((5, 6), 3)),
    (0, [3, 5, 6], ((3, 5, 6), 3)),  # two end there, and they are kept sorted: the first counts
    (0, [1, 2], ((2,), 2)),  # an id counts before a sequence that ends with it
    (0, [5, 5, 6, 2], ((5, 6), 3)),  # what comes first, not what is named first
    (0, [4, 4, 4], ((4, 4), 2)),
    (0, [4, 5, 4, 6], None),
    (0, [5, -1, 6], None),
    (0, [], None),
    (3, [2, 1, 1], None),
    (3, [1, 1, 2], ((2,), 3)),  # vLLM looks at ids from the token on with which min_tokens are there
    (3, [1, 5, 6], None),  # at sequences from the next one on
    (3, [1, 2, 5, 6], ((5, 6), 4)),  # it may begin before
    (3, [2, 5, 6, 1, 2], ((2,), 5)),
]
"""The minimum of tokens, an output, and which stop ends it after how many."""


def test_by_hand() -> None:
    for least, output, end in BY_HAND:
        assert matched(output, min_tokens=least, **RULED) == end
        assert end_of(output, SamplingParams(min_tokens=least, **RULED)) == end
    assert SamplingParams(**RULED).stop_sequences == ((1, 2), (3, 5, 6), (4, 4), (5, 6))


def test_a_batch_tells_once(device: str) -> None:
    batch = new_batch([SamplingParams(), SamplingParams(**RULED), SamplingParams(stop_sequences=[[3], [1]])], device)
    batch.append(ids(2, 5, 4, device=device))
    assert batch.ended() == []
    batch.append(ids(2, 6, 1, device=device))
    assert batch.ended() == [Ended(1, (5, 6), 2), Ended(2, (1,), 2)]
    batch.append(ids(2, 2, 3, device=device))
    assert batch.ended() == []


def test_min_tokens_hold_sequences_back_without_stop_ids(device: str) -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_sequences=[[1, 3]], logit_bias={4: 0.5})
    batch = new_batch([params, SamplingParams(min_tokens=1, stop_sequences=[[1, 3]])], device)
    for best in (1, 3, 1, 3):
        Sampler()(torch.eye(VOCAB_SIZE, device=device)[[best, best]] * 9, batch)
    assert Ended(0, (1, 3), 4) in batch.ended()


def test_rows_that_move_or_leave(device: str) -> None:
    batch = new_batch([SamplingParams(stop_sequences=[row]) for row in range(5)], device)
    batch.swap(0, 4)
    batch.remove(1)  # row 0's request is the second one now
    batch.append(ids(4, 0, 2, 0, device=device))
    batch.remove(2)  # who has ended, and was not told
    batch.add(SamplingParams(stop_sequences=[0]))
    assert batch.ended() == [Ended(0, (4,), 1), Ended(1, (0,), 1)]
    batch.append(ids(0, 0, 0, 0, device=device))
    assert batch.ended() == [Ended(3, (0,), 1)]


def test_a_request_that_comes_back(device: str) -> None:
    """What it has drawn counts for the length, and as a beginning; the prompt does not."""
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([SamplingParams(**RULED)] * 2, [[5], [1]], output_ids=[[], [1, 1, 1, 3, 5]])
    batch.append(ids(6, 6, device=device))
    assert batch.ended() == [Ended(1, (3, 5, 6), 6)]
    with pytest.raises(ValueError, match="output_ids must hold ids"):
        batch.add(SamplingParams(**RULED), output_ids=[VOCAB_SIZE])


def test_drafts_end_where_a_stop_is(device: str) -> None:
    """The first place counts, also where more drafts were accepted."""
    params = [SamplingParams(temperature=0, **RULED), SamplingParams(temperature=0, stop_sequences=[1])]
    batch = new_batch(params, device)
    logits = torch.eye(VOCAB_SIZE, device=device)[[1, 5, 6, 7, 0, 1]]
    verified = verify_drafts(logits, ids(1, 5, 6, 8, device=device), batch, counts=[3, 1])
    assert verified.accepted.tolist() == [3, 0]
    verified.append_to(batch)
    assert batch.ended() == [Ended(0, (5, 6), 3)]
    step = StaticVerification(2, 1, VOCAB_SIZE, torch.float32, device)
    step.prepare(batch)
    step.logits.copy_(torch.eye(VOCAB_SIZE)[[0, 0, 1, 1]])
    step.draft_ids.copy_(ids(1, 1))
    step.run()
    step.verified(batch).append_to(batch)
    assert batch.ended() == [Ended(1, (1,), 2)]


def random_case(rng: random.Random) -> tuple[SamplingParams, list[int]]:
    sequences = {tuple(rng.choices(range(4), k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 5))}
    sequences |= {(stop,) for stop in rng.sample(range(4, 9), rng.randrange(3))}
    params = SamplingParams(stop_sequences=sequences, min_tokens=rng.choice((0, 0, 3, 9)))
    return params, rng.choices(range(VOCAB_SIZE), [9, 9, 9, 9, 1, 1, 1, 1, 1], k=rng.randrange(30))


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_random_texts(count: int) -> None:
    """Beside a search of whole texts, in pieces, from a place where nothing has ended yet."""
    rng, found = random.Random(1), 0
    for _ in range(count):
        params, output = random_case(rng)
        end = end_of(output, params)
        start = rng.randrange(min(len(output), 99 if end is None else end[1] - 1) + 1)
        assert matched(output[start:], output[:start], **{k: v for k, v in params.to_mapping().items() if v}) == end
        found += end is not None
    assert found > 0.4 * count


def test_a_batch_of_random_texts(device: str) -> None:
    """Rows that take in different numbers of tokens at once, as drafts bring them."""
    rng = random.Random(2)
    cases = [random_case(rng) for _ in range(60)]
    batch, told = new_batch([params for params, _ in cases], device), {}
    places = [0] * len(cases)
    while any(place < len(output) for place, (_, output) in zip(places, cases, strict=True)):
        rows, tokens = [], []
        for row, (_, output) in enumerate(cases):
            taken = output[places[row] : places[row] + rng.randrange(4)]
            places[row] += len(taken)
            rows += [row] * len(taken)
            tokens += taken
        if rows:
            batch.append(ids(*tokens, device=device), rows)
        told |= {end.row: end[1:] for end in batch.ended()}
    ends = {row: end_of(output, params) for row, (params, output) in enumerate(cases)}
    assert told == {row: end for row, end in ends.items() if end is not None}


def test_nobody_waits_before_it_is_asked(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = new_batch([SamplingParams(stop_sequences=[3])], accelerator)
    monkeypatch.setattr(host_copy.HostTokens, "has_arrived", False)
    monkeypatch.setattr(host_copy.HostTokens, "read", lambda self: pytest.fail("it waits"))
    for _ in range(3):
        Sampler()(torch.zeros(1, VOCAB_SIZE, device=accelerator), batch)
