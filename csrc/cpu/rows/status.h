// What a row holds that is no ordinary logit, noticed by the pass that reads it anyway.
#pragma once

#include "cpu/calls.h"
#include "cpu/rows/row.h"
#include "cpu/vectors/shorts.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline RowStatus status_of(bool has_nan, float maximum) {
  return has_nan                 ? RowStatus::kNanSeen
         : maximum == kInfinity  ? RowStatus::kInfinitySeen
         : maximum == -kInfinity ? RowStatus::kAllMasked
                                 : RowStatus::kOk;
}

/// Watches a row as float32.
class FloatStatus {
 public:
  ASCEND_SAMPLE_INLINE void add_line(const Line& line) {
    nans_ = nans_ | is_unordered(line.first, line.second);
  }
  /// The maxima of some lines.
  ASCEND_SAMPLE_INLINE void add_extremes(const Line& maxima) {
    largest_ = larger(maxima.first, larger(maxima.second, largest_));
  }

  float maximum() const { return largest_lane(largest_); }
  RowStatus status() const { return status_of(bits_of(nans_) != 0, maximum()); }

 private:
  Floats largest_ = splat(-kInfinity);
  Mask nans_{};
};

/// Watches a row of a 16-bit type, by its bits.
template <typename Type>
class HalfStatus {
 public:
  ASCEND_SAMPLE_INLINE void add_line(const Shorts& line) {
    largest_unsigned_ = larger_unsigned(line, largest_unsigned_);
  }
  /// Some lines' largest as signed, and smallest as unsigned integers.
  ASCEND_SAMPLE_INLINE void add_extremes(const Shorts& largest, const Shorts& smallest) {
    largest_ = larger(largest, largest_);
    smallest_ = smaller_unsigned(smallest, smallest_);
  }

  RowStatus status() const {
    int16_t largest[kLine];
    uint16_t smallest[kLine];
    uint16_t largest_unsigned[kLine];
    store(largest, largest_);
    store(smallest, smallest_);
    store(largest_unsigned, largest_unsigned_);
    bool has_nan = false;
    bool has_infinity = false;
    bool is_masked = true;
    for (size_t i = 0; i < kLine; ++i) {
      has_nan |= largest[i] > int16_t{Type::kInfinity};
      has_nan |= largest_unsigned[i] > Type::kMinusInfinity;
      has_infinity |= largest[i] == int16_t{Type::kInfinity};
      is_masked &= smallest[i] == Type::kMinusInfinity;
    }
    return status_of(has_nan, has_infinity ? kInfinity : is_masked ? -kInfinity : 0.0F);
  }

 private:
  // The least signed, the largest and the least unsigned number.
  Shorts largest_ = map([](ShortPart x) { return ShortPart(UshortPart(~x) << 15); }, Shorts{});
  Shorts smallest_ = map([](ShortPart x) { return ShortPart(~x); }, Shorts{});
  Shorts largest_unsigned_{};
};

template <typename Type>
using StatusOf = std::conditional_t<kHas16Bits<Type>, HalfStatus<Type>, FloatStatus>;

/// Watches a whole row, in a pass of its own.
template <typename Type>
FloatStatus scan_status(const Row<Type>& row) {
  FloatStatus seen;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    for (size_t line = 0; line < kChunkLines; ++line) {
      const Line logits = Type::load_unordered(chunk + line * kLine);
      seen.add_line(logits);
      seen.add_extremes(logits);
    }
  }
  return seen;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
