"""Backtracking leads from the tokens and parents of a beam search's steps to whole sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample._errors import check_integer, refuse, refuse_type


def gather_tree(step_ids: Tensor, parent_ids: Tensor, lengths: Tensor, end_token: int) -> Tensor:
    """Follows each beam from its last token to its first, as TensorFlow's and FasterTransformer's operators do.

    Args:
        step_ids: int64 [steps, batch, beams], the token that each step gave each beam.
        parent_ids: int64 [steps, batch, beams], the beam of the step before that it was appended to, in [0, beams).
            The first step's are not looked at.
        lengths: int64 [batch], how many steps count for each prompt, or [batch, beams], for each of its beams; what is
            above the number of steps counts as that.
        end_token: fills what follows the first end token of a sequence, and what follows its length.

    Returns:
        int64 [steps, batch, beams]: beam b of the last step that counts, as the tokens that led to it.

    Raises:
        TypeError: an argument is no int64 tensor, or end_token no int.
        ValueError: shapes or devices do not fit, or a parent is no beam.

    Example:
        The second step appended 3 to beam 1, and 4 to beam 0.

        >>> step_ids, parent_ids = torch.tensor([[[1, 2]], [[3, 4]]]), torch.tensor([[[0, 0]], [[1, 0]]])
        >>> gather_tree(step_ids, parent_ids, torch.tensor([2]), end_token=9)[:, 0].T
        tensor([[2, 3],
                [1, 4]])

    Source: docs/decoding.md, section "Backtracking".
    """
    _check(step_ids, parent_ids, lengths, end_token)
    steps, batch, beams = step_ids.shape
    if lengths.dim() == 1:
        lengths = lengths[:, None].expand(batch, beams)
    own = torch.arange(beams, device=step_ids.device).expand(batch, beams)
    tokens, _ = trace_beams(step_ids, parent_ids, own, lengths)
    places = torch.arange(steps, device=step_ids.device)[:, None, None]
    is_end = tokens == end_token
    is_after_the_end = is_end.cumsum(dim=0) > is_end.to(torch.int64)
    return tokens.masked_fill(is_after_the_end | (places >= lengths), end_token)


def trace_beams(step_ids: Tensor, parent_ids: Tensor, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Traces hypotheses that may end at different steps backwards, all at once.

    Args:
        step_ids: int64 [steps, batch, beams], the token that each step gave each beam.
        parent_ids: int64 [steps, batch, beams], the beam of the step before that it was appended to.
        beams: int64 [batch, hypotheses], the beam where each hypothesis has its last token.
        lengths: int64 [batch, hypotheses], the number of tokens of each, from 0 to steps.

    Returns:
        The tokens of the hypotheses, and the beams that these were appended to, int64 [steps, batch, hypotheses] each.
        What stands after a hypothesis' length is undefined.
    """
    tokens, parents = [], []
    slots = beams
    for step in range(len(step_ids) - 1, -1, -1):
        tokens.append(step_ids[step].gather(1, slots))
        parents.append(parent_ids[step].gather(1, slots))
        # Above its length a hypothesis waits at its own beam.
        slots = torch.where(step < lengths, parents[-1], beams)
    return torch.stack(tokens[::-1]), torch.stack(parents[::-1])


def _check(step_ids: Tensor, parent_ids: Tensor, lengths: Tensor, end_token: int) -> None:
    named = {"step_ids": step_ids, "parent_ids": parent_ids, "lengths": lengths}
    for name, value in named.items():
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            refuse_type("gather_tree", name, "be an int64 tensor", value, "Convert it with .long().")
        if value.device != step_ids.device:
            rule = f"be on the device of step_ids, {step_ids.device}"
            refuse("gather_tree", name, rule, value.device, "Move it with .to().")
    if step_ids.dim() != 3 or 0 in step_ids.shape:
        rule, remedy = "be [steps, batch, beams] and not empty", "Stack the steps with torch.stack."
        refuse("gather_tree", "step_ids", rule, list(step_ids.shape), remedy)
    if parent_ids.shape != step_ids.shape:
        rule = f"have the shape of step_ids, {list(step_ids.shape)}"
        refuse("gather_tree", "parent_ids", rule, list(parent_ids.shape), "Give one parent for each token.")
    _, batch, beams = step_ids.shape
    if list(lengths.shape) not in ([batch], [batch, beams]):
        rule = f"be [{batch}] or [{batch}, {beams}]"
        refuse("gather_tree", "lengths", rule, list(lengths.shape), "Give one length for each prompt or each beam.")
    check_integer("gather_tree", "end_token", end_token, low=0)
    outside = parent_ids[1:][(parent_ids[1:] < 0) | (parent_ids[1:] >= beams)]
    if outside.numel() > 0:
        remedy = "Count beams within their prompt, from 0."
        refuse("gather_tree", "parent_ids", f"be in [0, {beams})", outside[0].item(), remedy)
