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
  float value;
  size_t count_above;
  double weight_above;
  size_t count_equal;
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

template <Weight kWeight>
ASCEND_SAMPLE_INLINE Floats weigh(const Floats& values, const Floats& maximum) {
  if constexpr (kWeight == Weight::kExponential) {
    return exp_not_positive(values - maximum);
  } else {
    return splat(1.0F);
  }
}

/// A part of the row: lines spread over it, at places that no regular pattern shares.
struct Sample {
  const float* values;
  const float* weights;  // exponentials
  size_t size;
  double lines_for_each;  // lines of the row for each of the sample's
};

template <typename Type>
Sample sample_row(const Row<Type>& row, float maximum, Workspace& work) {
  const size_t lines = row.lines();
  const size_t count = lines < kSampleLines ? lines : kSampleLines;
  const Floats reference = splat(maximum);
  uint32_t random = 1;
  for (size_t i = 0; i < count; ++i) {
    random = random * 1664525U + 1013904223U;  // Numerical Recipes' generator: any would do
    const size_t first = i * lines / count;
    const size_t last = (i + 1) * lines / count;
    const Line line = Type::load(row.line(first + (random >> 16) % (last - first)));
    const Floats lowest = splat(-kInfinity);  // what a NaN becomes
    const Floats halves[2] = {larger(line.first, lowest), larger(line.second, lowest)};
    for (size_t half = 0; half < 2; ++half) {
      store(work.sample_values + i * kLine + half * kLanes, halves[half]);
      store(work.sample_weights + i * kLine + half * kLanes,
            weigh<Weight::kExponential>(halves[half], reference));
    }
  }
  return {work.sample_values, work.sample_weights, count * kLine,
          static_cast<double>(lines) / static_cast<double>(count)};
}

/// Values between which a place is sought, both included.
struct Bracket {
  float low;
  float high;
};

/// Sums over the sample's entries in [bound, high].
struct Estimate {
  double weight;
  double squares;  // of the weights
};

template <Weight kWeight>
Estimate estimate_at_least(const Sample& sample, float bound, float high) {
  const Floats lows = splat(bound);
  const Floats highs = splat(high);
  Floats weights{};
  Floats squares{};
  for (size_t i = 0; i < sample.size; i += kLanes) {
    const Floats values = load_floats(sample.values + i);
    const Mask inside = is_at_least(values, lows) & is_at_least(highs, values);
    const Floats weight = kWeight == Weight::kOne ? splat(1.0F) : load_floats(sample.weights + i);
    const Floats counted = select(inside, weight, Floats{});
    weights = weights + counted;
    squares = fused(counted, counted, squares);
  }
  return {sum_lanes(weights), sum_lanes(squares)};
}

/// A bracket that holds the place very likely. `within` does surely; `target` is the weight to be
/// exceeded by what is below within.high and above the place.
template <Weight kWeight>
Bracket narrow(const Sample& sample, Bracket within, double target) {
  constexpr double kDeviations = 3.0;
  constexpr int kSteps = 10;
  const double wanted = target / sample.lines_for_each;
  const auto search = [&](Bracket bracket, double weight, int steps) {
    for (int step = 0; step < steps; ++step) {
      const float middle = bracket.low * 0.5F + bracket.high * 0.5F;
      const bool is_low =
          estimate_at_least<kWeight>(sample, middle, within.high).weight > weight;
      (is_low ? bracket.low : bracket.high) = middle;
    }
    return bracket;
  };
  const Bracket middle = search(within, wanted, kSteps);
  const Estimate there = estimate_at_least<kWeight>(sample, middle.low, within.high);
  const double error = kDeviations * std::sqrt(there.squares + 1.0);
  return {search({within.low, middle.low}, wanted + error, kSteps / 2).low,
          search({middle.high, within.high}, wanted - error, kSteps / 2).high};
}

/// {v, v} where the sample has, in the bracket, many times the value v and no other: a row of
/// equal logits need not be gathered.
inline Bracket snap(const Sample& sample, Bracket bracket) {
  const Floats lows = splat(bracket.low);
  const Floats highs = splat(bracket.high);
  Floats least = splat(kInfinity);
  Floats largest = splat(-kInfinity);
  for (size_t i = 0; i < sample.size; i += kLanes) {
    const Floats values = load_floats(sample.values + i);
    const Mask inside = is_at_least(values, lows) & is_at_least(highs, values);
    least = smaller(select(inside, values, least), least);
    largest = larger(select(inside, values, largest), largest);
  }
  const float low = -largest_lane(-least);
  const float high = largest_lane(largest);
  return low == high ? Bracket{low, high} : bracket;
}

/// What a pass over the row found above and inside a bracket.
struct Gathered {
  size_t count_above = 0;
  double weight_above = 0;
  size_t count = 0;  // inside; their values are in work.values, unless the bracket is one value
};

/// kWeighsAbove: for a bracket without logits above it, nothing needs to be weighed.
template <Weight kWeight, bool kWeighsAbove, typename Type>
Gathered gather(const Row<Type>& row, Bracket bracket, float maximum, Workspace& work) {
  const Floats reference = splat(maximum);
  const Floats lows = splat(bracket.low);
  const Floats highs = splat(bracket.high);
  const bool is_one_value = bracket.low == bracket.high;
  Gathered result;
  Counter above;
  Counter equal;
  Sum weight;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    for (size_t i = 0; i < kChunk; i += kLine) {
      const Line line = Type::load(chunk + i);
      for (const Floats& values : {line.first, line.second}) {
        if constexpr (kWeighsAbove) {
          const Mask is_above = is_greater(values, highs);
          above.add(is_above);
          if constexpr (kWeight == Weight::kExponential) {
            weight.add(select(is_above, weigh<kWeight>(values, reference), Floats{}));
          }
        }
        const Mask is_inside = is_at_least(values, lows) & is_at_least(highs, values);
        if (is_one_value) {
          equal.add(is_inside);
        } else {
          result.count += compress(work.values + result.count, is_inside, values);
        }
      }
    }
  }
  result.count += equal.total();
  result.count_above = above.total();
  result.weight_above = kWeight == Weight::kExponential ? weight.total()
                                                        : static_cast<double>(result.count_above);
  return result;
}

