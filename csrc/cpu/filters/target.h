// The distribution that a row of the sampling layer is drawn from, where it is wanted itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
