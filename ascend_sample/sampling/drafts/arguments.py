"""Checks of what `verify_drafts` is called with, before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._errors import how_to_convert, how_to_fit, refuse, show
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import Ids, KeptPlaces, requests_of_places
from ascend_sample.sampling.edits.state_slots import refuse_states
from ascend_sample.sampling.requests.checks import LARGEST_COUNT
from ascend_sample.sampling.rows.arguments import host_ints
from ascend_sample.sampling.rows.parameters import check_logits, check_uncaptured

NAME: Final = "verify_drafts"
VerificationRule = Literal["match", "standard", "block"]
RULES: Final[tuple[VerificationRule, ...]] = get_args(VerificationRule)
Counts = Sequence[int] | NDArray[Any] | Tensor
MOST_OF_SUM: Final = 0.01
"""So far from 1 may the sum of probabilities be: rounding to bfloat16 moves it by up to 2^-8. To float16 it moves it by
2^-11, and what is too small becomes 0, up to 2^-25 for each of 151,936 ids, 0.005 in all."""
NUMBERS_READ: Final = 2**16
"""Of dense probabilities so many are added up, or one row: a pass over all takes longer than judging by them."""


def checked_counts(name: str, counts: Counts, requests: int) -> Ids:
    """Returns counts as int64 whose sum int64 holds, or raises unless there is one for each request, on the host."""
    remedy = "Give the number of each request's drafts."
    given = host_ints(NAME, name, counts, remedy)
    if len(given) != requests:
        rule = f"be as many as the batch has requests, {requests}"
        refuse(NAME, name, rule, len(given), "A request without drafts has 0.")
    if given.min(initial=0) < 0:
        refuse(NAME, name, "be at least 0", int(given.min()), "A request without drafts has 0.")
    if given.max(initial=0) > LARGEST_COUNT:
        refuse(NAME, name, f"be at most {LARGEST_COUNT}", int(given.max()), remedy)
    return given


def checked_parents(parents: Counts, counts: Ids, rule: str) -> Ids:
    """Returns parents as int64, or raises unless they make a tree of each request's places, for the rule match."""
    if rule != "match":
        remedy = "Its drafts are chains: give one way through the tree."
        refuse(NAME, "parents", f"be None for the rule '{rule}'", "a tree", remedy)
    given = host_ints(NAME, "parents", parents, "Give the number of the place that each place follows.")
    places = int(counts.sum()) + len(counts)
    if len(given) != places:
        refuse(NAME, "parents", f"be as many as there are places, {places}", len(given), "A root has -1.")
    request = requests_of_places(counts)
    number = numpy.arange(places) - (numpy.cumsum(counts + 1) - counts - 1)[request]
    is_wrong = numpy.where(number == 0, given != -1, (given < 0) | (given >= number))
    if is_wrong.any():
        first = int(is_wrong.argmax())
        rule_of_parents = "be -1 for the first place of a request, and for each other one an earlier place of it"
        got = f"{given[first]} for place {number[first]} of request {request[first]}"
        refuse(NAME, "parents", rule_of_parents, got, "Number the places of a request from its root on.")
    return given


def check_places(logits: Tensor, draft_ids: Tensor, batch: SamplingBatch, counts: Ids, width: int) -> None:
    check_logits(NAME, logits)
    check_uncaptured(NAME, logits)
    if not batch.plans.has(KeptPlaces):  # where the places of a batch are kept, it is as it was when they were made
        remedy = "Sample its tokens one by one: each draft would need the state after those before it."
        refuse_states(NAME, batch.host, remedy)
    drafts = int(counts.sum())
    if tuple(logits.shape) != (drafts + len(batch), width):
        rule = f"have the shape of the places, [{drafts + len(batch)}, {width}]"
        otherwise = "A request with d drafts has d + 1 rows."
        remedy = how_to_fit("logits", logits.shape, width, batch.vocab_size, otherwise)
        refuse(NAME, "logits", rule, list(logits.shape), remedy)
    if not isinstance(draft_ids, Tensor) or draft_ids.dtype != torch.int64:
        got = draft_ids.dtype if isinstance(draft_ids, Tensor) else type(draft_ids).__name__
        remedy = how_to_convert("draft_ids", draft_ids, torch.int64)
        refuse(NAME, "draft_ids", "be an int64 tensor", got, remedy, TypeError)
    if tuple(draft_ids.shape) != (drafts,):
        remedy = "Give the drafts of all requests one after another."
        refuse(NAME, "draft_ids", f"have the shape of the counts' sum, [{drafts}]", list(draft_ids.shape), remedy)
    for name, tensor in (("logits", logits), ("draft_ids", draft_ids)):
        if tensor.device != batch.device:
            rule = f"be on the device of the batch, {batch.device}"
            refuse(NAME, name, rule, tensor.device, "Make the batch with device=logits.device.")


