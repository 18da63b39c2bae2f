// Where, in a row's order, a cumulated weight exceeds a target: without sorting the row.
//
// A sample of the row tells between which two values the place must lie; one pass over the row
// weighs what is above them and gathers what is between; the rest is a search among the gathered.
#pragma once

#include <cmath>

#include "workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is cumulated: the softmax's exponentials (relative to the row's maximum), or the count.
enum class Weight : uint8_t { kExponential, kOne };

/// The value at which the target is exceeded: the weight of all logits above `value` does not
/// exceed it, with those equal to `value` it does.
struct Place {
  float value = 0;
  size_t count_above = 0;
  double weight_above = 0;
  size_t count_equal = 0;
};

/// Adds float32 in 16 lanes, and those now and then in float64: always in the same order.
class Sum {
 public:
  ASCEND_SAMPLE_INLINE void add(const Floats& values) {
    lanes_ = lanes_ + values;
    if (++pending_ == kMostPending) {
      flush();
    }
  }
  ASCEND_SAMPLE_INLINE double total() {
    flush();
    return total_;
  }

 private:
  static constexpr size_t kMostPending = 32;

  ASCEND_SAMPLE_INLINE void flush() {
    total_ += sum_lanes(lanes_);
    lanes_ = Floats{};
    pending_ = 0;
  }

  Floats lanes_{};
  double total_ = 0;
  size_t pending_ = 0;
};

ASCEND_SAMPLE_INLINE Floats weigh(const Floats& values, const Floats& maximum) {
  return exp_not_positive(values - maximum);
}

/// The weight of `count` logits of this value.
template <Weight kWeight>
double weight_of_equals(float value, size_t count, float maximum) {
  if constexpr (kWeight == Weight::kOne) {
    return static_cast<double>(count);
  } else {
    float lanes[kLanes];
    store(lanes, weigh(splat(value), splat(maximum)));
    return static_cast<double>(count) * static_cast<double>(lanes[0]);
  }
}

/// Values in any order, with their exponentials; above them are others of this count and weight.
struct Bag {
  float* values;   // up to whole vectors
  float* weights;  // not read for Weight::kOne
  size_t size = 0;
  size_t count_above = 0;
  double weight_above = 0;
};

/// A generator of numbers that no pattern of a row follows: Numerical Recipes'; any would do.
class Random {
 public:
  size_t below(size_t bound) {
    state_ = state_ * 1664525U + 1013904223U;
    return (uint64_t{state_} * bound) >> 32;
  }

 private:
  uint32_t state_ = 1;
};

/// Values between which a place is sought, both included.
struct Bracket {
  float low;
  float high;
};

inline constexpr size_t kFewValues = 64;

/// Up to kFewValues of a bag in the total order, and their exponentials.
struct SortedFew {
  float values[kFewValues + kLine];
  float weights[kFewValues];
  size_t size = 0;

  /// Takes the values that are in the first `size` places of `values`.
  template <Weight kWeight>
  void sort(size_t count, const float* unsorted_weights) {
    float unsorted_values[kFewValues + kLine];
    uint32_t places[kFewValues + kLine];
    uint32_t sorted_places[kFewValues + kLine];
    for (size_t i = 0; i < count; ++i) {
      unsorted_values[i] = values[i];
      places[i] = static_cast<uint32_t>(i);
    }
    Candidates sorted{values, sorted_places};
    sort_few({unsorted_values, places, count}, sorted);
    for (size_t i = 0; i < count; ++i) {
      weights[i] = kWeight == Weight::kOne ? 1.0F : unsorted_weights[sorted_places[i]];
    }
    size = count;
  }
};

/// What a bag has above a bracket, and inside.
struct Parts {
  Bag inside;  // with what is above it
  double weight_inside;
};

/// Copies what is inside the bracket into `inside`, and weighs what is above.
template <Weight kWeight>
Parts part(const Bag& bag, Bracket bracket, Bag inside) {
  constexpr bool kIsWeighed = kWeight == Weight::kExponential;
  const Floats lows = splat(bracket.low);
  const Floats highs = splat(bracket.high);
  Counter above;
  Sum sum_above;
  Sum sum_inside;
  inside.size = 0;
  const auto take = [&](const Floats& values, const Floats& weights) {
    const Mask is_above = is_greater(values, highs);
    const Mask is_inside = is_at_least(values, lows) & is_at_least(highs, values);
    above.add(is_above);
    if constexpr (kIsWeighed) {
      sum_above.add(select(is_above, weights, Floats{}));
      sum_inside.add(select(is_inside, weights, Floats{}));
      compress(inside.weights + inside.size, is_inside, weights);
    }
    inside.size += compress(inside.values + inside.size, is_inside, values);
  };
  const size_t whole = bag.size / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    take(load_floats(bag.values + i), kIsWeighed ? load_floats(bag.weights + i) : Floats{});
  }
  // The last values, which do not fill a vector: filled up with -inf, which is never inside.
  float last_values[kLanes];
  float last_weights[kLanes] = {};
  for (size_t i = 0; i < kLanes; ++i) {
    last_values[i] = whole + i < bag.size ? bag.values[whole + i] : -kInfinity;
    if (kIsWeighed && whole + i < bag.size) {
      last_weights[i] = bag.weights[whole + i];
    }
  }
  take(load_floats(last_values), load_floats(last_weights));
  const size_t count_above = above.total();
  inside.count_above = bag.count_above + count_above;
  inside.weight_above =
      kIsWeighed ? bag.weight_above + sum_above.total() : static_cast<double>(inside.count_above);
  return {inside, kIsWeighed ? sum_inside.total() : static_cast<double>(inside.size)};
}

