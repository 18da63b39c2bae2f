// The best tokens of a row with their log-probabilities: what a step of beam search looks at.
#pragma once

#include <cmath>

#include "cpu/filters/top_k.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// How many logits of a row are +inf: they share the mass.
template <typename Type>
size_t count_infinities(const Row<Type>& row) {
  size_t count = 0;
  for (size_t id = 0; id < row.vocab_size(); ++id) {
    count += row.value(id) == kInfinity ? 1 : 0;
  }
  return count;
}

/// The first `count` of the total order. What has no weight follows by ascending id, with -inf.
template <typename Type>
void rank_row(const Row<Type>& row, size_t count, float* log_probs, int64_t* token_ids,
              Workspace& work) {
  const Groups groups = groups_for(count, row.vocab_size(), work);
  const RowSum row_sum = scan_sum(row, groups, work.chunk_sums);
  size_t rank = 0;
  if (row_sum.maximum > -kInfinity) {
    const bool is_shared = row_sum.maximum == kInfinity;
    const double log_sum =
        std::log(is_shared ? static_cast<double>(count_infinities(row)) : row_sum.sum);
    const Candidates best = first_of_total_order(row, groups, count, work);
    for (; rank < best.count; ++rank) {
      const float value = best.values[rank];
      const double difference = value == row_sum.maximum ? 0.0 : double{value} - row_sum.maximum;
      log_probs[rank] = static_cast<float>(difference - log_sum);
      token_ids[rank] = best.ids[rank];
    }
  }
  for (size_t id = 0; rank < count; ++id) {
    if (row.value(id) == -kInfinity) {
      log_probs[rank] = -kInfinity;
      token_ids[rank++] = static_cast<int64_t>(id);
    }
  }
}

/// Ranks the row divided by the temperature.
template <typename Type>
void rank_row(const Row<Type>& row, const RankingCall& call, int64_t index, Scratch& scratch,
              Workspace& work) {
  const auto count = static_cast<size_t>(call.count);
  float* log_probs = call.log_probs + index * call.count;
  int64_t* token_ids = call.token_ids + index * call.count;
  if (call.temperature != 1.0F) {
    const float maximum = scan_status(row).maximum();
    if (maximum != kInfinity && maximum != -kInfinity) {  // an infinite one decides alone
      return rank_row(divide(row, maximum, call.temperature, scratch, work), count, log_probs,
                      token_ids, work);
    }
  }
  rank_row(row, count, log_probs, token_ids, work);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
