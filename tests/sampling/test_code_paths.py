"""The CPU kernel's instruction sets give the same bits: draws, edited draws, logprobs, best tokens, ranked draws."""

from __future__ import annotations

from tests.support.code_paths import assert_same_on_all_code_paths

PROGRAM = """
import hashlib
import torch
from native_rows import DTYPES, GRID, ROUTES, make_logits, sample_rows
from row_edits import arguments_of, random_edits
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams

digest = hashlib.sha256()

def see(tensors):
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())

drop = {"suppress_token_ids": [3], "typical_p": 0.5}
kinds = ({"temperature": 0}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}, {}, drop)
for dtype in DTYPES:
    for vocab_size, requests in ((1003, GRID[::2]), (33_001, ROUTES)):
        logits = make_logits(len(requests), vocab_size, dtype)
        see(sample_rows(logits, requests))
        see(sample_rows(logits, requests, edits=arguments_of(random_edits(len(requests), vocab_size), vocab_size)))
    for vocab_size in (1, 15, 33, 1000, 5000):
        logits = make_logits(20, vocab_size, dtype, scale=4.0)
        for temperature in (None, torch.full((20,), 0.7)):
            best = (logits, None, None, min(40, vocab_size))
            see(torch.ops.ascend_sample.row_logprobs(*best, temperature=temperature)[:2])
        logits[1, 1:], logits[2, ::3], logits[3, ::4] = -torch.inf, torch.nan, -80.0
        for count in {0, min(40, vocab_size), vocab_size}:
            for options in ((True, True), (True, False), (False, False)):
                given = (logits, None, torch.arange(20) % vocab_size)
                values, ids, of_rows = torch.ops.ascend_sample.row_logprobs(*given, count, *options)
                see((values, ids, *of_rows))
    for vocab_size in (300, 5000):
        batch = SamplingBatch(vocab_size)
        batch.extend([SamplingParams(seed=1, logprobs=row, **kind) for row, kind in enumerate(kinds)])
        for mode in ("raw_logprobs", "processed_logprobs", "processed_logits"):
            see(Sampler(mode)(make_logits(5, vocab_size, dtype, scale=4.0), batch, advance=False).logprobs[1:])
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert_same_on_all_code_paths(PROGRAM)
