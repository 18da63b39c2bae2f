// Where, in a row's order, a cumulated weight exceeds a target: without sorting the row.
//
// A sample of the row tells between which two values the place must lie; one pass over the row
// weighs what is above them and gathers what is between; the rest is a search among the gathered.
#pragma once

#include <cmath>

#include "bag.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A part of the row.
struct Sample {
  Bag bag;
  double lines_for_each;  // lines of the row for each of the sample's
};

template <Weight kWeight, typename Type>
Sample take_sample(const Row<Type>& row, float maximum, Bag bag) {
  const size_t lines = row.lines() < kSampleLines ? row.lines() : kSampleLines;
  sample_lines(row, lines, bag.values);
  bag.size = lines * kLine;
  const Floats reference = splat(maximum);
  for (size_t i = 0; i < bag.size; i += kLanes) {
    store(bag.weights + i, weigh<kWeight>(load_floats(bag.values + i), reference));
  }
  return {bag, static_cast<double>(row.lines()) / static_cast<double>(lines)};
}

/// The weight of the whole row.
template <Weight kWeight, typename Type>
double weigh_row(const Row<Type>& row, float maximum) {
  const Floats reference = splat(maximum);
  Sum sum;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    for (size_t i = 0; i < kChunk; i += kLine) {
      const Line line = Type::load_unordered(chunk + i);
      sum.add(weigh<kWeight>(line.first, reference) + weigh<kWeight>(line.second, reference));
    }
  }
  return sum.total();
}

/// A bracket that holds the place, if the sample's weights are off by no more than so many standard
/// deviations of a sample at random; `within` does surely. `target` is the weight to be exceeded by
/// what lies between within.high and the place. Only the lower end is narrowed unless kWithHigh.
template <Weight kWeight, bool kWithHigh>
Bracket narrow(const Sample& sample, Bracket within, float maximum, double target,
               double deviations, Bag inside, const Bag (&rooms)[2]) {
  const Floats lows = splat(within.low);
  const Floats highs = splat(within.high);
  Floats squares{};
  double total = 0;
  double largest_line = 0;
  inside.size = 0;
  for (size_t i = 0; i < sample.bag.size; i += kLine) {
    Floats line{};
    for (const size_t half : {i, i + kLanes}) {
      const Floats values = load_floats(sample.bag.values + half);
      const Floats weights =
          kWeight == Weight::kOne ? splat(1.0F) : load_floats(sample.bag.weights + half);
      const Mask stays = is_at_least(values, lows) & is_at_least(highs, values);
      const Floats counted = select(stays, weights, Floats{});
      line = line + counted;
      squares = fused(counted, counted, squares);
      compress(inside.weights + inside.size, stays, weights);
      inside.size += compress(inside.values + inside.size, stays, values);
    }
    const double weight = sum_lanes(line);
    total += weight;
    largest_line = weight > largest_line ? weight : largest_line;
  }
  if (inside.size == 0) {
    return within;
  }
  const double wanted = target / sample.lines_for_each;
  // In a sorted row, the logits of a line are as one: then the sample may be off by a line.
  const double largest = weight_of_equals<kWeight>(within.high, 1, maximum);
  const double error =
      deviations * std::sqrt(sum_lanes(squares) + largest * largest) + largest_line;
  Bracket bracket = within;
  if (wanted + error < total) {
    bracket.low = find_place_in<kWeight>(inside, maximum, wanted + error, rooms).value;
  }
  if (kWithHigh && wanted - error > 0) {
    bracket.high = find_place_in<kWeight>(inside, maximum, wanted - error, rooms).value;
  }
  return bracket;
}

/// What is above a value that a place does not exceed.
struct Beyond {
  float value;
  size_t count;
  double weight;
};

/// Gathers the values inside the bracket, unless it is a single value: then it counts them. With
/// kWeighsAbove it also weighs the logits above, which are known otherwise.
template <Weight kWeight, bool kWeighsAbove, typename Type>
Bag gather(const Row<Type>& row, Bracket bracket, float maximum, Bag bag) {
  const Floats reference = splat(maximum);
  const Floats lows = splat(bracket.low);
  const Floats highs = splat(bracket.high);
  const bool is_one_value = bracket.low == bracket.high;
  Counter above;
  Counter equal;
  Sum weight;
  bag.size = 0;
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
            weight.add(select(is_above, weigh<kWeight>(values, reference), Floats{}));
          }
        }
        if (is_one_value) {
          equal.add(is_inside);
        } else {
          bag.size += compress(bag.values + bag.size, is_inside, values);
        }
      }
    }
  }
  bag.size += equal.total();
  if constexpr (kWeighsAbove) {
    bag.count_above = above.total();
    bag.weight_above =
        kWeight == Weight::kOne ? static_cast<double>(bag.count_above) : weight.total();
  }
  return bag;
}

/// Searches a row for places, by this weight or by Weight::kOne. What a search gathers serves later
/// ones where it holds their place.
template <typename Type, Weight kSampled>
class Searcher {
 public:
  /// From `values` on, there is room for the row.
  Searcher(const Row<Type>& row, float maximum, float* values, Workspace& work)
      : row_(row),
        maximum_(maximum),
        gathered_{values, work.weights},
        inside_{work.inside_values, work.inside_weights},
        rooms_{{work.room_values[0], work.room_weights[0]},
               {work.room_values[1], work.room_weights[1]}},
        sample_(take_sample<kSampled>(row, maximum, {work.sample_values, work.sample_weights})) {}

