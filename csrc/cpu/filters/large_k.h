// Top-k of the sampling layer where what it keeps is not ranked: k above kMaxTopK, or with ties.
#pragma once

#include "cpu/filters/quantile.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/kept.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is above the k-th logit, and how many of those equal to it are kept.
struct TopKEnd {
  float value;
  size_t equals;
};

/// Finds the end of the first k, k being less than the row has; all logits that are equal to the
/// k-th are within it where ties are kept.
template <typename Type>
TopKEnd find_top_k_end(const Row<Type>& row, size_t k, bool keeps_ties, float maximum,
                       Workspace& work) {
  QuantileSearch<Type> search(row, maximum, work.values, work);
  const KnownPrefix nothing{maximum, 0, 0.0};
  const Quantile end =
      search.template find<Weight::kOne>(kLowest, nothing, static_cast<double>(k - 1));
  const size_t missing = k - end.count_above;
  return {end.value, keeps_ties || missing > end.count_equal ? end.count_equal : missing};
}

template <typename Type>
Cut cut_of(const Row<Type>& row, const TopKEnd& end) {
  return end.equals == 0 ? Cut{next_above(end.value), row.vocab_size() - 1}
                         : Cut{end.value, find_equal(row, end.value, end.equals - 1)};
}

/// A copy of the row with -inf for what is not kept.
template <typename Type>
Row<Float32> keep_top_k(const Row<Type>& row, const TopKEnd& end, Scratch& scratch, Workspace& work,
                        Scratch::Slot slot = Scratch::kCopy) {
  auto* values =
      reinterpret_cast<float*>(scratch.reserve(slot, row.lines() * kLine * sizeof(float)));
  write_kept(row, end.value, end.equals, values);
  return {values, row.vocab_size(), work.last_chunk_of_copy};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
