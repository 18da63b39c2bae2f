// From what was kept of a row to the distribution that it is drawn from.
#pragma once

#include <limits>

#include "cpu/rows/kept.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// exp(value - maximum) for what is above -inf, exactly 0 for the rest; 1 for +inf among others.
/// What is 87 below the maximum or more has exp(-87), 1.6e-38: there instruction sets differ.
ASCEND_SAMPLE_INLINE Floats exp_of_kept(const Floats& values, float maximum) {
  if (maximum == kInfinity) {  // its entries share the mass
    return select(is_equal(values, splat(kInfinity)), splat(1.0F), Floats{});
  }
  const Mask is_kept = is_greater(values, splat(-kInfinity));
  const Floats differences = larger(values - splat(maximum), splat(-87.0F));
  return select(is_kept, exp_not_positive(differences), Floats{});
}

/// The softmax, in place, of a row's kept logits with this maximum, -inf elsewhere. All NaN where
/// nothing was kept.
inline void normalize_kept(std::span<float> kept, float maximum) {
  const size_t count = kept.size();
  if (maximum == -kInfinity) {
    fill(kept, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const size_t whole = count / kLanes * kLanes;
  float last[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    last[i] = whole + i < count ? kept[whole + i] : -kInfinity;
  }
  Sum sum;
  const auto weigh_at = [&](float* place) {
    const Floats weights = exp_of_kept(load_floats(place), maximum);
    store(place, weights);
    sum.add(weights);
  };
  for (size_t i = 0; i < whole; i += kLanes) {
    weigh_at(&kept[i]);
  }
  weigh_at(last);
  const Floats total = splat(static_cast<float>(sum.total()));
  for (size_t i = 0; i < whole; i += kLanes) {
    store(&kept[i], load_floats(&kept[i]) / total);
  }
  store(last, load_floats(last) / total);
  for (size_t i = whole; i < count; ++i) {
    kept[i] = last[i - whole];
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
