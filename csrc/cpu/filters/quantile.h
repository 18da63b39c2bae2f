// Where, in a row's order, a cumulated weight exceeds a target: without sorting the row.
//
// A sample of the row tells between which two values the quantile must lie; one pass over the row
// weighs what is above them and gathers what is between; the rest is a search among the gathered.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/filters/weighted_set.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/kept.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A part of the row.
struct Sample {
  WeightedSet set;
  double lines_for_each;  // lines of the row for each of the sample's
};

template <typename Type>
Sample take_sample(const Row<Type>& row, float maximum, WeightedSet set) {
  const size_t lines = row.lines() < kSampleLines ? row.lines() : kSampleLines;
  sample_lines(row, lines, set.values);
  set.size = lines * kLine;
  const Floats reference = splat(maximum);
  for (size_t i = 0; i < set.size; i += kLanes) {
    store(set.weights + i, weigh(load_floats(set.values + i), reference));
  }
  return {set, static_cast<double>(row.lines()) / static_cast<double>(lines)};
}

/// What is above a value that a quantile does not exceed.
struct KnownPrefix {
  float value;
  size_t count;
  double weight;
};

/// Gathers the values inside the bracket, unless it is a single value: then it counts them. With
/// kWeighsAbove it also weighs the logits above, which are known otherwise.
template <Weight kWeight, bool kWeighsAbove, typename Type>
WeightedSet gather(const Row<Type>& row, Bracket bracket, float maximum, WeightedSet set) {
  const Floats reference = splat(maximum);
  const Floats lows = splat(bracket.low);
  const Floats highs = splat(bracket.high);
  const bool is_one_value = bracket.low == bracket.high;
  Counter above;
  Counter equal;
  Sum weight;
  set.size = 0;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    for (size_t i = 0; i < kChunk; i += kLine) {
      const Line line = Type::load(chunk + i);
      for (const Floats& values : {line.first, line.second}) {
        const Mask is_inside = is_at_least(values, lows) & is_at_least(highs, values);
        if constexpr (kWeighsAbove) {
          const Mask is_above = is_greater(values, highs);
          above.add(is_above);
          if constexpr (kWeight != Weight::kOne) {
            weight.add(select(is_above, weigh(values, reference), Floats{}));
          }
        }
        if (is_one_value) {
          equal.add(is_inside);
        } else {
          set.size += compress(set.values + set.size, is_inside, values);
        }
      }
    }
  }
  set.size += equal.total();
  if constexpr (kWeighsAbove) {
    set.count_above = above.total();
    set.weight_above =
        kWeight == Weight::kOne ? static_cast<double>(set.count_above) : weight.total();
  }
  return set;
}

/// Searches a row for a quantile, by any weight.
template <typename Type>
class QuantileSearch {
 public:
  /// From `values` on, there is room for the row.
  QuantileSearch(const Row<Type>& row, float maximum, float* values, Workspace& work)
      : row_(row),
        maximum_(maximum),
        gathered_{values, work.weights},
        inside_{work.inside_values, work.inside_weights},
        rooms_{{work.room_values[0], work.room_weights[0]},
               {work.room_values[1], work.room_weights[1]}},
        sample_(take_sample(row, maximum, {work.sample_values, work.sample_weights})) {}

