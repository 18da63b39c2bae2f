// The distribution that a row of the sampling layer is drawn from, where it is wanted itself.
#pragma once

#include <optional>
#include <span>

#include "cpu/branches.h"
#include "cpu/filters/distribution.h"

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

/// That of a row whose edits are done, whose draw these arguments are for; id 0 alone where nothing
/// is above -inf. It lies in the thread's memory until that is used again.
template <typename Type>
TargetRow target_of(const Row<Type>& row, RowArguments arguments, Scratch& scratch,
                    Workspace& work) {
  auto* const memory = reinterpret_cast<float*>(
      scratch.reserve(Scratch::kTarget, row.lines() * kLine * sizeof(float)));
  const auto few = [&](size_t count) {
    return TargetRow::of_few({work.sorted_ids, count}, {memory, count});
  };
  if (!(arguments.temperature > 0.0F) || arguments.keeps_one() || arguments.min_p >= 1.0F) {
    arguments.k = 1;
    arguments.keeps_ties = false;
  }
  const bool is_sorted = !kHasFewValues<Type> || arguments.k <= int32_t{kFewSorted};
  if (arguments.uses_k(row.vocab_size()) && is_sorted) {
    KeptRanks kept;
    arguments.ranks = &kept;
    arguments.temperature = arguments.temperature > 0.0F ? arguments.temperature : 1.0F;
    sample_top_k(row, static_cast<size_t>(arguments.k), arguments.uses_p(), arguments, scratch,
                 work);
    if (kept.count == 0) {
      work.sorted_ids[0] = 0;
      memory[0] = 1.0F;
      return few(1);
    }
    const double total = sum(work.exponentials, kept.count);
    for (size_t rank = 0; rank < kept.count; ++rank) {
      memory[rank] = static_cast<float>(work.exponentials[rank] / total);
    }
    return few(kept.count);
  }
  const FloatStatus seen = scan_status(row);
  arguments.status.front() = seen.status();
  arguments.status = {};
  const float maximum = seen.maximum();
  const std::span<float> probabilities(memory, row.vocab_size());
  if (maximum == -kInfinity) {
    fill(probabilities, 0.0F);
    memory[0] = 1.0F;
    return TargetRow::of_all(probabilities);
  }
  arguments.kept = probabilities;
  const float temperature = std::exchange(arguments.temperature, 1.0F);
  const auto fill_from = [&](const auto& undivided) {
    if (temperature == 1.0F || maximum == kInfinity) {
      sample_row(undivided, arguments, scratch, work);
      normalize_kept(probabilities, maximum);
    } else {
      sample_row(divide(undivided, maximum, temperature, scratch, work), arguments, scratch, work);
      normalize_kept(probabilities, 0.0F);
    }
  };
  if (arguments.k >= 1 && static_cast<size_t>(arguments.k) < row.vocab_size()) {
    const auto k = static_cast<size_t>(std::exchange(arguments.k, 0));
    const TopKEnd end = find_top_k_end(row, k, arguments.keeps_ties, maximum, work);
    fill_from(keep_top_k(row, end, scratch, work, Scratch::kRanked));  // min-p copies what it keeps
  } else {
    fill_from(row);
  }
  return TargetRow::of_all(probabilities);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
