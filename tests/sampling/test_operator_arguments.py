"""What the sampling layer's operators refuse: of any tensor its dtype, shape and device, and values that are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from native_rows import Request, keys, lists, make_logits
from row_edits import FAMILIES, RowEdits, arguments_of

from ascend_sample.sampling.edits.value_ranges import NUMBERS

ONES, IDS, LOGITS = torch.ones(4), torch.arange(4), make_logits(4, 40, torch.float32)
FILTERS = lists([Request(1.0, 2, 0.9, 0.1)] * 4)
EDITED = RowEdits({0: 1.0, 1: 1.0}, [5, 6], {5: 3, 6: 3}, mask=LOGITS[0] < 9, bitmask=LOGITS[0] < 9)
EDITS = arguments_of([EDITED] * 4, 40)
EDITS["ranges"] = torch.zeros(len(NUMBERS), 4)
ROWS = {"logits": LOGITS, "rows": IDS}
REQUESTS = FILTERS | keys(4) | EDITS
DRAFTS = {"draft_ids": IDS[:2], "ends": torch.tensor([2, 4]), "parents": torch.tensor([-1, 0, -1, 0])}
PROPOSALS = {"rule": 1, "draft_probabilities": torch.ones(2, 3), "draft_candidates": IDS[:3].repeat(2, 1)}
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "exponential_noise": ("exponential_noise", keys(4) | {"lanes": 8}),
    "sample_rows": ("sample_rows", ROWS | REQUESTS),
    "kept sets": ("sample_rows", ROWS | {"is_kept_wanted": ONES > 0} | REQUESTS),
    "logprobs": (
        "sample_rows",
        {"logits": LOGITS, "rows": None, "logprobs": 2, "logprob_rows": IDS, "logprob_token_ids": IDS[:, None]}
        | REQUESTS,
    ),
    "verify_drafts": ("verify_drafts", {"logits": LOGITS} | REQUESTS | DRAFTS),
    "drawn drafts": (
        "verify_drafts",
        {"logits": LOGITS, "draft_ids": IDS[:2], "ends": DRAFTS["ends"]} | REQUESTS | PROPOSALS,
    ),
    "filter_logits": ("filter_logits", {"logits": LOGITS, "form": 0} | FILTERS | EDITS),
    "value_ranges": ("value_ranges", {"logits": LOGITS, "temperature": ONES, "ranges": EDITS["ranges"]}),
    "row_logprobs": ("row_logprobs", ROWS | {"token_ids": IDS, "count": 1, "named": IDS[:, None], "temperature": ONES}),
    "segment_winners": (
        "segment_winners",
        {"logits": LOGITS, "first_id": 0, "temperature": ONES, "min_p": ONES, "maximum": ONES} | keys(4),
    ),
}
LEADING = (
    *("logits", "rows", "logprob_rows", "ends", "addend_ids", "penalty_ids"),
    *("masks", "bitmask", "draft_candidates", "named", "logprob_token_ids"),
)
"""Whose sizes decide those of others, which are refused then, or of what is returned."""


@pytest.mark.parametrize("name", list(GOOD)[:7])
def test_schema_and_fake_kernel_of_edited_rows(name: str) -> None:
    operator, good = GOOD[name]
    torch.library.opcheck(getattr(torch.ops.ascend_sample, operator).default, (), good)


@pytest.mark.parametrize("name", GOOD)
def test_every_tensor_has_its_dtype_its_shape_and_its_device(name: str) -> None:
    operator, good = GOOD[name]
    getattr(torch.ops.ascend_sample, operator)(**good)
    for argument, value in good.items():
        if isinstance(value, torch.Tensor):
            assert_checked(operator, good, argument)


def assert_checked(operator: str, good: dict[str, Any], name: str) -> None:
    def says(error: type[Exception], rule: str, bad: torch.Tensor) -> None:
        with pytest.raises(error, match=f"^{operator}: {name} must {rule}"):
            getattr(torch.ops.ascend_sample, operator)(**good | {name: bad})

    value = good[name]
    says(TypeError, "be .*, got ComplexFloat", value.to(torch.complex64))
    says(TypeError, "be .*, got ", value.double() if value.dtype != torch.double else value.float())
    for other in (value[None], value[0]):
        says(ValueError, r"have (the )?shape \[", other)
    if (operator, name) == ("exponential_noise", "seed") or name == "logits":
        return
    says(ValueError, "be on the device of ", value.to("meta"))
    if name not in LEADING:
        for dimension in range(value.dim()):
            for size in (value.shape[dimension] - 1, value.shape[dimension] + 1):
                positions = torch.arange(size).clamp(max=value.shape[dimension] - 1)
                says(ValueError, "have ", value.index_select(dimension, positions))


def at(name: str, value: int) -> dict[str, torch.Tensor]:
    """The argument with a value at its first place, or at that of a row's slot in a table."""
    changed = EDITS[name].clone()
    slot = int(EDITS[f"{name.split('_')[0]}_slot"][0]) if name.endswith(("_ids", "_lengths")) else 0
    changed.view(len(changed), -1)[slot, 0] = value
    return {name: changed}


