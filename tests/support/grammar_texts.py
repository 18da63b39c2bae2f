"""Texts that a grammar's bitmasks lead: drawn beside a batch whose logits were masked by hand, and read as JSON."""

from __future__ import annotations

import json
from typing import Protocol

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

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
LARGEST_VOCAB_SIZE = 1001
ROWS, MOST_STEPS = 5, 60
KINDS = [{"temperature": 0}, {"top_k": 40}, {"top_p": 0.9}, {}, {"top_k": 20, "repetition_penalty": 1.2}]


class Matcher(Protocol):
    """What follows one text through the grammar."""

    def fill(self, bitmask: Tensor, place: int) -> None:
        """Writes which tokens may follow, int32 [words], into a row of a bitmask."""

    def accept(self, token: int) -> bool:
        """Takes in a token; tells whether it may follow."""

    def is_over(self) -> bool:
        """Tells whether the text has ended."""


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE, learned from this module's and from torch's documentation."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=LARGEST_VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=1,
    )
    texts = [__doc__, *(function.__doc__ for function in (torch.topk, torch.sort, torch.where))]
    learned.train_from_iterator(texts, trainer)
    return learned


def check_texts(tokenizer: Tokenizer, matchers: list[Matcher], device: str) -> None:
    """Lets each row write a text, token by token."""
    vocab_size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
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
        bitmask = torch.zeros(len(writing), -(-vocab_size // 32), dtype=torch.int32)
        for place, row in enumerate(writing):
            matchers[row].fill(bitmask, place)
        bits = (bitmask.unsqueeze(2) >> torch.arange(32, dtype=torch.int32) & 1).flatten(1)[:, :vocab_size] == 1
        assert not bits.all()
        masked = logits.clone()
        masked[writing] = masked[writing].masked_fill(~bits, -torch.inf)
        output = sampler(logits.to(device), batch, bitmask=bitmask, bitmask_rows=writing)
        expected = sampler(masked.to(device), by_hand)
        assert torch.equal(output.token_ids, expected.token_ids)
        assert output.status.tolist() == [RowStatus.OK] * ROWS
        for row in writing:
            token = int(output.token_ids[row])
            assert matchers[row].accept(token)
            texts[row] += [token] if token != end else []
        writing = [row for row in writing if not matchers[row].is_over()]
        if not writing:
            break
    read = [json.loads(tokenizer.decode(text)) for row, text in enumerate(texts) if row not in writing]
    assert read, "some texts end"
    for value in read:
        assert set(value) == {"name", "ages"}
        assert len(value["name"]) <= 12
        assert all(isinstance(age, int) for age in value["ages"])
