// The best tokens of a row, what is reported of them and of one that is given, and its rank: what a
// step of beam search looks at, and what a client asks for as logprobs.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "cpu/each_row.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/scan.h"
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

/// What is reported of a row's values, divided by a temperature: they themselves, or the logarithms
/// of their probabilities. A larger value never has a smaller number.
class Numbers {
 public:
  /// Scans the row, and fills groups.maxima.
  template <typename Type>
  Numbers(const Row<Type>& row, const Groups& groups, const RankingCall& call, int64_t index,
          Workspace& work)
      : is_normalised_(call.is_normalised), temperature_(call.divisor(index)) {
    if (!is_normalised_) {
      const bool wants_largest = !call.largest.empty();
      RowStatus status{};
      maximum_ = scan_first(row, groups, wants_largest ? &status : nullptr);
      if (wants_largest) {
        constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
        call.largest[static_cast<size_t>(index)] = status == RowStatus::kNanSeen ? kNan : maximum_;
      }
      return;
    }
    const bool has_entropy = !call.entropies.empty();
    if (temperature_ != 1.0F) {
      maximum_ = scan_maxima(row, groups);
    }
    if (temperature_ != 1.0F && std::isfinite(maximum_)) {  // an infinite one decides alone
      const Groups unread{kChunkLines, work.folded_maxima};
      add_up(divide(row, maximum_, temperature_, work), unread, has_entropy, work);
    } else {
      temperature_ = 1.0F;
      maximum_ = add_up(row, groups, has_entropy, work);
    }
  }

  float maximum() const { return maximum_; }
  /// Where that is wanted; 0 of a row of -inf.
  float entropy() const { return entropy_; }

  float of(float value) const {
    if (!is_normalised_) {
      return value / temperature_;
    }
    if (value == -kInfinity) {
      return value;
    }
    const double difference = value == maximum_ ? 0.0 : double{value} - maximum_;
    return static_cast<float>(difference / temperature_ - log_sum_);
  }

 private:
  /// Finds the logarithm of the sum of a row, and its entropy. Returns its maximum.
  template <typename Type>
  float add_up(const Row<Type>& row, const Groups& groups, bool has_entropy, Workspace& work) {
    const ChunkSums& chunks = work.chunk_sums;
    const RowSum row_sum = has_entropy ? scan_distances(row, groups, chunks)
                                       : scan_sum<kBlockLines>(row, groups, chunks);
    const bool is_shared = row_sum.maximum == kInfinity;
    if (row_sum.maximum > -kInfinity) {
      log_sum_ = std::log(is_shared ? static_cast<double>(count_infinities(row)) : row_sum.sum);
      if (has_entropy) {
        entropy_ = entropy_of(chunks, row.chunks(), row_sum, log_sum_);
      }
    }
    return row_sum.maximum;
  }

  bool is_normalised_;
  float temperature_;
  float maximum_ = 0;
  double log_sum_ = 0;
  float entropy_ = 0;
};

/// The first `count` of the total order, or fewer where the row has fewer above -inf.
template <typename Type>
Candidates best_of_row(const Row<Type>& row, const Groups& groups, size_t count, Workspace& work) {
  if (count <= kMaxTopK) {
    return first_of_total_order(row, groups, count, work);
  }
  Candidates best = sort_above(row, groups, -kInfinity, work);
  best.count = best.count < count ? best.count : count;
  return best;
}

/// How many logits have at least the number of `value`, by the numbers of the best where those
/// tell.
template <typename Type>
size_t rank_of_value(const Row<Type>& row, const Groups& groups, const Numbers& numbers,
                     float value, std::span<const float> best, Workspace& work) {
  const float number = numbers.of(value);
  if (number == -kInfinity) {
    return row.vocab_size();
  }
  for (size_t rank = 0; rank < best.size(); ++rank) {
    if (best[rank] < number) {
      return rank;
    }
  }
  const float below =
      last_before(-kInfinity, value, [&](float other) { return numbers.of(other) >= number; });
  return hit_above(row, groups, below, work.hits);
}

/// Writes the numbers and ids of the best, in the order of the logits, whatever the temperature
/// makes of them. What has no weight follows by ascending id, with -inf. A token that is given
/// stands before them, those that are named behind.
template <typename Type>
void rank_row(const Row<Type>& row, const RankingCall& call, int64_t index, Workspace& work) {
  const auto count = static_cast<size_t>(call.count);
  const int64_t end = (index + 1) * call.width() - call.named_count;
  float* best_numbers = call.numbers + end - call.count;
  int64_t* best_ids = call.token_ids + end - call.count;
  const Groups groups = groups_for(count, row.vocab_size(), work);
  const Numbers numbers(row, groups, call, index, work);
  if (!call.entropies.empty()) {
    call.entropies[static_cast<size_t>(index)] = numbers.entropy();
  }
  size_t rank = 0;
  if (count != 0 && numbers.maximum() > -kInfinity) {
    const Candidates best = best_of_row(row, groups, count, work);
    for (; rank < best.count; ++rank) {
      best_numbers[rank] = numbers.of(best.values[rank]);
      best_ids[rank] = best.ids[rank];
    }
  }
  for (size_t id = 0; rank < count; ++id) {
    if (row.value(id) == -kInfinity) {
      best_numbers[rank] = -kInfinity;
      best_ids[rank++] = static_cast<int64_t>(id);
    }
  }
  for (int64_t place = 0; place < call.named_count; ++place) {
    const int64_t id = call.named[static_cast<size_t>(index * call.named_count + place)];
    best_numbers[call.count + place] = numbers.of(row.value(static_cast<size_t>(id)));
    best_ids[call.count + place] = id;
  }
  if (call.given.has_value()) {
    const int64_t id = call.given->ids[place_in(call.given->places, index)];
    const float value = row.value(static_cast<size_t>(id));
    best_numbers[-1] = numbers.of(value);
    best_ids[-1] = id;
    call.given->ranks[index] = static_cast<int64_t>(
        rank_of_value(row, groups, numbers, value, {best_numbers, count}, work));
  }
}

inline void rank(const RankingCall& call, int64_t first_row, int64_t last_row, Workspace& work) {
  for_rows(call.logits, call.rows, first_row, last_row, work,
           [&](const auto& row, int64_t index) { rank_row(row, call, index, work); });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
