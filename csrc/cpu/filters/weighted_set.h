// A set of values, and its weighted quantiles: where a cumulated weight exceeds a target, without
// sorting.
#pragma once

#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is cumulated: the softmax's exponentials (relative to the row's maximum), or the count.
enum class Weight : uint8_t { kExponential, kOne };

/// The value at which the target is exceeded: the weight of all logits above `value` does not
/// exceed it, with those equal to `value` it does.
struct Quantile {
  float value = 0;
  size_t count_above = 0;
  double weight_above = 0;
  size_t count_equal = 0;
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

/// Values in any order, with their weights; above them are others of this count and weight.
struct WeightedSet {
  float* values;   // up to whole vectors
  float* weights;  // not read for Weight::kOne
  size_t size = 0;
  size_t count_above = 0;
  double weight_above = 0;
  double weight = 0;  // their sum
};

/// How many of a set's values are above a bound, which is not NaN.
inline size_t count_greater(const WeightedSet& set, float bound) {
  const Floats bounds = splat(bound);
  Counter above;
  size_t i = 0;
  for (; i + kLanes <= set.size; i += kLanes) {
    above.add(is_greater(load_floats(set.values + i), bounds));
  }
  size_t count = above.total();
  for (; i < set.size; ++i) {
    count += set.values[i] > bound ? 1 : 0;
  }
  return count;
}

inline constexpr float kLowest = -std::numeric_limits<float>::max();

/// Values between which a quantile is sought, both included.
struct Bracket {
  float low;
  float high;
};

/// Up to kFewSorted of a set in the total order, and their weights.
struct SortedFew {
  float values[kFewSorted + kLine];
  float weights[kFewSorted];
  size_t size = 0;

  /// Takes the values that are the first `count` of `values`.
  template <Weight kWeight>
  void sort(size_t count, const float* unsorted_weights) {
    float unsorted_values[kFewSorted + kLine];
    uint32_t indices[kFewSorted + kLine];
    uint32_t sorted_indices[kFewSorted + kLine];
    for (size_t i = 0; i < count; ++i) {
      unsorted_values[i] = values[i];
      indices[i] = static_cast<uint32_t>(i);
    }
    Candidates sorted{values, sorted_indices};
    sort_few({unsorted_values, indices, count}, sorted);
    for (size_t i = 0; i < count; ++i) {
      weights[i] = kWeight == Weight::kOne ? 1.0F : unsorted_weights[sorted_indices[i]];
    }
    size = count;
  }
};

/// Copies what is inside the bracket into `inside`, and weighs it and what is above.
template <Weight kWeight>
WeightedSet partition(const WeightedSet& set, Bracket bracket, WeightedSet inside) {
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
  const size_t whole = set.size / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    take(load_floats(set.values + i), kIsWeighed ? load_floats(set.weights + i) : Floats{});
  }
  // The last values, which do not fill a vector: filled up with -inf, which is never inside.
  float last_values[kLanes];
  float last_weights[kLanes] = {};
  for (size_t i = 0; i < kLanes; ++i) {
    last_values[i] = whole + i < set.size ? set.values[whole + i] : -kInfinity;
    if (kIsWeighed && whole + i < set.size) {
      last_weights[i] = set.weights[whole + i];
    }
  }
  take(load_floats(last_values), load_floats(last_weights));
  const size_t count_above = above.total();
  inside.count_above = set.count_above + count_above;
  inside.weight_above =
      kIsWeighed ? set.weight_above + sum_above.total() : static_cast<double>(inside.count_above);
  inside.weight = kIsWeighed ? sum_inside.total() : static_cast<double>(inside.size);
  return inside;
}

/// A bracket that likely holds the quantile: from a few of the set's values.
template <Weight kWeight>
Bracket guess(const WeightedSet& set, double target, Random& random) {
  constexpr double kDeviations = 1.5;  // of a sum over so few: more would keep more of the set
  SortedFew few;
  float weights[kFewSorted];
  for (size_t i = 0; i < kFewSorted; ++i) {
    const size_t index = random.below(set.size);
    few.values[i] = set.values[index];
    weights[i] = kWeight == Weight::kOne ? 1.0F : set.weights[index];
  }
  few.sort<kWeight>(kFewSorted, weights);
  double total = 0;
  double below = 0;  // squares
  for (const float weight : few.weights) {
    total += weight;
    below += double{weight} * weight;
  }
  // What is above counts by the others' share, what is below by its own.
  const double share = (target - set.weight_above) / set.weight;
  Bracket bracket{kLowest, kInfinity};
  double sum = 0;
  double above = 0;
  for (size_t i = 0; i < kFewSorted; ++i) {
    const double weight{few.weights[i]};
    sum += weight;
    above += weight * weight;
    const double off = sum - share * total;
    const double variance = (1 - share) * (1 - share) * above + share * share * below;
    if (off * off > kDeviations * kDeviations * variance) {
      if (off > 0) {
        bracket.low = few.values[i];
        break;
      }
      bracket.high = few.values[i];
    }
    below -= weight * weight;
  }
  return bracket;
}

