"""What all beam searches promise: texts that a device finds too, padding anywhere, and penalties within float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ascend_sample.sampling.draws.best_tokens import best_tokens
from tests.decoding.every_strategy import OF_BEAMS, STRATEGIES, names
from tests.decoding.table_models import IMPOSSIBLE, UNCALLED, random_table, table_model


@pytest.mark.parametrize("name", names(has_beams=True, is_drawn=False))
def test_where_sums_are_equal_devices_find_the_same_bits(npu: str, name: str) -> None:
    # What a device computes otherwise is a row's largest log-probability; here are only rows where that is no other.
    rows = torch.randn(400, 60, generator=torch.Generator().manual_seed(0)) * 2
    for dtype in (torch.float32, torch.bfloat16):
        logits = rows.to(dtype)
        differs = (best_tokens(logits, 1, 1.0)[0] != best_tokens(logits.to(npu), 1, 1.0)[0].cpu()).flatten()
        tables = logits[~differs]
        assert len(tables) >= 120, "equal ones are what is usual"
        for table in (tables[:60], tables[60:120]):
            options: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": 0, **STRATEGIES[name].several}
            prompts = torch.arange(8)[:, None]
            expected = STRATEGIES[name].search(table_model(table), prompts, **options)
            found = STRATEGIES[name].search(table_model(table, npu), prompts.to(npu), **options)
            assert torch.equal(found.sequences.cpu(), expected.sequences)
            assert torch.equal(found.sequences_scores.cpu(), expected.sequences_scores)


@OF_BEAMS
def test_padding_may_be_beyond_the_vocabulary(name: str, device: str) -> None:
    prompts = torch.tensor([[1], [2], [3]], device=device)
    padded, tolerance = 0, 0.0
    for seed in range(2):
        table = random_table(7, seed)
        options: dict[str, Any] = {"max_new_tokens": 7, "eos_token_id": [5, 6], **STRATEGIES[name].several}
        found = STRATEGIES[name].search(table_model(table, device), prompts, pad_token_id=7, **options)
        padded += int((found.sequences == 7).sum())
        padding = 0
        if name == "group_beam_search":  # which penalises a padding token of the vocabulary: here one without hope
            table, padding = torch.nn.functional.pad(table, (0, 1, 0, 1), value=IMPOSSIBLE), 7
            tolerance = 1e-6  # a device's float32 sum over one more token may round otherwise
        expected = STRATEGIES[name].search(table_model(table, device), prompts, pad_token_id=padding, **options)
        assert found.to_lists() == expected.to_lists()
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=tolerance)
    assert padded > 0


@OF_BEAMS
def test_a_length_penalty_stays_within_the_range_of_float32(name: str) -> None:
    model, prompt = table_model(random_table(9, seed=1)), torch.tensor([[1]])
    for penalty in (12.0, -12.0):
        options: dict[str, Any] = {"max_new_tokens": 40, "length_penalty": penalty, **STRATEGIES[name].several}
        found = STRATEGIES[name].search(model, prompt, **options)
        assert found.sequences_scores.isfinite().all()
        assert (found.sequences_scores < 0).all()
        assert (found.lengths > 0).all()
    message = r"length_penalty must be in \[-.*\] with that many new tokens, got .*\. [A-Z]"
    for penalty in (200, -200, 1e300):
        with pytest.raises(ValueError, match=message):
            STRATEGIES[name].search(UNCALLED, prompt, max_new_tokens=40, length_penalty=penalty)
    assert STRATEGIES[name].search(model, prompt, max_new_tokens=1, length_penalty=1e300).lengths.tolist() == [1]
