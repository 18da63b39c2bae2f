"""Masks of a real grammar over a real tokenizer: what is drawn is what a mask of logits would let through."""

from __future__ import annotations

import json

import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.torch import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "ages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
}
END = "<end>"
ROWS, MOST_STEPS = 5, 60
KINDS = [{"temperature": 0}, {"top_k": 40}, {"top_p": 0.9}, {}, {"top_k": 20, "repetition_penalty": 1.2}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Byte-level BPE, learned from the documentation of this module and of torch."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1001, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    learned.train_from_iterator([__doc__ or "", torch.topk.__doc__, torch.sort.__doc__, torch.where.__doc__], trainer)
    return learned


def test_texts_are_of_the_grammar(device: str, tokenizer: Tokenizer) -> None:
    """Beside a batch whose logits were masked by hand, token by token."""
    vocab_size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
    ours, grammar = LLTokenizer(tokenizer.to_str(), eos_token=end), LLMatcher.grammar_from_json_schema(SCHEMA)
    matchers = [LLMatcher(ours, grammar) for _ in range(ROWS)]
    batch, by_hand = SamplingBatch(vocab_size, device), SamplingBatch(vocab_size, device)
    for one in (batch, by_hand):
        one.extend([SamplingParams(**KINDS[row], seed=row) for row in range(ROWS)])
    generator = torch.Generator().manual_seed(0)
    # What closes strings, lists and objects is likely, so that texts end.
    likely = torch.tensor([any(c in tokenizer.decode([token]) for c in '"]}') for token in range(vocab_size)])
    texts: list[list[int]] = [[] for _ in range(ROWS)]
    sampler, writing = Sampler(), list(range(ROWS))
    for _ in range(MOST_STEPS):
        logits = (torch.randn(ROWS, vocab_size, generator=generator) * 2 + 4 * likely).to(torch.bfloat16)
        bitmask = allocate_token_bitmask(len(writing), vocab_size)
        for place, row in enumerate(writing):
            fill_next_token_bitmask(matchers[row], bitmask, place)
        bits = (bitmask.unsqueeze(2) >> torch.arange(32, dtype=torch.int32) & 1).flatten(1)[:, :vocab_size] == 1
        masked = logits.clone()
        masked[writing] = masked[writing].masked_fill(~bits, -torch.inf)
        output = sampler(logits.to(device), batch, bitmask=bitmask, bitmask_rows=writing)
        expected = sampler(masked.to(device), by_hand)
        assert torch.equal(output.token_ids, expected.token_ids)
        assert output.status.tolist() == [RowStatus.OK] * ROWS
        for row in writing:
            token = int(output.token_ids[row])
            assert matchers[row].consume_token(token)
            texts[row] += [token] if token != end else []
        writing = [row for row in writing if not matchers[row].is_stopped()]
        if not writing:
            break
    read = [json.loads(tokenizer.decode(text)) for row, text in enumerate(texts) if row not in writing]
    assert read, "some texts end"
    for value in read:
        assert set(value) == {"name", "ages"}
        assert len(value["name"]) <= 12
        assert all(isinstance(age, int) for age in value["ages"])
