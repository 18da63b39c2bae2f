// Where what is kept of a row ends, and how it is weighed.
#pragma once

#include <cstddef>

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is kept of a row: all above `value`, and up to `last_id` what is equal to it.
struct Cut {
  float value;
  size_t last_id;

  bool operator==(const Cut&) const = default;
};

inline constexpr Cut kNoCut{-kInfinity, 0};

/// Values between two bounds that are of the range themselves.
struct ValueRange {
  float least = -kInfinity;
  float most = kInfinity;
};

/// What a row's logits become before they are weighed: exp((logit - maximum) / temperature).
struct Scale {
  float maximum;
  float temperature;

  /// The exponent, rounded as that of a row that is divided.
  double of(float logit) const {
    return temperature == 1.0F ? double{logit} - double{maximum}
                               : double{(logit - maximum) / temperature};
  }
  /// The logit that has an exponent.
  double value_at(double exponent) const {
    return double{maximum} + double{temperature} * exponent;
  }
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
