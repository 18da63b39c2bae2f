// A bag of values, and the place in it where a cumulated weight exceeds a target: without sorting.
#pragma once

#include <cmath>

#include "workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is cumulated: the softmax's exponentials (relative to the row's maximum), the values
/// themselves where they are above 0, or the count.
enum class Weight : uint8_t { kExponential, kValue, kOne };

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

template <Weight kWeight = Weight::kExponential>
ASCEND_SAMPLE_INLINE Floats weigh(const Floats& values, const Floats& maximum) {
  static_assert(kWeight != Weight::kOne);
  return kWeight == Weight::kValue ? larger(values, Floats{}) : exp_not_positive(values - maximum);
}

/// The weight of `count` logits of this value.
template <Weight kWeight>
double weight_of_equals(float value, size_t count, float maximum) {
  if constexpr (kWeight == Weight::kOne) {
    return static_cast<double>(count);
  } else {
    float lanes[kLanes];
    store(lanes, weigh<kWeight>(splat(value), splat(maximum)));
    return static_cast<double>(count) * static_cast<double>(lanes[0]);
  }
}

/// Values in any order, with their weights; above them are others of this count and weight.
struct Bag {
  float* values;   // up to whole vectors
  float* weights;  // not read for Weight::kOne
  size_t size = 0;
  size_t count_above = 0;
  double weight_above = 0;
};

/// How many of a bag's values are above a bound, which is not NaN.
inline size_t count_greater(const Bag& bag, float bound) {
  const Floats bounds = splat(bound);
  Counter above;
  size_t i = 0;
  for (; i + kLanes <= bag.size; i += kLanes) {
    above.add(is_greater(load_floats(bag.values + i), bounds));
  }
  size_t count = above.total();
  for (; i < bag.size; ++i) {
    count += bag.values[i] > bound ? 1 : 0;
  }
  return count;
}

inline constexpr float kLowest = -std::numeric_limits<float>::max();

/// Values between which a place is sought, both included.
struct Bracket {
  float low;
  float high;
};

/// Up to kFewSorted of a bag in the total order, and their weights.
struct SortedFew {
  float values[kFewSorted + kLine];
  float weights[kFewSorted];
  size_t size = 0;

  /// Takes the values that are in the first `size` places of `values`.
  template <Weight kWeight>
  void sort(size_t count, const float* unsorted_weights) {
    float unsorted_values[kFewSorted + kLine];
    uint32_t places[kFewSorted + kLine];
    uint32_t sorted_places[kFewSorted + kLine];
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
  constexpr bool kIsWeighed = kWeight != Weight::kOne;
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
  float weights[kFewSorted];
  for (size_t i = 0; i < kFewSorted; ++i) {
    const size_t place = random.below(bag.size);
    few.values[i] = bag.values[place];
    weights[i] = kWeight == Weight::kOne ? 1.0F : bag.weights[place];
  }
  few.sort<kWeight>(kFewSorted, weights);
  const double wanted =
      (target - bag.weight_above) * static_cast<double>(kFewSorted) / static_cast<double>(bag.size);
  Bracket bracket{kLowest, kInfinity};
  double sum = 0;
  double squares = 0;
  for (size_t i = 0; i < kFewSorted; ++i) {
    const auto weight = static_cast<double>(few.weights[i]);
    sum += weight;
    squares += weight * weight;
    const double rest = 1.0 - static_cast<double>(i) / kFewSorted;
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

/// The place among up to kFewSorted.
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
  if constexpr (kWeight == Weight::kOne) {
    bag.weight_above = static_cast<double>(bag.count_above);
  }
  Random random;
  for (size_t round = 0; bag.size > kFewSorted; ++round) {
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

/// Fills in the weights of a bag's values. Returns their sum.
template <Weight kWeight = Weight::kExponential>
double weigh_bag(const Bag& bag, float maximum) {
  const Floats reference = splat(maximum);
  Sum sum;
  pad(bag.values, bag.size);
  for (size_t i = 0; i < bag.size; i += kLanes) {
    const Floats weights = weigh<kWeight>(load_floats(bag.values + i), reference);
    store(bag.weights + i, weights);
    sum.add(weights);
  }
  return sum.total();
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
