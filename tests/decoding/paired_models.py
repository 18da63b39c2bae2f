"""Two models side by side, which are told the same and must answer the same, whatever is done to their caches."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from ascend_sample.decoding.model import StepModel, StepOutput

TOLERANCE = 1e-4
ONE_OF_EACH = ("doedbdoob", "dbdodedbd", "eessssbssss")
"""Sequences that have everything in them: of any search, of a speculative one, and of beams with steps taken back."""
SEQUENCES: dict[str, st.SearchStrategy] = {
    "operations": st.text("ddeobs", max_size=10),
    "rows": st.integers(1, 4),
    "longest": st.integers(1, 4),
    "seed": st.integers(0, 1000),
}
"""What hypothesis draws of a comparison."""


def examples(count: int) -> settings:
    """So many sequences of operations, always the same."""
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


def ragged(rows: int, longest: int, vocab_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens, and a mask that has padding anywhere but leaves each row a token."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, longest, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(longest, (rows,), generator=generator)] = True
    return torch.randint(vocab_size, (rows, longest), generator=generator), mask


def compare_operations(
    models: tuple[StepModel, StepModel],
    batch: tuple[Tensor, Tensor, dict[str, Tensor]],
    vocab_size: int,
    operations: str,
    seed: int,
    fewest: int = 1,
) -> None:
    """The same operations on both, with equal logits and hidden states each time.

    Args:
        models: what is right, and what is compared with it.
        batch: input_ids, attention_mask, and what the encoder takes.
        vocab_size: of the tokens that are drawn.
        operations: d: decode, e: expand, where there are few rows, o: reorder, b: roll back, s: a step of beams.
        seed: of what is drawn.
        fewest: how many tokens a rollback leaves at least.
    """
    generator = torch.Generator().manual_seed(seed)
    input_ids, mask, encoder = batch
    outputs = [model.prefill(input_ids, mask, **encoder) for model in models]
    lengths = mask.sum(dim=1)
    states = [output.hidden_states for output in outputs]
    outputs = [
        output._replace(hidden_states=state if state is None else state[mask.bool()])
        for output, state in zip(outputs, states, strict=True)
    ]

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    def decode(count: int) -> None:
        nonlocal lengths, outputs
        tokens = torch.randint(vocab_size, (len(lengths), count), generator=generator)
        outputs = [model.decode(tokens, output.cache) for model, output in zip(models, outputs, strict=True)]
        lengths = lengths + count
        assert_equal(*outputs)

    def change(name: str, argument: int | Tensor) -> None:
        nonlocal outputs
        caches = [getattr(model, name)(output.cache, argument) for model, output in zip(models, outputs, strict=True)]
        outputs = [output._replace(cache=cache) for output, cache in zip(outputs, caches, strict=True)]

    assert_equal(*outputs)
    for operation in operations:
        rows = len(lengths)
        if operation == "e" and rows <= 6:
            copies = number(1, 3)
            change("expand", copies)
            lengths = lengths.repeat_interleave(copies)
        elif operation == "b":
            kept = torch.rand(rows, generator=generator) * (lengths + 1)
            lengths = kept.long().clamp(fewest).minimum(lengths)
            change("rollback", lengths)
        elif operation in "os":
            index = torch.randint(rows, (number(1, 7),), generator=generator)
            if operation == "s":
                decode(1)
                parents = torch.randint(rows, (rows,), generator=generator)
                index = torch.arange(rows).where(torch.rand(rows, generator=generator) < 0.7, parents)
            change("reorder", index)
            lengths = lengths[index]
        else:
            decode(number(1, 3))
    decode(1)


def assert_equal(expected: StepOutput, found: StepOutput) -> None:
    """Nearly equal logits, and hidden states where both models give some."""
    torch.testing.assert_close(found.logits, expected.logits, rtol=TOLERANCE, atol=TOLERANCE)
    if found.hidden_states is not None and expected.hidden_states is not None:
        torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=TOLERANCE, atol=TOLERANCE)