  /// The quantile where the cumulated weight exceeds `target`: from `low` to prefix.value. `total`
  /// is the weight of all that is at least `low`; 0: not known.
  template <Weight kWeight>
  Quantile find(float low, const KnownPrefix& prefix, double target, double total = 0) {
    const double weight_of_prefix =
        kWeight == Weight::kOne ? static_cast<double>(prefix.count) : prefix.weight;
    // Where roundings differ, both might be a little beyond.
    target = target > weight_of_prefix ? target : weight_of_prefix;
    low = low < prefix.value ? low : prefix.value;
    // Where the row is sorted, say, a line of the sample tells no more than one of its logits: then
    // the first bracket may miss the quantile, and a wider one is tried.
    double deviations = 3.0;
    const auto narrow_with = [&] {
      return narrow<kWeight>({low, prefix.value}, target - weight_of_prefix,
                             total - weight_of_prefix, deviations);
    };
    Bracket bracket = narrow_with();
    for (int attempt = 1;; ++attempt) {
      const bool is_last = attempt == kMostAttempts;
      if (is_last) {
        bracket = {kLowest, prefix.value};
      }
      const bool is_one_value = bracket.low == bracket.high;
      // Where few logits are above the bracket, they are gathered with it: weighing a few of them
      // later costs less than weighing every logit now.
      if (!is_one_value && share_from(bracket.low) < kFew) {
        bracket.high = prefix.value;
      }
      const bool is_all_above_known = bracket.high >= prefix.value;
      if (is_all_above_known) {
        gathered_.count_above = prefix.count;
        gathered_.weight_above = weight_of_prefix;
        gathered_ = gather<kWeight, false>(row_, bracket, maximum_, gathered_);
      } else {
        gathered_ = gather<kWeight, true>(row_, bracket, maximum_, gathered_);
      }
      deviations *= 8;
      if (gathered_.weight_above > target) {
        const float low = next_above(bracket.high);
        const float high = narrow_with().high;
        bracket = {low, high < low ? prefix.value : high};
        continue;
      }
      Quantile quantile{bracket.low, gathered_.count_above, gathered_.weight_above, gathered_.size};
      if (!is_one_value && gathered_.size != 0) {
        if constexpr (kWeight != Weight::kOne) {
          gathered_.weight = weigh_set(gathered_, maximum_);
        }
        quantile = find_quantile<kWeight>(gathered_, maximum_, target, rooms_);
      }
      const double weight =
          quantile.weight_above +
          weight_of_equals<kWeight>(quantile.value, quantile.count_equal, maximum_);
      if (weight > target || is_last) {
        return quantile;
      }
      // The quantile is below the bracket.
      const float high = next_below(bracket.low);
      const float low = narrow_with().low;
      bracket = {low < high ? low : kLowest, high};
    }
  }

 private:
  static constexpr double kFew = 0.25;     // of the sample
  static constexpr int kMostAttempts = 4;  // the last one gathers everything

  /// A bracket that holds the quantile, if the sample's weights are off by no more than so many
  /// standard deviations of a sample at random; `within` does surely. `target` is the weight to be
  /// exceeded by what lies between within.high and the quantile, `total` that of all within; not
  /// above 0: not known.
  template <Weight kWeight>
  Bracket narrow(Bracket within, double target, double total, double deviations) {
    WeightedSet inside = partition<kWeight>(sample_.set, within, inside_);
    if (inside.size == 0) {
      return within;
    }
    inside.count_above = 0;
    inside.weight_above = 0;
    const auto quantile_of = [&](double weight) {
      return find_quantile<kWeight>(inside, maximum_, weight, rooms_).value;
    };
    const double wanted = target / (total > 0 ? total / inside.weight : sample_.lines_for_each);
    const auto share = static_cast<float>(std::min(1.0, wanted / inside.weight));
    const double error = error_at<kWeight>(within, quantile_of(wanted), share, deviations);
    return {wanted + error < inside.weight ? quantile_of(wanted + error) : within.low,
            wanted > error ? quantile_of(wanted - error) : within.high};
  }

  /// How far off the sample's weight above a value may be, where that is this share of the whole:
  /// what is above it counts by the others' share, what is below by this one.
  template <Weight kWeight>
  double error_at(Bracket within, float value, float share, double deviations) const {
    Floats squares{};
    double largest_line = 0;
    for (size_t i = 0; i < sample_.set.size; i += kLine) {
      Floats line{};
      for (const size_t half : {i, i + kLanes}) {
        const Floats values = load_floats(sample_.set.values + half);
        const Floats weights =
            kWeight == Weight::kOne ? splat(1.0F) : load_floats(sample_.set.weights + half);
        const Mask is_inside =
            is_at_least(values, splat(within.low)) & is_at_least(splat(within.high), values);
        const Floats factors =
            select(is_at_least(values, splat(value)), splat(1 - share), splat(share));
        const Floats counted = select(is_inside, weights * factors, Floats{});
        line = line + counted;
        squares = fused(counted, counted, squares);
      }
      largest_line = std::max(largest_line, sum_lanes(line));
    }
    // In a sorted row, the logits of a line are as one: then the sample may be off by a line.
    return deviations * std::sqrt(sum_lanes(squares)) + largest_line;
  }

  /// The share of the sample that is at least `bound`.
  double share_from(float bound) const {
    const auto count =
        static_cast<double>(count_at_least(sample_.set.values, sample_.set.size, bound));
    return count / static_cast<double>(sample_.set.size);
  }

  const Row<Type>& row_;
  const float maximum_;
  WeightedSet gathered_;
  WeightedSet inside_;
  WeightedSet rooms_[2];
  Sample sample_;
};

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
