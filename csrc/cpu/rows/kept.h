// What is written of a row: its kept logits, and something else for the others.
#pragma once

#include <span>

#include "cpu/rows/row.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

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

/// Writes the row with -inf for everything but what is above `bound` and, by id, the first
/// `equals` of those equal to it.
template <typename Type>
void write_kept(const Row<Type>& row, float bound, size_t equals, float* kept) {
  const Floats bounds = splat(bound);
  const Floats lows = splat(-kInfinity);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = kept + line * kLine;
    store(out, select(is_greater(logits.first, bounds), logits.first, lows));
    store(out + kLanes, select(is_greater(logits.second, bounds), logits.second, lows));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    kept[id] = row.value(id) > bound ? row.value(id) : -kInfinity;
  }
  const typename Type::Equal equal(bound);
  for (size_t line = 0; equals != 0; ++line) {
    uint32_t bits = equal.bits(row.line(line));
    for (; bits != 0 && equals != 0; bits &= bits - 1, --equals) {
      const size_t id = line * kLine + static_cast<size_t>(__builtin_ctz(bits));
      kept[id] = row.value(id);
    }
  }
}

/// Copies the row, with -inf for NaN.
template <typename Type>
void copy_ordered(const Row<Type>& row, float* out) {
  const Floats lows = splat(-kInfinity);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    store(out + line * kLine, larger(logits.first, lows));
    store(out + line * kLine + kLanes, larger(logits.second, lows));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    out[id] = row.value(id) > -kInfinity ? row.value(id) : -kInfinity;
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