/// The quantile at a value of the set.
template <Weight kWeight>
Quantile quantile_at(const WeightedSet& set, float value, const WeightedSet& room) {
  const WeightedSet equals = partition<kWeight>(set, {value, value}, room);
  return {value, equals.count_above, equals.weight_above, equals.size};
}

inline float least_of(const WeightedSet& set) {
  float least = set.values[0];
  for (size_t i = 1; i < set.size; ++i) {
    least = set.values[i] < least ? set.values[i] : least;
  }
  return least;
}

/// The quantile among up to kFewSorted.
template <Weight kWeight>
Quantile find_quantile_of_few(const WeightedSet& set, float maximum, double target) {
  SortedFew few;
  for (size_t i = 0; i < set.size; ++i) {
    few.values[i] = set.values[i];
  }
  few.sort<kWeight>(set.size, set.weights);
  Quantile quantile{maximum, set.count_above, set.weight_above, 0};
  for (size_t i = 0; i < few.size; i += quantile.count_equal) {
    quantile.weight_above += weight_of_equals<kWeight>(quantile.value, quantile.count_equal,
                                                       maximum);  // of the one before
    quantile.value = few.values[i];
    quantile.count_above = set.count_above + i;
    quantile.count_equal = 1;
    while (i + quantile.count_equal < few.size &&
           few.values[i + quantile.count_equal] == quantile.value) {
      ++quantile.count_equal;
    }
    if (quantile.weight_above +
            weight_of_equals<kWeight>(quantile.value, quantile.count_equal, maximum) >
        target) {
      break;
    }
  }
  return quantile;
}

/// The quantile in a set that is not empty, narrowed down again and again. Where not even all
/// exceed the target, the quantile is the least value. Leaves the set as it is; each of `rooms` has
/// room for it, and 16 more.
template <Weight kWeight>
Quantile find_quantile(WeightedSet set, float maximum, double target,
                       const WeightedSet (&rooms)[2]) {
  if constexpr (kWeight == Weight::kOne) {
    set.weight_above = static_cast<double>(set.count_above);
    set.weight = static_cast<double>(set.size);
  }
  Random random;
  for (size_t round = 0; set.size > kFewSorted; ++round) {
    const WeightedSet& room = rooms[round % 2];
    Bracket bracket = guess<kWeight>(set, target, random);
    WeightedSet split = partition<kWeight>(set, bracket, room);
    if (split.weight_above > target) {
      bracket = {next_above(bracket.high), kInfinity};
      split = partition<kWeight>(set, bracket, room);
    } else if (split.weight_above + split.weight <= target && bracket.low > kLowest) {
      bracket = {kLowest, next_below(bracket.low)};
      split = partition<kWeight>(set, bracket, room);
    }
    if (split.size == set.size || bracket.low == bracket.high) {
      // A value that is there many times: it is the quantile, or leaves the set.
      const float value =
          bracket.low == bracket.high ? bracket.low : set.values[random.below(set.size)];
      const Quantile quantile = quantile_at<kWeight>(set, value, room);
      const bool is_below = quantile.weight_above <= target;
      if (is_below &&
          quantile.weight_above + weight_of_equals<kWeight>(value, quantile.count_equal, maximum) >
              target) {
        return quantile;
      }
      bracket =
          is_below ? Bracket{kLowest, next_below(value)} : Bracket{next_above(value), kInfinity};
      split = partition<kWeight>(set, bracket, room);
    }
    if (split.size == 0) {  // the sums of fewer values round differently
      return quantile_at<kWeight>(set, least_of(set), room);
    }
    set = split;
  }
  return find_quantile_of_few<kWeight>(set, maximum, target);
}

/// How many there are down to a quantile with as few of its equals as make the weight exceed the
/// target.
template <Weight kWeight>
size_t count_until_exceeding(const Quantile& end, float maximum, double target) {
  const auto weight_with = [&](size_t equals) {
    return end.weight_above + weight_of_equals<kWeight>(end.value, equals, maximum);
  };
  size_t low = 0;  // does not exceed it
  size_t high = end.count_equal;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    (weight_with(middle) > target ? high : low) = middle;
  }
  return end.count_above + high;
}

/// Fills in the weights of a set's values. Returns their sum.
inline double weigh_set(const WeightedSet& set, float maximum) {
  const Floats reference = splat(maximum);
  Sum sum;
  pad(set.values, set.size);
  for (size_t i = 0; i < set.size; i += kLanes) {
    const Floats weights = weigh(load_floats(set.values + i), reference);
    store(set.weights + i, weights);
    sum.add(weights);
  }
  return sum.total();
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
