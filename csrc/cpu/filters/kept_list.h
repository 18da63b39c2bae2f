// What the filters keep of a row, as a list: ids, ascending, and their log-probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "cpu/calls.h"
#include "cpu/draws/draw.h"
#include "cpu/draws/segments.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/row.h"
#include "cpu/rows/temperature.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The logarithm of a probability. It is not -0: which of 0 and -0 is a row's maximum, depends on
/// the instruction set.
inline float log_prob(double difference, double log_total) {
  return static_cast<float>(difference - log_total + 0.0);
}

/// Turns the list's logits, which stand in the place of its log-probabilities, into these. Weights
/// are added by ascending id: so the sum is a function of the row alone.
inline void normalize_list(KeptList& list, const Scale& scale, Workspace& work) {
  float* const values = list.log_probs();
  double total = 0;
  for (size_t start = 0; start < list.count(); start += kChunk) {
    const size_t size = std::min(kChunk, list.count() - start);
    for (size_t i = 0; i < size; ++i) {
      work.exponentials[i] = exp_not_positive(scale.of(values[start + i]));
    }
    total += sum(work.exponentials, size);
  }
  const double log_total = std::log(total);
  for (size_t i = 0; i < list.count(); ++i) {
    values[i] = log_prob(scale.of(values[i]), log_total);
  }
}

/// Lists what is kept of a row, but for -inf. `groups` were scanned, or have one line each.
template <typename Type>
void list_kept(const Row<Type>& row, const Groups& groups, const Kept& kept, const Scale& scale,
               KeptList& list, Workspace& work) {
  const float bound = kept.value > -kInfinity ? next_below(kept.value) : kept.value;
  Hits& hits = work.hits;
  list.resize(hit_above(row, groups, bound, hits));
  int32_t* const ids = list.ids();
  float* const values = list.log_probs();
  const bool are_all_kept = kept == Kept{.value = kept.value};
  size_t count = 0;
  for (size_t i = 0; i < hits.count; ++i) {
    const size_t start = hits.pairs[i] * 2 * kLine;
    const auto* data = row.line(start / kLine);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      ids[count] = static_cast<int32_t>(start + place);
      values[count] = Type::value_of(data[place]);
      count += are_all_kept || kept.has(values[count], start + place) ? 1 : 0;
    }
  }
  list.resize(count);  // which moves its log-probabilities
  std::memmove(list.log_probs(), values, count * sizeof(float));
  normalize_list(list, scale, work);
}

/// Lists candidates that are kept, whose values are divided already and whose exponentials are in
/// the workspace.
inline void list_ranks(const Candidates& kept, float maximum, KeptList& list, Workspace& work) {
  list.resize(kept.count);
  const double log_total = std::log(sum(work.exponentials, kept.count));
  // Ranks sorted by values that fall as the ids rise.
  Candidates by_rank{work.values, work.ids};
  for (size_t rank = 0; rank < kept.count; ++rank) {
    by_rank.append(value_of_ordinal(-static_cast<int32_t>(kept.ids[rank])), rank);
  }
  Candidates by_id{work.room_values[0], reinterpret_cast<uint32_t*>(list.ids())};
  sort(by_rank, work.keys, work.other_keys, by_id);
  for (size_t place = 0; place < kept.count; ++place) {
    const uint32_t rank = by_id.ids[place];
    const double difference = double{kept.values[rank]} - double{maximum};
    list.ids()[place] = static_cast<int32_t>(kept.ids[rank]);
    list.log_probs()[place] = log_prob(difference, log_total);
  }
}

/// The draw by segments of what is kept, which is listed where that is wanted: then it is known.
/// None where it is not the same whatever between the bounds is kept.
template <typename Type>
std::optional<size_t> draw_kept(const Row<Type>& row, const Groups& groups, const Scale& scale,
                                const KeptBounds& bounds, const NoiseKey& key, const Report& report,
                                Workspace& work) {
  if (report.wants_list()) {
    list_kept(row, groups, bounds.outer, scale, *report.list, work);
  }
  return SegmentedDraw<Type>(row, groups, scale, key, work).draw(bounds);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
