"""The faults planted in logprobs: csrc/cpu/filters/best_tokens.h, its operator, and the routes of devices."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

BEST_TOKENS = "csrc/cpu/filters/best_tokens.h"
KERNEL = "csrc/cpu/kernel.h"
OPERATOR = "csrc/cpu/torch/row_logprobs_kernel.cpp"
LOGPROBS = "ascend_sample/sampling/logprobs.py"
BEST_ENTRIES = "ascend_sample/sampling/best_tokens.py"

IN_ROW_LOGPROBS = ("tests/sampling/test_row_logprobs.py",)
IN_LOGPROBS = ("tests/sampling/test_logprobs.py",)
IN_BEST_TOKENS = ("tests/sampling/test_best_tokens.py",)

MUTANTS_LOGPROBS = tuple(
    Mutant(f"logprobs: {name}", file, old, new, tests)
    for name, file, old, new, tests in (
        ("a rank counts from 0", BEST_TOKENS, "return rank;", "return rank - 1;", IN_ROW_LOGPROBS),
        (
            "a rank leaves out the equals that the best list does not hold",
            BEST_TOKENS,
            "return hit_above(row, groups, below, work.hits);",
            "return best.empty() ? hit_above(row, groups, below, work.hits) : best.size();",
            IN_ROW_LOGPROBS,
        ),
        (
            "a rank leaves out what is equal once it is reported",
            BEST_TOKENS,
            "return numbers.of(other) >= number;",
            "return other >= value;",
            IN_ROW_LOGPROBS,
        ),
        (
            "-inf has a rank among finite numbers",
            BEST_TOKENS,
            "if (number == -kInfinity) {",
            "if (false) {",
            IN_ROW_LOGPROBS,
        ),
        (
            "all rows are those at the first places",
            KERNEL,
            """             rank_divided(row, call, index, scratch, work);
           });
}""",
            """             rank_divided(row, call, first_row, scratch, work);
           });
}""",
            IN_ROW_LOGPROBS,
        ),
        ("places are not looked at", OPERATOR, "call.rows = numbers_of(places);", "", IN_ROW_LOGPROBS),
        (
            "sums are those of a temperature",
            OPERATOR,
            ".temperature = 1.0F,",
            ".temperature = 1.0001F,",
            IN_ROW_LOGPROBS,
        ),
        (
            "on a device equals come in the order of their segments' maxima",
            BEST_ENTRIES,
            "_first(maxima, count)[1].sort(dim=1).values",
            "_first(maxima, count)[1]",
            IN_BEST_TOKENS,
        ),
        (
            "on a device the sum is that of the row before",
            LOGPROBS,
            "segments.logsumexp(2).logsumexp(1, keepdim=True)",
            "segments.logsumexp(2).logsumexp(1, keepdim=True).roll(1, 0)",
            IN_LOGPROBS,
        ),
        (
            "on a device a rank is one too small",
            LOGPROBS,
            "(numbers >= values[:, :1])",
            "(numbers > values[:, :1])",
            IN_LOGPROBS,
        ),
        (
            "on a device what is beside +inf has a finite number",
            LOGPROBS,
            "LEAST_SCALED if is_scaled else -LARGEST / 2",
            "-torch.inf",
            IN_LOGPROBS,
        ),
    )
)
