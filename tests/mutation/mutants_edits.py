"""The faults planted in what is done to rows before they are sampled: csrc/cpu/rows/edits.h and what calls it."""

from __future__ import annotations

from tests.mutation.mutants import Mutant
from tests.mutation.mutants_cpu import IN_FUZZ

EDITS = "csrc/cpu/rows/edits.h"
BRANCHES = "csrc/cpu/branches.h"
OPERATOR = "csrc/cpu/torch/sample_rows_kernel.cpp"
IN_EDITS = ("tests/sampling/test_native_rows_edits.py",)

_ADD = """  if (addends.has_value()) {
    edited.add(*edits.addends, *addends);
  }
"""
_PENALIZE = """  if (penalties.has_value()) {
    edited.penalize(*edits.penalties, *penalties, index);
  }
"""

MUTANTS_EDITS = (
    *(
        Mutant(f"edits: {name}", file, old, new, IN_FUZZ)
        for name, file, old, new in (
            (
                "each is made twice",
                EDITS,
                "edited[i] = edited_one(i, logits_[ids[i]]);",
                "edited[i] = edited_one(i, edited_one(i, logits_[ids[i]]));",
            ),
            (
                "what is written of a repeated id is read again",
                EDITS,
                "edited[i] = edited_one(i, logits_[ids[i]]);",
                "edited[i] = logits_[ids[i]] = edited_one(i, logits_[ids[i]]);",
            ),
            ("penalties come before addends", EDITS, f"{_ADD}{_PENALIZE}", f"{_PENALIZE}{_ADD}"),
            ("an id of the prompt counts as one of the output", EDITS, "count > 0;", "occurrences > 0;"),
            (
                "an id of the prompt alone is not penalized",
                EDITS,
                "if (is_in_prompt || is_in_output)",
                "if (is_in_output)",
            ),
            ("-inf forbids by a sum", EDITS, "addends[i] == -kInfinity ? -kInfinity : logit", "logit"),
            (
                "a word of the bitmask is that of the line before",
                EDITS,
                "(second_[line])",
                "(second_[line - (line != 0)])",
            ),
            (
                "a bit is that of the id before",
                EDITS,
                "return first & second;",
                "return first & (second << 1 | (second & 1U));",
            ),
            ("one of two masks suffices", EDITS, "return first & second;", "return first == ~0U ? second : first;"),
            (
                "the words of a mask are of another line in a gathered row",
                EDITS,
                "(line * kLine + place)",
                "(line * kLine + place + 1)",
            ),
            (
                "a row of which nothing is allowed is ordinary",
                BRANCHES,
                "arguments.status.front() = RowStatus::kAllMasked;",
                "arguments.status.front() = RowStatus::kOk;",
            ),
            (
                "top-p is forgotten where little is allowed",
                BRANCHES,
                "place = sample_top_k(rest, static_cast<size_t>(arguments.k), arguments.uses_p(),",
                "place = sample_top_k(rest, static_cast<size_t>(arguments.k), false,",
            ),
        )
    ),
    *(
        Mutant(f"edits: {name}", file, old, new, IN_EDITS)
        for name, file, old, new in (
            (
                "a product is not rounded",
                EDITS,
                "logit -= frequency * static_cast<float>(count);",
                "logit = __builtin_fmaf(-frequency, static_cast<float>(count), logit);",
            ),
            (
                "ids are not looked at",
                OPERATOR,
                "check_values(kOperator, name, lists.of(slot),",
                "check_values(kOperator, name, {},",
            ),
            ("presence is frequency", OPERATOR, ".presence = penalties.row(1)", ".presence = penalties.row(2)"),
            (
                "a table's rows are as long as its lists",
                OPERATOR,
                "return {held.template const_data_ptr<Element>(), held.stride(0)};",
                "return {held.template const_data_ptr<Element>(), held.size(1)};",
            ),
        )
    ),
)