SLOTS = r"must be between -1 and the number of"
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("sample_rows", {"logits": torch.zeros(4, 0)}, "logits must have at least one column"),
    ("sample_rows", {"rows": IDS + 1}, r"rows must be between 0 and .* \(4\) - 1, got 4"),
    ("sample_rows", {"rows": IDS - 1}, "rows must be between 0 and .* got -1"),
    ("sample_rows", {"rows": IDS[:3]}, r"temperature must have one value for each row \(3\), got 4"),
    ("sample_rows", {"purpose": -1}, r"purpose must be between 0 and 2\^32 - 1, got -1"),
    ("sample_rows", {"purpose": 1 << 32}, r"purpose must be between 0 and 2\^32 - 1, got 4294967296"),
    ("sample_rows", at("addend_slot", 6), rf"addend_slot {SLOTS} slots \(6\) - 1, got 6"),
    ("sample_rows", at("penalty_slot", -2), rf"penalty_slot {SLOTS} slots \(6\) - 1, got -2"),
    ("sample_rows", at("mask_slot", 2**62), rf"mask_slot {SLOTS} masks \(6\) - 1, got 4611686018"),
    ("sample_rows", at("bitmask_rows", 6), rf"bitmask_rows {SLOTS} bitmasks \(6\) - 1, got 6"),
    ("sample_rows", at("addend_lengths", 5), r"addend_lengths must be between 0 and the columns of addend_ids \(4\)"),
    ("sample_rows", at("penalty_lengths", -1), r"penalty_lengths must be between 0 and .* \(4\), got -1"),
    ("sample_rows", at("addend_ids", 40), r"addend_ids must be between 0 and the vocabulary size of logits \(40\) - 1"),
    ("sample_rows", at("penalty_ids", -1), r"penalty_ids must be between 0 and .* \(40\) - 1, got -1. Give ids of"),
    ("logprobs", {"logprob_rows": IDS + 1}, r"logprob_rows must be between 0 and the batch size of logits \(4\) - 1"),
    ("logprobs", {"logprob_rows": 0 * IDS}, "logprob_rows must have each row once, got 0 twice. Leave out what is"),
    (
        "logprobs",
        {"logprob_token_ids": IDS[:, None] - 1},
        "logprob_token_ids must be between 0 and the vocabulary size",
    ),
    (
        "logprobs",
        {"logprob_token_ids": IDS[:1, None]},
        r"logprob_token_ids must have one row for each of logprob_rows",
    ),
    ("logprobs", {"logprobs": -2}, "logprobs must be >= 0, got -2"),
    ("logprobs", {"logprobs": 41}, r"logprobs must be at most the vocabulary size of logits \(40\), got 41"),
    ("logprobs", {"rows": IDS}, "rows must be None where logprobs are wanted, got a tensor. Pass the logits of these"),
    ("row_logprobs", {"count": -1}, "count must be >= 0, got -1. 0 reports the given tokens"),
    ("row_logprobs", {"count": 41}, r"count must be at most the vocabulary size of logits \(40\)"),
    ("row_logprobs", {"is_normalised": False, "entropy": True}, "is_normalised must be True where entropies are"),
    (
        "row_logprobs",
        {"largest": True},
        "is_normalised must be False where largest ones are wanted, got True. Ask for them",
    ),
    ("row_logprobs", {"named": IDS[:1, None]}, r"named must have one row for each of token_ids \(4\), got 1. Repeat"),
    ("row_logprobs", {"named": IDS[:, None] - 1}, "named must be between 0 and the vocabulary size"),
    ("row_logprobs", {"token_ids": IDS + 40}, r"token_ids must be between 0 and .*\(40\) - 1, got 40. Give ids"),
    ("row_logprobs", {"rows": IDS - 1}, r"rows must be between 0 and .*\(4\) - 1, got -1. Pass None for all rows"),
    ("verify_drafts", {"ends": torch.tensor([0, 4])}, "ends must grow from 0 by at least 1 for each request, got 0"),
    ("verify_drafts", {"ends": torch.tensor([2, 5])}, r"ends must end with the number of rows of logits \(4\), got 5"),
    ("verify_drafts", {"parents": None, "rule": 3}, "rule must be 0, 1 or 2, got 3"),
    ("verify_drafts", {"acceptance_purpose": -1}, r"acceptance_purpose must be between 0 and 2\^32 - 1"),
    ("verify_drafts", {"draft_candidates": IDS[:2, None]}, "draft_candidates must come with"),
    ("verify_drafts", {"rule": 1}, "parents must be None for the rule 1, got a tensor"),
    (
        "verify_drafts",
        {"parents": torch.tensor([1, 0, -1, 0])},
        "parents must be -1 .*, got 1 for place 0 of request 0",
    ),
    ("verify_drafts", {"parents": torch.tensor([-1, 1, -1, 0])}, "parents must be .*, got 1 for place 1 of request 0"),
    (
        "verify_drafts",
        {"parents": torch.tensor([-1, 0, -1, -1])},
        "parents must be .*, got -1 for place 1 of request 1",
    ),
    *(("filter_logits", {"form": form}, f"form must be 0, 1, 2 or 3, got {form}. They are") for form in (-1, 4)),
]
BAD += [
    ("segment_winners", {name: bad}, f"{name} must be {rule}, got ")
    for name, rule, values in (
        ("first_id", "a multiple of 256 between 0 and 1048576", (-256, 255, 1048832)),
        ("purpose", r"between 0 and 2\^32 - 1", (-1, 1 << 32)),
    )
    for bad in values
]