/// A bracket that likely holds the place: from a few of the bag's values.
template <Weight kWeight>
Bracket guess(const Bag& bag, double target, Random& random) {
  constexpr double kDeviations = 1.5;  // of a sum over so few: more would keep more of the bag
  SortedFew few;
  float weights[kFewValues];
  for (size_t i = 0; i < kFewValues; ++i) {
    const size_t place = random.below(bag.size);
    few.values[i] = bag.values[place];
    weights[i] = kWeight == Weight::kOne ? 1.0F : bag.weights[place];
  }
  few.sort<kWeight>(kFewValues, weights);
  const double wanted =
      (target - bag.weight_above) * static_cast<double>(kFewValues) / static_cast<double>(bag.size);
  Bracket bracket{-std::numeric_limits<float>::max(), kInfinity};
  double sum = 0;
  double squares = 0;
  for (size_t i = 0; i < kFewValues; ++i) {
    const auto weight = static_cast<double>(few.weights[i]);
    sum += weight;
    squares += weight * weight;
    const double rest = 1.0 - static_cast<double>(i) / kFewValues;
    if ((sum - wanted) * (sum - wanted) > kDeviations * kDeviations * squares * rest) {
      if (sum > wanted) {
        bracket.low = few.values[i];
        break;
      }
      bracket.high = few.values[i];
    }
  }
  return bracket;
}

/// The place at a value of the bag.
template <Weight kWeight>
Place place_at(const Bag& bag, float value, const Bag& room) {
  const Bag equals = part<kWeight>(bag, {value, value}, room).inside;
  return {value, equals.count_above, equals.weight_above, equals.size};
}

inline float least_of(const Bag& bag) {
  float least = bag.values[0];
  for (size_t i = 1; i < bag.size; ++i) {
    least = bag.values[i] < least ? bag.values[i] : least;
  }
  return least;
}

/// The place among up to kFewValues.
template <Weight kWeight>
Place find_place_in_few(const Bag& bag, float maximum, double target) {
  SortedFew few;
  for (size_t i = 0; i < bag.size; ++i) {
    few.values[i] = bag.values[i];
  }
  few.sort<kWeight>(bag.size, bag.weights);
  Place place{maximum, bag.count_above, bag.weight_above, 0};
  for (size_t i = 0; i < few.size; i += place.count_equal) {
    place.weight_above +=
        weight_of_equals<kWeight>(place.value, place.count_equal, maximum);  // of the one before
    place.value = few.values[i];
    place.count_above = bag.count_above + i;
    place.count_equal = 1;
    while (i + place.count_equal < few.size && few.values[i + place.count_equal] == place.value) {
      ++place.count_equal;
    }
    if (place.weight_above + weight_of_equals<kWeight>(place.value, place.count_equal, maximum) >
        target) {
      break;
    }
  }
  return place;
}

/// The place in a bag that is not empty, narrowed down again and again. Where not even all exceed
/// the target, the place is the least value. Leaves the bag as it is; each of `rooms` has room for
/// it, and 16 more.
template <Weight kWeight>
Place find_place_in(Bag bag, float maximum, double target, const Bag (&rooms)[2]) {
  constexpr float kLowest = -std::numeric_limits<float>::max();
  if constexpr (kWeight == Weight::kOne) {
    bag.weight_above = static_cast<double>(bag.count_above);
  }
  Random random;
  for (size_t round = 0; bag.size > kFewValues; ++round) {
    const Bag& room = rooms[round % 2];
    Bracket bracket = guess<kWeight>(bag, target, random);
    Parts parts = part<kWeight>(bag, bracket, room);
    if (parts.inside.weight_above > target) {
      bracket = {next_above(bracket.high), kInfinity};
      parts = part<kWeight>(bag, bracket, room);
    } else if (parts.inside.weight_above + parts.weight_inside <= target && bracket.low > kLowest) {
      bracket = {kLowest, next_below(bracket.low)};
      parts = part<kWeight>(bag, bracket, room);
    }
    if (parts.inside.size == bag.size || bracket.low == bracket.high) {
      // A value that is there many times: it is the place, or leaves the bag.
      const float value =
          bracket.low == bracket.high ? bracket.low : bag.values[random.below(bag.size)];
      const Place place = place_at<kWeight>(bag, value, room);
      const bool is_below = place.weight_above <= target;
      if (is_below &&
          place.weight_above + weight_of_equals<kWeight>(value, place.count_equal, maximum) >
              target) {
        return place;
      }
      bracket =
          is_below ? Bracket{kLowest, next_below(value)} : Bracket{next_above(value), kInfinity};
      parts = part<kWeight>(bag, bracket, room);
    }
    if (parts.inside.size == 0) {  // the sums of fewer values round differently
      return place_at<kWeight>(bag, least_of(bag), room);
    }
    bag = parts.inside;
  }
  return find_place_in_few<kWeight>(bag, maximum, target);
}

