// The filters of a row that keep a range of its values, and how they weigh it.
#pragma once

#include <algorithm>
#include <optional>

#include "cpu/calls.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The filters of one row that are on, and its temperature.
class RangeFilters {
 public:
  /// None where all are off, or nothing is drawn.
  static std::optional<RangeFilters> of(const std::optional<Ranges>& ranges, int64_t index,
                                        float temperature) {
    if (!ranges.has_value() || !(temperature > 0.0F)) {
      return std::nullopt;
    }
    const RangeFilters filters(*ranges, index, temperature);
    bool is_any_on = filters.is_typical();
    for (size_t filter = kTypicalP + 1; filter < kRangeFilters; ++filter) {
      is_any_on |= filters[static_cast<RangeFilter>(filter)] > 0.0;
    }
    return is_any_on ? std::optional(filters) : std::nullopt;
  }

  double operator[](RangeFilter filter) const {
    return double{ranges_.numbers.row(filter)[index_]};
  }
  bool is_on(RangeFilter filter) const { return (*this)[filter] > 0.0; }
  bool is_typical() const { return (*this)[kTypicalP] < 1.0; }
  /// How much typical sampling keeps: always more than nothing.
  double typical_p() const { return std::max((*this)[kTypicalP], 0x1p-126); }
  float temperature() const { return temperature_; }

  /// Whether any needs more than the largest value and the deviation.
  bool weighs() const {
    return is_typical() || is_on(kEpsilonCutoff) || is_on(kEtaCutoff) || is_on(kTopA) ||
           is_on(kExclusionThreshold);
  }

 private:
  RangeFilters(const Ranges& ranges, int64_t index, float temperature)
      : ranges_(ranges), index_(index), temperature_(temperature) {}

  Ranges ranges_;
  int64_t index_;
  float temperature_;
};

/// What is told of a row by its weights exp(y), where y = (value - maximum) / temperature.
struct RowWeights {
  double sum = 0;
  double mean = 0;  // of y, each as often as it weighs: the entropy is log(sum) - mean
};

/// Calls `visit` with the y of each lane of a line, relative to a value that none exceeds. NaN
/// stays that.
template <typename Visit>
ASCEND_SAMPLE_INLINE void divided(const Line& logits, float relative_to, float temperature,
                                  Visit visit) {
  const Floats reference = splat(relative_to);
  if (temperature == 1.0F) {
    visit(logits.first - reference, logits.second - reference);
  } else {
    const Floats divisor = splat(temperature);
    visit((logits.first - reference) / divisor, (logits.second - reference) / divisor);
  }
}

/// exp(y), and exactly 0 where that is nothing, for NaN too.
ASCEND_SAMPLE_INLINE Floats weight_of(const Floats& y) {
  return select(is_greater(y, splat(kLeastLogWeight)), exp_not_positive(y), Floats{});
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