@pytest.mark.parametrize(("name", "changes", "message"), BAD)
def test_bad_values(name: str, changes: dict[str, Any], message: str) -> None:
    operator, good = GOOD[name]
    with pytest.raises(ValueError, match=f"^{operator}: {message}"):
        getattr(torch.ops.ascend_sample, operator)(**good | changes)


def test_a_family_of_edits_is_given_as_a_whole_or_not_at_all() -> None:
    for name in (name for names in FAMILIES.values() for name in names):
        with pytest.raises(ValueError, match=f"must be given together with {name}, got None. Give both"):
            torch.ops.ascend_sample.sample_rows(LOGITS, None, **FILTERS, **keys(4), **{name: EDITS[name]})


@pytest.mark.parametrize("typical_p", [0.0, -1.0, -torch.inf])
@pytest.mark.parametrize("vocab_size", [7, 100, 5000])
def test_typical_sampling_keeps_a_value(vocab_size: int, typical_p: float) -> None:
    """That which is nearest, whatever the number is."""
    ranges = torch.zeros(len(NUMBERS), 4)
    ranges[0] = torch.tensor([2.0**-126, typical_p, 2.0**-126, typical_p])
    logits = make_logits(2, vocab_size, torch.float32).repeat_interleave(2, 0)
    for request in (Request(), Request(1.0, 3), Request(1.0, 0, 0.9), Request(1.0, 0, 1.0, 0.1)):
        numbers = {name: value.repeat_interleave(2) for name, value in keys(2).items()}
        found = torch.ops.ascend_sample.sample_rows(logits, None, **lists([request] * 4), **numbers, ranges=ranges)[0]
        assert torch.equal(found[::2], found[1::2])
        assert ((found >= 0) & (found < vocab_size)).all()