/// A part of the row: lines spread over it, at places that no regular pattern shares.
struct Sample {
  Bag bag;
  double lines_for_each;  // lines of the row for each of the sample's
};

template <typename Type>
Sample take_sample(const Row<Type>& row, float maximum, Bag bag) {
  const size_t lines = row.lines();
  const size_t count = lines < kSampleLines ? lines : kSampleLines;
  const Floats reference = splat(maximum);
  Random random;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * lines / count;
    const size_t last = (i + 1) * lines / count;
    const Line line = Type::load(row.line(first + random.below(last - first)));
    for (const Floats& values : {line.first, line.second}) {
      const Floats numbers = larger(values, splat(-kInfinity));  // -inf for NaN
      store(bag.values + bag.size, numbers);
      store(bag.weights + bag.size, weigh(numbers, reference));
      bag.size += kLanes;
    }
  }
  return {bag, static_cast<double>(lines) / static_cast<double>(count)};
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
          if constexpr (kWeight == Weight::kExponential) {
            weight.add(select(is_above, weigh(values, reference), Floats{}));
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
        kWeight == Weight::kExponential ? weight.total() : static_cast<double>(bag.count_above);
  }
  return bag;
}

/// Fills in the exponentials of a bag's values. Returns their sum.
inline double weigh_bag(const Bag& bag, float maximum) {
  const Floats reference = splat(maximum);
  Sum sum;
  for (size_t i = bag.size; i % kLanes != 0; ++i) {
    bag.values[i] = -kInfinity;
  }
  for (size_t i = 0; i < bag.size; i += kLanes) {
    const Floats weights = weigh(load_floats(bag.values + i), reference);
    store(bag.weights + i, weights);
    sum.add(weights);
  }
  return sum.total();
}

/// Searches a row for places. What a search gathers serves later ones where it holds their place.
template <typename Type>
class Searcher {
 public:
  Searcher(const Row<Type>& row, float maximum, Workspace& work)
      : row_(row),
        maximum_(maximum),
        gathered_{work.values, work.weights},
        inside_{work.inside_values, work.inside_weights},
        rooms_{{work.room_values[0], work.room_weights[0]},
               {work.room_values[1], work.room_weights[1]}},
        sample_(take_sample(row, maximum, {work.sample_values, work.sample_weights})) {}

  /// Gathers the logits from below the likely place of a target up to beyond.value, if they are
  /// few; else null.
  const Bag* gather_few(float low, const Beyond& beyond, double target) {
    constexpr double kDeviations = 3.0;
    const Bracket bracket =
        narrow<Weight::kExponential, false>(sample_, {low, beyond.value}, maximum_,
                                            target - beyond.weight, kDeviations, inside_, rooms_);
    if (!(bracket.low < beyond.value) || share_from(bracket.low) >= kFew) {
      return nullptr;
    }
    gathered_.count_above = beyond.count;
    gathered_.weight_above = beyond.weight;
    gathered_ =
        gather<Weight::kExponential, false>(row_, {bracket.low, beyond.value}, maximum_, gathered_);
    has_all_from_ = bracket.low;
    return gathered_.size == 0 ? nullptr : &gathered_;
  }

  /// The place of a target that gather_few's logits exceed; they were weighed.
  Place find_among_gathered(double target) const {
    return find_place_in<Weight::kExponential>(gathered_, maximum_, target, rooms_);
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
        if constexpr (kWeight == Weight::kExponential) {
          weigh_bag(gathered_, maximum_);
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
  static constexpr float kLowest = -std::numeric_limits<float>::max();
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

/// The id of the logit with this rank among those equal to `value`, by ascending id.
template <typename Type>
size_t find_equal(const Row<Type>& row, float value, size_t rank) {
  const Floats wanted = splat(value);
  for (size_t line = 0; line < row.lines(); ++line) {
    uint32_t bits = equal_bits<Type>(row.line(line), wanted);
    const auto count = static_cast<size_t>(__builtin_popcount(bits));
    if (rank >= count) {
      rank -= count;
      continue;
    }
    for (; rank != 0; --rank) {
      bits &= bits - 1;
    }
    return line * kLine + static_cast<size_t>(__builtin_ctz(bits));
  }
  __builtin_unreachable();  // the value was counted in this row
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
