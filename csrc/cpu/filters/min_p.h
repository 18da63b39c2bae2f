// min-p alone: docs/semantics_v2.md. What it keeps stays in vocabulary order.
#pragma once

#include <optional>

#include "cpu/draws/race.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/kept.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The largest value that min-p does not keep, between two bounds of it: for logits so close to it
/// that the rounding of probabilities to float32 matters.
template <typename Type>
float exact_bound(const Row<Type>& row, const Groups& groups, float maximum, float lower,
                  float upper, float min_p, Workspace& work) {
  const RowSum row_sum = scan_sum(row, groups, work.chunk_sums);
  const double least = double{min_p} * double{probability_of(maximum, row_sum)};
  return last_before(lower, next_above(upper),
                     [&](float value) { return double{probability_of(value, row_sum)} >= least; });
}

/// The id of the hit with this place among all.
inline size_t find_hit(const Hits& hits, size_t place) {
  const auto [pair, bit] = find_bit(place, [&](size_t i) { return hits.bits[i]; });
  return hits.pairs[pair] * 2 * kLine + bit;
}

/// What min-p keeps: its places are the hits, its values stand side by side.
struct KeptByMinP {
  float bound;  // all that is above it
  float* values;
  size_t count;
};

template <typename Type>
KeptByMinP keep_above(const Row<Type>& row, const Groups& groups, float bound, Workspace& work) {
  const size_t count = hit_above(row, groups, bound, work.hits);
  float* const values = work.min_p_values.reserve(count + kChunk);
  copy_hit_values(row, work.hits, values);
  return {bound, values, count};
}

template <typename Type>
KeptByMinP keep_by_min_p(const Row<Type>& row, const Groups& groups, float maximum, float min_p,
                         Workspace& work) {
  if (maximum == kInfinity) {  // its entries share the whole mass
    const KeptByMinP kept = keep_above(row, groups, next_below(maximum), work);
    fill({kept.values, kept.count}, 0.0F);
    return kept;
  }
  // Probabilities are rounded to float32 before they are compared: up to 1e-6 are not sure.
  const float lower = below_share(maximum, double{min_p} * (1 - kUnsure));
  const float upper = below_share(maximum, double{min_p} * (1 + kUnsure));
  const KeptByMinP kept = keep_above(row, groups, lower, work);
  const size_t padded = (kept.count + kLine - 1) / kLine * kLine;
  if (count_at_least(kept.values, padded, next_above(upper)) == kept.count) {
    return kept;
  }
  return keep_above(row, groups, exact_bound(row, groups, maximum, lower, upper, min_p, work),
                    work);
}

/// min-p below 1, and nothing else.
template <typename Type>
size_t sample_min_p(const Row<Type>& row, const RowArguments& arguments, const Report& report,
                    Workspace& work) {
  const Groups groups = groups_for(1, row.vocab_size(), work);
  const float maximum = scan_maxima(row, groups);
  if (maximum == -kInfinity) {
    fill(report.kept, -kInfinity);
    return 0;
  }
  const KeptByMinP found = keep_by_min_p(row, groups, maximum, arguments.min_p, work);
  if (report.wants_kept()) {
    write_kept(row, {.value = next_above(found.bound)}, report.kept.data());
  }
  if (!arguments.is_drawn()) {
    return find_equal(row, maximum, 0);
  }
  // q belongs to the place among the kept.
  const Row<Float32> kept(found.values, found.count);
  const float* q = contiguous(arguments.draw.noise(), found.count, work);
  float largest = 0;
  const std::optional<size_t> place = draw_unfiltered(kept, q, arguments.eps, work, largest);
  if (place.has_value()) {
    return find_hit(work.hits, *place);
  }
  // Scores may overflow, so the weights are those of the whole row.
  const double total = sum_exactly(row, maximum, work);
  return find_hit(work.hits,
                  compare_all_scores(kept, Noise{q, 1}, arguments.eps, largest, total, work));
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
