// What is kept of a row as a list: its ids, ascending, and their log-probabilities.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/calls.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/temperature.h"
#include "cpu/rows/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is kept of a row: all above `value`, and up to `last_id` what is equal to it.
struct Cut {
  float value;
  size_t last_id;

  bool operator==(const Cut&) const = default;
};

inline constexpr Cut kNoCut{-kInfinity, 0};

/// What a row's logits are before they are weighed: exp((logit - maximum) / temperature).
struct Scale {
  float maximum;
  float temperature;
};

/// Turns the list's logits, which stand in the place of its log-probabilities, into these. Weights
/// are those of the draw, and are added by ascending id: so the sum is a function of the row alone.
inline void normalize_list(KeptList& list, const Scale& scale, Workspace& work) {
  float* const values = list.log_probs();
  double total = 0;
  for (size_t start = 0; start < list.count(); start += kChunk) {
    const size_t size = std::min(kChunk, list.count() - start);
    const float* logits = values + start;
    float maximum = scale.maximum;
    if (scale.temperature != 1.0F) {
      maximum = divide(logits, size, maximum, scale.temperature, work.scores);
      logits = work.scores;
    }
    total += exp_differences(logits, size, maximum, work.exponentials);
  }
  const double log_total = std::log(total);
  for (size_t i = 0; i < list.count(); ++i) {
    const double difference = double{values[i]} - double{scale.maximum};
    values[i] = static_cast<float>(difference / double{scale.temperature} - log_total);
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
