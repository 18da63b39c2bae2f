// What the filters keep of a row, as a list: ids, ascending, and their log-probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/calls.h"
#include "cpu/draws/draw.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/row.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"

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

/// Finds what a cut keeps of a row, but for -inf, in the workspace's hits. Returns its number.
/// `groups` were scanned, or have one line each.
template <typename Type>
size_t hit_kept(const Row<Type>& row, const Groups& groups, const Cut& cut, Workspace& work) {
  const float bound = cut.value > -kInfinity ? next_below(cut.value) : cut.value;
  Hits& hits = work.hits;
  size_t count = hit_above(row, groups, bound, hits);
  // Equals behind the last id go, from the end.
  for (size_t i = cut.value > -kInfinity ? hits.count : 0; i-- > 0;) {
    const size_t start = hits.pairs[i] * 2 * kLine;
    if (start + 2 * kLine <= cut.last_id) {
      break;
    }
    const auto* data = row.line(start / kLine);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      if (start + place > cut.last_id && Type::value_of(data[place]) == cut.value) {
        hits.bits[i] &= ~(uint64_t{1} << place);
        --count;
      }
    }
  }
  return count;
}

/// Lists the hits, so many.
template <typename Type>
void list_hits(const Row<Type>& row, size_t count, const Scale& scale, KeptList& list,
               Workspace& work) {
  const Hits& hits = work.hits;
  list.resize(count);
  int32_t* ids = list.ids();
  float* values = list.log_probs();
  for (size_t i = 0; i < hits.count; ++i) {
    const size_t start = hits.pairs[i] * 2 * kLine;
    const auto* data = row.line(start / kLine);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      *ids++ = static_cast<int32_t>(start + place);
      *values++ = Type::value_of(data[place]);
    }
  }
  normalize_list(list, scale, work);
}

/// Lists what a cut keeps of a row, but for -inf.
template <typename Type>
void list_kept(const Row<Type>& row, const Groups& groups, const Cut& cut, const Scale& scale,
               KeptList& list, Workspace& work) {
  list_hits(row, hit_kept(row, groups, cut, work), scale, list, work);
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

/// What a SegmentedDraw draws between two cuts, with what else is wanted of its row: then the cuts
/// are equal.
template <typename Draw>
std::optional<size_t> draw_between(Draw draw, const Cut& least, const Cut& most,
                                   const RowArguments& arguments, Workspace& work) {
  if (arguments.list != nullptr) {
    list_kept(draw.row(), draw.groups(), most, draw.scale(), *arguments.list, work);
  }
  return draw.draw_between(least, most);
}

/// The same with one cut.
template <typename Draw>
size_t draw_listed(Draw draw, const Cut& cut, const RowArguments& arguments, Workspace& work) {
  return *draw_between(draw, cut, cut, arguments, work);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
