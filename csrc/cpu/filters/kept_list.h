// What is kept of a row as a list: its ids, ascending, and their log-probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/calls.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Turns the list's logits, which stand in the place of its log-probabilities, into these. Weights
/// are added by ascending id: so the sum is a function of the row alone.
inline void normalize_list(KeptList& list, const Scale& scale, Workspace& work) {
  float* const values = list.log_probs();
  const auto divided = [&](float value) {
    return (double{value} - double{scale.maximum}) / double{scale.temperature};
  };
  double total = 0;
  for (size_t start = 0; start < list.count(); start += kChunk) {
    const size_t size = std::min(kChunk, list.count() - start);
    for (size_t i = 0; i < size; ++i) {
      work.exponentials[i] = exp_not_positive(divided(values[start + i]));
    }
    total += sum(work.exponentials, size);
  }
  const double log_total = std::log(total);
  for (size_t i = 0; i < list.count(); ++i) {
    values[i] = static_cast<float>(divided(values[i]) - log_total);
  }
}

/// Lists what a cut keeps of a row, but for -inf. `groups` were scanned, or have one line each.
template <typename Type>
void list_kept(const Row<Type>& row, const Groups& groups, const Cut& cut, const Scale& scale,
               KeptList& list, Workspace& work) {
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

/// What a SegmentedDraw draws between two cuts, and what is kept in a list where one is wanted: the
/// cuts are equal then.
template <typename Draw>
std::optional<size_t> draw_between(Draw draw, const Cut& least, const Cut& most, KeptList* list,
                                   Workspace& work) {
  if (list != nullptr) {
    list_kept(draw.row(), draw.groups(), most, draw.scale(), *list, work);
  }
  return draw.draw_between(least, most);
}

/// The same with one cut.
template <typename Draw>
size_t draw_listed(Draw draw, const Cut& cut, KeptList* list, Workspace& work) {
  return *draw_between(draw, cut, cut, list, work);
}

/// Lists candidates that are kept, whose values are divided already and whose exponentials are in
/// the workspace. They are few: a place is how many have a smaller id.
inline void list_ranks(const Candidates& kept, float maximum, KeptList& list, Workspace& work) {
  list.resize(kept.count);
  const double log_total = std::log(sum(work.exponentials, kept.count));
  for (size_t rank = 0; rank < kept.count; ++rank) {
    const uint32_t id = kept.ids[rank];
    uint32_t place = 0;
    for (size_t other = 0; other < kept.count; ++other) {
      place += kept.ids[other] < id ? 1U : 0U;
    }
    const double difference = double{kept.values[rank]} - double{maximum};
    list.ids()[place] = static_cast<int32_t>(id);
    list.log_probs()[place] = static_cast<float>(difference - log_total);
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
