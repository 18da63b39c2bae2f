"""Backtracking: by hand."""

from __future__ import annotations

import torch

from ascend_sample.decoding.beams.backtracking import gather_tree, trace_beams

END = 9
STEPS = [[1, 2, 3], [4, 5, 6], [7, END, 8], [1, END, 2]]
PARENTS = [[0, 0, 0], [1, 0, 2], [2, 0, 1], [2, 1, 0]]
TREE = torch.tensor(STEPS)[:, None], torch.tensor(PARENTS)[:, None]


def test_a_tree_by_hand(device: str) -> None:
    # Beam 0: 1 <- (2) 8 <- (1) 5 <- (0) 1. Beam 1: 9 <- (1) 9 <- (0) 4 <- (1) 2. Beam 2: 2 <- (0) 7 <- (2) 6 <- (2) 3.
    found = gather_tree(*(value.to(device) for value in (*TREE, torch.tensor([4]))), END)
    assert found[:, 0].T.tolist() == [[1, 5, 8, 1], [2, 4, END, END], [3, 6, 7, 2]]


def test_what_is_above_a_length_is_the_end_token() -> None:
    assert gather_tree(*TREE, torch.tensor([2]), END)[:, 0].T.tolist() == [[2, 4, 9, 9], [1, 5, 9, 9], [3, 6, 9, 9]]
    each = gather_tree(*TREE, torch.tensor([[1, 3, 0]]), END)
    assert each[:, 0].T.tolist() == [[1, 9, 9, 9], [2, 4, END, 9], [9, 9, 9, 9]]


def test_what_the_first_step_continues_is_not_looked_at() -> None:
    step_ids, parent_ids = TREE
    unknown = torch.cat((torch.tensor([[[-1, 3, 99]]]), parent_ids[1:]))
    lengths = torch.tensor([4])
    assert torch.equal(gather_tree(step_ids, unknown, lengths, END), gather_tree(*TREE, lengths, END))


def test_what_follows_the_first_end_token_is_the_end_token() -> None:
    step_ids = torch.tensor([[[1]], [[END]], [[2]], [[3]]])
    assert gather_tree(step_ids, torch.zeros_like(step_ids), torch.tensor([8]), END).flatten().tolist() == [1, 9, 9, 9]


def test_hypotheses_that_end_at_different_steps() -> None:
    beams, lengths = torch.tensor([[1, 2, 0, 0]]), torch.tensor([[4, 3, 1, 0]])
    tokens, parents = trace_beams(*TREE, beams, lengths)
    assert tokens[:4, 0, 0].tolist() == [2, 4, END, END]
    assert tokens[:3, 0, 1].tolist() == [1, 5, 8]
    assert tokens[:1, 0, 2].tolist() == [1]
    assert parents[:3, 0, 1].tolist() == [0, 0, 1]