/// The weight of `count` logits of this value.
template <Weight kWeight>
double weight_of_equals(float value, size_t count, float maximum) {
  if constexpr (kWeight == Weight::kOne) {
    return static_cast<double>(count);
  } else {
    float lanes[kLanes];
    store(lanes, weigh<kWeight>(splat(value), splat(maximum)));
    return static_cast<double>(count) * lanes[0];
  }
}

/// The place among gathered values, by partition around a random one of them until it is found.
/// Where the target is not exceeded even by all, the place is the least value.
template <Weight kWeight>
Place search_gathered(const Gathered& gathered, float maximum, double target, Workspace& work) {
  float* values = work.values;
  const Floats reference = splat(maximum);
  size_t size = gathered.count;
  Place place{0.0F, gathered.count_above, gathered.weight_above, 0};
  uint32_t random = 1;
  for (;;) {
    random = random * 1664525U + 1013904223U;
    const float pivot = values[(uint64_t{random} * size) >> 32];
    pad(values, size);
    const Floats pivots = splat(pivot);
    Counter above;
    Counter equal;
    Sum weight;
    for (size_t i = 0; i < size; i += kLanes) {
      const Floats block = load_floats(values + i);
      const Mask is_above = is_greater(block, pivots);
      above.add(is_above);
      equal.add(is_equal(block, pivots));
      if constexpr (kWeight == Weight::kExponential) {
        weight.add(select(is_above, weigh<kWeight>(block, reference), Floats{}));
      }
    }
    const size_t count_above = above.total();
    const double weight_above =
        kWeight == Weight::kExponential ? weight.total() : static_cast<double>(count_above);
    const bool is_above_pivot = place.weight_above + weight_above > target && count_above != 0;
    if (!is_above_pivot) {
      place = {pivot, place.count_above + count_above, place.weight_above + weight_above,
               equal.total()};
      const double with_equals =
          place.weight_above + weight_of_equals<kWeight>(pivot, place.count_equal, maximum);
      if (with_equals > target || count_above + place.count_equal == size) {
        return place;
      }
      place.count_above += place.count_equal;
      place.weight_above = with_equals;
    }
    const Floats lowest = splat(-kInfinity);
    size_t kept = 0;
    for (size_t i = 0; i < size; i += kLanes) {
      const Floats block = load_floats(values + i);
      const Mask stays = is_above_pivot
                             ? is_greater(block, pivots)
                             : is_greater(pivots, block) & is_greater(block, lowest);
      kept += compress(values + kept, stays, block);
    }
    size = kept;
  }
}

/// The place where the cumulated weight exceeds `target`. It lies in `within`, and `weight_beyond`
/// is the weight of the logits above within.high.
template <Weight kWeight, typename Type>
Place find_place(const Row<Type>& row, const Sample& sample, float maximum, Bracket within,
                 double weight_beyond, double target, Workspace& work) {
  // Where few logits are above the bracket, they are gathered with it: weighing a few of them later
  // costs less than weighing every logit now.
  constexpr double kFew = 0.25;
  Bracket bracket = snap(sample, narrow<kWeight>(sample, within, target - weight_beyond));
  for (;;) {
    const double expected = estimate_at_least<Weight::kOne>(sample, bracket.low, kInfinity).weight;
    if (bracket.low < bracket.high && expected < kFew * static_cast<double>(sample.size)) {
      bracket.high = kInfinity;
    }
    Gathered gathered = bracket.high == kInfinity
                            ? gather<kWeight, false>(row, bracket, maximum, work)
                            : gather<kWeight, true>(row, bracket, maximum, work);
    const bool is_above = gathered.weight_above > target;
    if (is_above) {
      bracket = {value_of_ordinal(ordinal_of(bracket.high) + 1), kInfinity};
      continue;
    }
    Place place{bracket.low, gathered.count_above, gathered.weight_above, gathered.count};
    if (gathered.count != 0 && bracket.low < bracket.high) {
      place = search_gathered<kWeight>(gathered, maximum, target, work);
    }
    const double weight =
        place.weight_above + weight_of_equals<kWeight>(place.value, place.count_equal, maximum);
    const bool is_last = bracket.low == std::numeric_limits<float>::lowest();
    if (weight > target || is_last) {
      return place;
    }
    // Not exceeded: the place is below the bracket.
    bracket = {std::numeric_limits<float>::lowest(), kInfinity};
  }
}

/// The id of the logit with this rank among those equal to `value`, by ascending id.
template <typename Type>
size_t find_equal(const Row<Type>& row, float value, size_t rank) {
  const Floats wanted = splat(value);
  for (size_t line = 0; line < row.lines(); ++line) {
    const auto is_wanted = [&wanted](const Floats& x) { return is_equal(x, wanted); };
    uint32_t bits = line_bits<decltype(is_wanted), Type>(row.line(line), is_wanted);
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
