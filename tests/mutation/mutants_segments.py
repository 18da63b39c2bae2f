"""The faults planted in the draw by segment and place: csrc/cpu/draws/segments.h and what finds ends of rows."""

from __future__ import annotations

from tests.mutation.mutants import Mutant
from tests.mutation.mutants_cpu import IN_FUZZ

SEGMENTS = "csrc/cpu/draws/segments.h"
LARGE_K = "csrc/cpu/filters/large_k.h"
BRANCHES = "csrc/cpu/branches.h"

MUTANTS_SEGMENTS = tuple(
    Mutant(f"segments: {name}", file, old, new, IN_FUZZ)
    for name, file, old, new in (
        (
            "places read the noise of segments",
            SEGMENTS,
            "fill_exponential(key_, 0, kSegment, noise)",
            "fill_exponential(key_, kSegment, kSegment, noise)",
        ),
        (
            "a last short one is forgotten",
            SEGMENTS,
            "(row_.vocab_size() + kSegment - 1) / kSegment",
            "(row_.vocab_size() + 1) / kSegment",
        ),
        ("bounds are too low", SEGMENTS, "1.0 / kLeastRatio * (1 + 1e-5)", "0.5"),
        ("the bound is that of half a segment", SEGMENTS, "kSegment * kBeyond", "kSegment / 64 * kBeyond"),
        ("equals behind the last id count", SEGMENTS, "values[i] == cut.value ? -kInfinity", "false ? -kInfinity"),
        ("two ends of a nucleus always agree", SEGMENTS, "least == most || highest_other < best_score", "true"),
        (
            "a place that only the larger nucleus has is taken",
            SEGMENTS,
            "return is_kept ? std::optional<size_t>(id) : std::nullopt;",
            "return is_kept || true ? std::optional<size_t>(id) : std::nullopt;",
        ),
        ("the temperature is left out", SEGMENTS, "temperature_ == 1.0F ? difference", "true ? difference"),
        ("the noise multiplies", SEGMENTS, "weights[i] / noise[i]", "weights[i] * noise[i]"),
        ("a loser's larger nucleus is forgotten", SEGMENTS, "is_better ? best_most : score_with_most", "0.0"),
        (
            "one too many of top-k",
            LARGE_K,
            "const size_t missing = k - end.count_above;",
            "const size_t missing = k + 1 - end.count_above;",
        ),
        ("ties of top-k are always kept", LARGE_K, "keeps_ties || missing > end.count_equal", "true"),
        (
            "min-p's end is not kept itself",
            BRANCHES,
            "next_above(last_before(-kInfinity, maximum, stays))",
            "next_above(next_above(last_before(-kInfinity, maximum, stays)))",
        ),
        (
            "min-p before the temperature",
            BRANCHES,
            "temperature == 1.0F ? maximum : divide(&value",
            "true ? maximum : divide(&value",
        ),
    )
)
