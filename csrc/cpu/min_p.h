// min-p alone: docs/semantics_v2.md. What it keeps stays in vocabulary order.
#pragma once

#include "nucleus.h"
#include "top_k.h"
#include "unfiltered.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The largest value that does not reach a share of the largest value's weight, or -inf.
inline float below_share(float maximum, double share) {
  const auto reaches = [&](float value) {
    return exp_not_positive(double{value} - double{maximum}) >= share;
  };
  int64_t low = ordinal_of(-kInfinity);
  int64_t high = ordinal_of(maximum);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (reaches(value_of_ordinal(static_cast<int32_t>(middle))) ? high : low) = middle;
  }
  return value_of_ordinal(static_cast<int32_t>(low));
}

/// The largest value that min-p does not keep. Probabilities are rounded to float32 before they are
/// compared: where a logit of the row is so close that this may matter, they are computed.
template <typename Type>
float bound_of_min_p(const Row<Type>& row, const Groups& groups, float maximum,
                     const RowArguments& arguments, Workspace& work) {
  if (maximum == kInfinity) {
    return next_below(maximum);  // its entries share the whole mass
  }
  const double share{arguments.min_p};
  const float bound = below_share(maximum, share * (1 - 1e-6));
  const float upper = below_share(maximum, share * (1 + 1e-6));
  if (bound == upper ||
      hit_above(row, groups, bound, work.hits) == hit_above(row, groups, upper, work.hits)) {
    return upper;
  }
  const RowSum row_sum = scan_sum(row, groups, work.chunk_sums);
  const double least = share * double{probability_of(maximum, row_sum)};
  // By bisection: around 0 there are many floats between the bounds.
  int64_t low = ordinal_of(bound);
  int64_t high = int64_t{ordinal_of(upper)} + 1;
  while (high - low > 1) {
    const auto middle = static_cast<int32_t>(low + (high - low) / 2);
    const double probability{probability_of(value_of_ordinal(middle), row_sum)};
    (probability >= least ? high : low) = middle;
  }
  return value_of_ordinal(static_cast<int32_t>(low));
}

/// The id of the hit with this place among all.
inline size_t find_hit(const Hits& hits, size_t place) {
  for (size_t i = 0;; ++i) {
    uint64_t bits = hits.bits[i];
    const auto count = static_cast<size_t>(__builtin_popcountll(bits));
    if (place >= count) {
      place -= count;
      continue;
    }
    for (; place != 0; --place) {
      bits &= bits - 1;
    }
    return hits.pairs[i] * 2 * kLine + static_cast<size_t>(__builtin_ctzll(bits));
  }
}

/// The hits side by side, as a row of their own. Entries of +inf, which share the mass, become 0.
template <typename Type>
Row<Float32> gather_hits(const Row<Type>& row, size_t count, Scratch& scratch, Workspace& work) {
  auto* values = reinterpret_cast<float*>(scratch.reserve(Scratch::kCopy, count * sizeof(float)));
  size_t gathered = 0;
  for (size_t i = 0; i < work.hits.count; ++i) {
    const auto* data = row.line(2 * work.hits.pairs[i]);
    for (uint64_t bits = work.hits.bits[i]; bits != 0; bits &= bits - 1) {
      const float value = Type::value_of(data[__builtin_ctzll(bits)]);
      values[gathered++] = value == kInfinity ? 0.0F : value;
    }
  }
  return {values, count, work.last_chunk_of_copy};
}

/// min-p below 1, and nothing else.
template <typename Type>
size_t sample_min_p(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch,
                    Workspace& work) {
  const Groups groups = groups_for(1, row.vocab_size(), work);
  const float maximum = scan_maxima(row, groups);
  if (maximum == -kInfinity) {
    if (arguments.kept != nullptr) {
      fill(arguments.kept, row.vocab_size(), -kInfinity);
    }
    return 0;
  }
  const float bound = bound_of_min_p(row, groups, maximum, arguments, work);
  const size_t count = hit_above(row, groups, bound, work.hits);
  if (arguments.kept != nullptr) {
    write_kept(row, bound, 0, arguments.kept);
  }
  if (!arguments.is_drawn()) {
    return find_equal(row, maximum, 0);
  }
  // q belongs to the place among the kept.
  const Row<Float32> kept = gather_hits(row, count, scratch, work);
  const float* q = contiguous(arguments.noise, count, scratch);
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