  /// Gathers the logits from below the likely place of a target up to beyond.value, if they are
  /// few; else null.
  const Bag* gather_few(float low, const Beyond& beyond, double target) {
    constexpr double kDeviations = 3.0;
    const Bracket bracket =
        narrow<kSampled, false>(sample_, {low, beyond.value}, maximum_, target - beyond.weight,
                                kDeviations, inside_, rooms_);
    if (!(bracket.low < beyond.value) || share_from(bracket.low) >= kFew) {
      return nullptr;
    }
    gathered_.count_above = beyond.count;
    gathered_.weight_above = beyond.weight;
    gathered_ = gather<kSampled, false>(row_, {bracket.low, beyond.value}, maximum_, gathered_);
    has_all_from_ = bracket.low;
    return gathered_.size == 0 ? nullptr : &gathered_;
  }

  /// The place in a bag of a target that it exceeds; unless for Weight::kOne, it was weighed.
  template <Weight kWeight>
  Place find_in(const Bag& bag, double target) const {
    return find_place_in<kWeight>(bag, maximum_, target, rooms_);
  }

  /// How many logits are above a value; where that is itself above beyond.value of the last search,
  /// perhaps fewer.
  size_t count_above(float bound) const {
    if (has_all_from_ <= bound) {
      return gathered_.count_above + count_greater(gathered_, bound);
    }
    const Floats bounds = splat(bound);
    Counter first;
    Counter second;
    for (size_t index = 0; index < row_.chunks(); ++index) {
      const auto* chunk = row_.chunk(index);
      for (size_t i = 0; i < kChunk; i += kLine) {
        const Line line = Type::load(chunk + i);
        first.add(is_greater(line.first, bounds));
        second.add(is_greater(line.second, bounds));
      }
    }
    return first.total() + second.total();
  }

  /// Whether the last search had few enough logits above the place.
  bool has_gathered_all_above() const { return has_all_from_ < kInfinity; }

  /// The place where the cumulated weight exceeds `target`: from `low` to beyond.value.
  template <Weight kWeight>
  Place find(float low, const Beyond& beyond, double target) {
    if (kWeight == Weight::kOne && has_all_from_ <= low && gathered_.count_above <= target) {
      return find_place_in<kWeight>(gathered_, maximum_, target, rooms_);
    }
    const double weight_beyond =
        kWeight == Weight::kOne ? static_cast<double>(beyond.count) : beyond.weight;
    // Where roundings differ, both might be a little beyond.
    target = target > weight_beyond ? target : weight_beyond;
    low = low < beyond.value ? low : beyond.value;
    // Where the row is sorted, say, a line of the sample tells no more than one of its logits: then
    // the first bracket may miss the place, and a wider one is tried.
    double deviations = 3.0;
    const auto narrow_with = [&] {
      return narrow<kWeight, true>(sample_, {low, beyond.value}, maximum_, target - weight_beyond,
                                   deviations, inside_, rooms_);
    };
    Bracket bracket = narrow_with();
    for (int attempt = 1;; ++attempt) {
      const bool is_last = attempt == kMostAttempts;
      if (is_last) {
        bracket = {kLowest, beyond.value};
      }
      const bool is_one_value = bracket.low == bracket.high;
      // Where few logits are above the bracket, they are gathered with it: weighing a few of them
      // later costs less than weighing every logit now.
      if (!is_one_value && share_from(bracket.low) < kFew) {
        bracket.high = beyond.value;
      }
      const bool is_all_above_known = bracket.high >= beyond.value;
      if (is_all_above_known) {
        gathered_.count_above = beyond.count;
        gathered_.weight_above = weight_beyond;
        gathered_ = gather<kWeight, false>(row_, bracket, maximum_, gathered_);
      } else {
        gathered_ = gather<kWeight, true>(row_, bracket, maximum_, gathered_);
      }
      has_all_from_ = is_all_above_known && !is_one_value ? bracket.low : kInfinity;
      deviations *= 8;
      if (gathered_.weight_above > target) {
        const float low = next_above(bracket.high);
        const float high = narrow_with().high;
        bracket = {low, high < low ? beyond.value : high};
        continue;
      }
      Place place{bracket.low, gathered_.count_above, gathered_.weight_above, gathered_.size};
      if (!is_one_value && gathered_.size != 0) {
        if constexpr (kWeight != Weight::kOne) {
          weigh_bag<kWeight>(gathered_, maximum_);
        }
        place = find_place_in<kWeight>(gathered_, maximum_, target, rooms_);
      }
      const double weight =
          place.weight_above + weight_of_equals<kWeight>(place.value, place.count_equal, maximum_);
      if (weight > target || is_last) {
        return place;
      }
      // The place is below the bracket.
      const float high = next_below(bracket.low);
      const float low = narrow_with().low;
      bracket = {low < high ? low : kLowest, high};
    }
  }

 private:
  static constexpr double kFew = 0.25;     // of the sample
  static constexpr int kMostAttempts = 4;  // the last one gathers everything

  /// The share of the sample that is at least `bound`.
  double share_from(float bound) const {
    const auto count =
        static_cast<double>(count_at_least(sample_.bag.values, sample_.bag.size, bound));
    return count / static_cast<double>(sample_.bag.size);
  }

  const Row<Type>& row_;
  const float maximum_;
  Bag gathered_;
  Bag inside_;
  Bag rooms_[2];
  Sample sample_;
  float has_all_from_ = kInfinity;  // up to what is above it, gathered_ has every logit from here
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