def check_rule(owner: str, rule: object, usual: VerificationRule = "match") -> None:
    """Raises, for ``owner``, unless the rule is one; ``usual`` is what counts where none is given."""
    if rule not in RULES:
        refuse(owner, "rule", f"be one of {', '.join(RULES)}", show(rule), f"Leave it out for '{usual}'.")


def check_proposals(rule: object, probabilities: object, candidates: object, logits: Tensor, draft_ids: Tensor) -> None:
    """Raises unless the rule is one, and the proposals are what it takes."""
    check_rule(NAME, rule)
    if candidates is not None and probabilities is None:
        refuse(NAME, "draft_candidates", "come with draft_probabilities", "them alone", "Give both, or none.")
    if probabilities is None:
        return
    if rule == "match":
        refuse(NAME, "draft_probabilities", "be None for the rule 'match'", "a tensor", "It looks at tokens alone.")
    columns = [logits.shape[1]]
    if candidates is not None:
        _check_tensor("draft_candidates", candidates, torch.int64, logits)
        columns = [*candidates.shape[1:]]  # type: ignore[attr-defined]
    tensors = {"draft_probabilities": (probabilities, torch.float32), "draft_candidates": (candidates, torch.int64)}
    for name, (tensor, dtype) in tensors.items():
        if tensor is not None:
            _check_tensor(name, tensor, dtype, logits)
            assert isinstance(tensor, Tensor)
            if [*tensor.shape] != [len(draft_ids), *columns] or tensor.dim() != 2:
                rule_of_shape = (
                    f"have a row for each draft, [{len(draft_ids)}, {columns[0] if columns else 'candidates'}]"
                )
                remedy = "A draft that was not drawn has a single 1."
                if candidates is None:
                    remedy = how_to_fit(name, tensor.shape, columns[0], columns[0], remedy)
                refuse(NAME, name, rule_of_shape, list(tensor.shape), remedy)


def check_law(
    probabilities: Tensor, candidates: Tensor | None, draft_ids: Tensor, batch: SamplingBatch, counts: Ids
) -> None:
    """Raises where drafts on a CPU were not drawn from probabilities: those of listed ids, and a part of dense ones.

    Of dense ones these are the draft's own, and the first whole rows: whoever gives logits does so in each row. Drafts
    behind a placeholder do not count, and of greedy requests the tokens are the same whatever the probabilities are.
    """
    ids, request = draft_ids.numpy(), numpy.repeat(numpy.arange(len(counts)), counts)
    ended = numpy.concatenate(([0], numpy.cumsum(ids < 0)))
    is_judged = (batch.host.temperature[request] != 0) & (ended[1:] == ended[(numpy.cumsum(counts) - counts)[request]])
    drafts, given = numpy.flatnonzero(is_judged), probabilities.detach().numpy()
    if not len(drafts):
        return
    if candidates is not None:
        rows = numpy.where(candidates.numpy()[drafts] < 0, 0, given[drafts])
    else:
        own = given[drafts, ids[drafts].clip(max=given.shape[1] - 1)]
        _check_probabilities(own[:, None], drafts, None)
        rows = given[drafts[: max(1, NUMBERS_READ // given.shape[1])]]
    _check_probabilities(rows, drafts, 1.0)


def _check_probabilities(rows: NDArray[numpy.float32], drafts: Ids, total: float | None) -> None:
    """Raises unless numbers [drafts, n] are at least 0 and at most 1, and add up to a total, which may be any."""
    sums = rows.sum(1)
    is_right = sums <= 1.0 + MOST_OF_SUM if total is None else abs(sums - total) <= MOST_OF_SUM
    if rows.min(initial=0.0) >= 0.0 and is_right.all():  # NaN is neither
        return
    row = int((is_right & (rows.min(1, initial=0.0) >= 0.0)).argmin())
    least = rows[row].min(initial=0.0)
    got = f"{sums[row]}{'' if total is None else ' in all'}" if least >= 0.0 else str(least)
    rule = f"be probabilities, at least 0 and 1 in all, within {MOST_OF_SUM}"
    remedy = "Give the softmax of the logits that each draft was drawn from."
    refuse(NAME, "draft_probabilities", rule, f"{got} in row {drafts[row]}", remedy)


def _check_tensor(name: str, tensor: object, dtype: torch.dtype, logits: Tensor) -> None:
    """Raises unless it is a tensor of a dtype on the device of the logits."""
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        refuse(NAME, name, f"be a tensor of {dtype}", got, how_to_convert(name, tensor, dtype), TypeError)
    if tensor.device != logits.device:
        refuse(NAME, name, f"be on the device of the batch, {logits.device}", tensor.device, "Move it there.")
