// Top-k of the sampling layer where what it keeps is not ranked: k above kMaxTopK, or with ties.
#pragma once

#include "cpu/filters/quantile.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/kept.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Finds the first k, k being less than the row has; with them all that is equal to the k-th where
/// ties are kept.
template <typename Type>
Kept find_top_k(const Row<Type>& row, size_t k, bool keeps_ties, float maximum, Workspace& work) {
  QuantileSearch<Type> search(row, maximum, work.values, work);
  const KnownPrefix nothing{maximum, 0, 0.0};
  const Quantile end =
      search.template find<Weight::kOne>(kLowest, nothing, static_cast<double>(k - 1));
  const size_t equals = keeps_ties ? end.count_equal : k - end.count_above;
  return keep_equals(row, end.value, equals, end.count_equal);
}

/// A copy of the row with -inf for what is not kept.
template <typename Type>
Row<Float32> copy_kept(const Row<Type>& row, const Kept& kept, Workspace& work) {
  float* const values = work.top_k_row.reserve(row.padded());
  write_kept(row, kept, values);
  return {values, row.vocab_size()};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
