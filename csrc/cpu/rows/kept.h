// What is kept of a row, and what is written of it: its kept logits, and -inf for the others.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "cpu/rows/hits.h"
#include "cpu/rows/row.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What filters keep of a row: the values from `value` to `most`, and of those equal to `value` the
/// ones up to `last_id`.
struct Kept {
  float most = kInfinity;
  float value = -kInfinity;
  size_t last_id = std::numeric_limits<size_t>::max();

  bool operator==(const Kept&) const = default;

  bool has(float logit, size_t id) const {
    return logit <= most && (logit > value || (logit == value && id <= last_id));
  }
  /// Which values it has, for some ids at least.
  Mask has(const Floats& logits) const {
    return is_at_least(logits, splat(value)) & is_at_least(splat(most), logits);
  }

  /// What it has from a value on.
  Kept from(float least) const { return least > value ? Kept{most, least} : *this; }
};

/// What is kept where that is known within bounds: all that `inner` has, nothing but what `outer`
/// has.
struct KeptBounds {
  Kept inner;
  Kept outer = inner;

  bool are_equal() const { return inner == outer; }
};

/// What is above a value, and by id the first `kept` of its `count` equals, or all if they are
/// fewer. The row's groups were scanned, or have one line each.
template <typename Type>
Kept keep_equals(const Row<Type>& row, float value, size_t kept, size_t count,
                 const Groups& groups = {1, nullptr}) {
  return kept >= count ? Kept{.value = value}
                       : Kept{.value = value, .last_id = find_equal(row, value, kept - 1, groups)};
}

/// Writes one value everywhere.
inline void fill(std::span<float> values, float value) {
  for (float& each : values) {
    each = value;
  }
}

/// Writes the first candidates, and -inf for everything else; nothing where nothing is wanted.
inline void write_candidates(const Candidates& candidates, size_t count, std::span<float> kept) {
  fill(kept, -kInfinity);
  for (size_t rank = 0; !kept.empty() && rank < count; ++rank) {
    kept[candidates.ids[rank]] = candidates.values[rank];
  }
}

/// Writes a segment of the row, with -inf for what is not kept.
template <typename Type>
ASCEND_SAMPLE_INLINE void write_kept_segment(const Row<Type>& row, size_t segment, const Kept& kept,
                                             float* out) {
  const size_t start = segment * kSegment;
  // Whether equals are kept is the same in a whole segment, but for one.
  const bool has_last = kept.last_id >= start && kept.last_id < start + kSegment;
  const bool keeps_equals = kept.last_id >= start;
  const Kept of_segment{kept.most, keeps_equals ? kept.value : next_above(kept.value)};
  const auto select_kept = [&](const Floats& logits) {
    return select(of_segment.has(logits), logits, splat(-kInfinity));
  };
  for (size_t i = 0; i < kSegmentLines; ++i) {
    const Line line = Type::load(row.line(segment * kSegmentLines + i));
    store(out + i * kLine, select_kept(line.first));
    store(out + i * kLine + kLanes, select_kept(line.second));
  }
  for (size_t i = has_last ? kept.last_id - start + 1 : kSegment; i < kSegment; ++i) {
    out[i] = out[i] == kept.value ? -kInfinity : out[i];
  }
}

/// Writes the row, with -inf for what is not kept.
template <typename Type>
void write_kept(const Row<Type>& row, const Kept& kept, float* out) {
  const size_t whole = row.vocab_size() / kSegment;
  for (size_t segment = 0; segment < whole; ++segment) {
    write_kept_segment(row, segment, kept, out + segment * kSegment);
  }
  if (const size_t rest = row.vocab_size() % kSegment; rest != 0) {
    float last[kSegment];
    write_kept_segment(row, whole, kept, last);
    std::copy_n(last, rest, out + whole * kSegment);
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
