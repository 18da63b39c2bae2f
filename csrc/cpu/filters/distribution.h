// The distribution that a row of the sampling layer is drawn from, and how it is made of what was
// kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "cpu/rows/kept.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Probabilities: of all ids in order, or of a few ids, which have all of the mass.
class TargetRow {
 public:
  static TargetRow of_all(std::span<const float> probabilities) { return {{}, probabilities}; }
  static TargetRow of_few(std::span<const uint32_t> ids, std::span<const float> probabilities) {
    return {ids, probabilities};
  }

  /// That of an id of the vocabulary.
  float at(size_t id) const {
    if (ids_.data() == nullptr) {
      return probabilities_[id];
    }
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] == id) {
        return probabilities_[i];
      }
    }
    return 0.0F;
  }

  /// Calls `visit` with each id that may be drawn and its probability.
  template <typename Visit>
  ASCEND_SAMPLE_INLINE void for_each(Visit visit) const {
    for (size_t i = 0; i < probabilities_.size(); ++i) {
      if (probabilities_[i] > 0.0F) {
        visit(ids_.data() == nullptr ? i : size_t{ids_[i]}, probabilities_[i]);
      }
    }
  }

 private:
  TargetRow(std::span<const uint32_t> ids, std::span<const float> probabilities)
      : ids_(ids), probabilities_(probabilities) {}

  std::span<const uint32_t> ids_;
  std::span<const float> probabilities_;
};

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
