"""FasterTransformer's Decoding: the beam search over its decoder, with the steps' ids and parents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.backtracking import gather_tree
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.in_beam import search_in_beam
from ascend_sample.decoding.beams.run import BeamRun
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import check_request
from tests.decoding.decoder_models import random_decoder

END = 8


def make_request(rows: int, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, 6, 10, generator=generator)
    lengths = torch.randint(1, 7, (rows,), generator=generator)
    return torch.full((rows, 1), 1), {"memory": memory, "memory_lengths": lengths}


def assert_same(one: DecodeOutput, other: DecodeOutput) -> None:
    assert one.to_lists() == other.to_lists()
    torch.testing.assert_close(one.sequences_scores, other.sequences_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "beams", "steps", "finished"), [(3, 4, 9, "in_beam"), (2, 17, 6, "pool")])
def test_search_with_the_cache_equals_search_without(rows: int, beams: int, steps: int, finished: Any) -> None:
    for seed in range(2):
        decoder = random_decoder(seed)
        start, encoder = make_request(rows, seed)
        options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams, "finished": finished}
        options |= {"max_new_tokens": steps, "eos_token_id": END, "encoder": encoder}
        assert_same(beam_search(decoder, start, **options), beam_search(ModuleModel(decoder), start, **options))


def test_ragged_prompts_and_lengths() -> None:
    decoder = random_decoder()
    _, encoder = make_request(3, seed=1)
    prompts = torch.tensor([[0, 0, 4], [5, 6, 7], [8, 0, 9]])
    mask = torch.tensor([[0, 0, 1], [1, 1, 1], [1, 0, 1]])
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "finished": "in_beam"}
    options |= {"max_new_tokens": [3, 7, 5], "eos_token_id": END, "attention_mask": mask, "encoder": encoder}
    found = beam_search(decoder, prompts, **options)
    assert_same(found, beam_search(ModuleModel(decoder), prompts, **options))
    for row in range(3):  # each as it is alone
        alone = {**options, "max_new_tokens": options["max_new_tokens"][row], "attention_mask": None}
        alone["encoder"] = {name: value[row : row + 1] for name, value in encoder.items()}
        expected = beam_search(decoder, prompts[row : row + 1][mask[row : row + 1].bool()][None], **alone)
        assert found.to_lists()[4 * row : 4 * row + 4] == expected.to_lists()


def test_ids_and_parents_give_the_sequences() -> None:
    decoder = random_decoder(2)
    start, encoder = make_request(2, seed=2)
    run = BeamRun(decoder, check_request("test", decoder, start, 8, encoder=encoder, eos_token_id=END), num_beams=5)
    found = search_in_beam(run, num_return_sequences=5, length_penalty=0.0)
    step_ids, parent_ids = run.recorded()
    assert step_ids.shape == parent_ids.shape == (len(step_ids), 2, 5)
    assert (parent_ids[0] == 0).all()
    gathered = gather_tree(step_ids, parent_ids, torch.full((2,), len(step_ids)), END)
    assert torch.equal(gathered.permute(1, 2, 0).flatten(0, 1), found.sequences)
    assert len(set(found.lengths.tolist())) > 1


def test_what_is_masked_does_not_matter() -> None:
    decoder, mask = random_decoder(), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    tokens, memory = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.ones(2, 3, 10)
    expected = decoder.prefill(tokens, mask, memory=memory).logits
    for masked in (-100, 17):
        assert decoder.prefill(tokens.where(mask, masked), mask, memory=memory).logits.equal(expected)
