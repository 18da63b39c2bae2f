// The total order of a few values: larger ones first, equal ones by ascending id. Thresholds and
// sorts. Comparisons only, so exact.
#pragma once

#include <utility>

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// An integer that grows with the value; +0 and -0 share one. The low bits that the values of a
/// narrower type never use stay 0.
ASCEND_SAMPLE_INLINE int32_t ordinal_of(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  return bits < 0 ? -(bits & 0x7FFFFFFF) : bits;
}

ASCEND_SAMPLE_INLINE float value_of_ordinal(int32_t ordinal) {
  return std::bit_cast<float>(ordinal < 0 ? INT32_MIN | -ordinal : ordinal);
}

/// The largest value that is not enough, by bisection: `low` is not, `high` is.
template <typename IsEnough>
float last_before(float low, float high, IsEnough is_enough) {
  int64_t below = ordinal_of(low);
  int64_t above = ordinal_of(high);
  while (above - below > 1) {
    const auto middle = static_cast<int32_t>(below + (above - below) / 2);
    (is_enough(value_of_ordinal(middle)) ? above : below) = middle;
  }
  return value_of_ordinal(static_cast<int32_t>(below));
}

/// The next value up or down.
ASCEND_SAMPLE_INLINE float next_above(float value) {
  return value_of_ordinal(ordinal_of(value) + 1);
}
ASCEND_SAMPLE_INLINE float next_below(float value) {
  return value_of_ordinal(ordinal_of(value) - 1);
}

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

/// How many of values[0 : size] are at least `bound`; size is a multiple of kLine.
inline size_t count_at_least(const float* values, size_t size, float bound) {
  const Floats bounds = splat(bound);
  Counter first;
  Counter second;
  for (size_t i = 0; i < size; i += kLine) {
    first.add(is_at_least(load_floats(values + i), bounds));
    second.add(is_at_least(load_floats(values + i + kLanes), bounds));
  }
  return first.total() + second.total();
}

/// A value that at least `count` of values[0 : size] reach, and at most `limit`, unless more than
/// that are equal: then the count-th largest. size is a multiple of kLine and at least count.
inline float find_threshold(const float* values, size_t size, size_t count, size_t limit) {
  constexpr int kMeans = 8;
  Floats least = load_floats(values);
  Floats largest = least;
  for (size_t i = kLanes; i < size; i += kLanes) {
    least = smaller(load_floats(values + i), least);
    largest = larger(load_floats(values + i), largest);
  }
  int64_t low = ordinal_of(-largest_lane(-least));       // reached by at least count
  int64_t high = ordinal_of(largest_lane(largest)) + 1;  // by fewer
  size_t reached = size;
  for (int step = 0; reached > limit && high - low > 1; ++step) {
    int64_t middle = low + (high - low) / 2;
    if (step < kMeans) {
      // Halves the values instead of their ordinals, of which most are next to 0.
      const float mean = value_of_ordinal(int32_t(low)) / 2 + value_of_ordinal(int32_t(high)) / 2;
      const int64_t ordinal = ordinal_of(mean);
      middle = ordinal > low && ordinal < high ? ordinal : middle;
    }
    const size_t above = count_at_least(values, size, value_of_ordinal(int32_t(middle)));
    if (above >= count) {
      low = middle;
      reached = above;
    } else {
      high = middle;
    }
  }
  return value_of_ordinal(static_cast<int32_t>(low));
}

/// Logits with their ids: ascending ids while they are collected, then the total order.
struct Candidates {
  float* values;
  uint32_t* ids;
  size_t count = 0;

  ASCEND_SAMPLE_INLINE void append(float value, size_t id) {
    values[count] = value;
    ids[count] = static_cast<uint32_t>(id);
    ++count;
  }
};

/// Leaves the first `count` of the total order, still by ascending id.
inline void keep_largest(Candidates& candidates, size_t count) {
  pad(candidates.values, candidates.count);
  const size_t padded = (candidates.count + kLine - 1) / kLine * kLine;
  const float bound = find_threshold(candidates.values, padded, count, count);
  const size_t above = count_at_least(candidates.values, padded, next_above(bound));
  size_t equal = count - above;  // as many as still have room, those of the lowest ids
  size_t kept = 0;
  for (size_t i = 0; i < candidates.count; ++i) {
    const float value = candidates.values[i];
    const size_t takes = value > bound || (value == bound && equal != 0);
    equal -= takes != 0 && value == bound;
    candidates.values[kept] = value;
    candidates.ids[kept] = candidates.ids[i];
    kept += takes;
  }
  candidates.count = kept;
}

/// Up to so many candidates are sorted by counting: a bit of a word for each.
inline constexpr size_t kFewSorted = 64;

/// Sorts up to kFewSorted candidates from ascending ids into the total order: each goes to the
/// place that counts those before it.
inline void sort_few(const Candidates& candidates, Candidates& sorted) {
  pad(candidates.values, candidates.count);
  uint64_t earlier = 0;
  for (size_t i = 0; i < candidates.count; ++i, earlier = earlier << 1 | 1) {
    const Floats value = splat(candidates.values[i]);
    uint64_t larger_bits = 0;
    uint64_t equal_bits = 0;
    for (size_t j = 0; j < candidates.count; j += kLanes) {
      const Floats others = load_floats(candidates.values + j);
      larger_bits |= uint64_t{bits_of(is_greater(others, value))} << j;
      equal_bits |= uint64_t{bits_of(is_equal(others, value))} << j;
    }
    const auto place =
        static_cast<size_t>(__builtin_popcountll(larger_bits | (equal_bits & earlier)));
    sorted.values[place] = candidates.values[i];
    sorted.ids[place] = candidates.ids[i];
  }
  sorted.count = candidates.count;
}

/// Sorts candidates from ascending ids into the total order by their keys, at most `last_key`, of
/// which smaller ones come first: each goes behind those with smaller keys and, of equal ones, to
/// the next place.
template <uint32_t kMostKeys, typename KeyOf>
void sort_by_counts(const Candidates& candidates, uint32_t last_key, KeyOf key_of,
                    Candidates& sorted) {
  uint32_t places[kMostKeys] = {};
  for (size_t i = 0; i < candidates.count; ++i) {
    ++places[key_of(i)];
  }
  uint32_t place = 0;
  for (uint32_t key = 0; key <= last_key; ++key) {
    place += std::exchange(places[key], place);
  }
  for (size_t i = 0; i < candidates.count; ++i) {
    const uint32_t own_place = places[key_of(i)]++;
    sorted.values[own_place] = candidates.values[i];
    sorted.ids[own_place] = candidates.ids[i];
  }
}

/// Sorts candidates from ascending ids into the total order, digit by digit of those bits in which
/// their values differ; where that are few, as those of 16-bit types, all at once. `keys` and
/// `others` have room for a number a candidate.
inline void sort_many(const Candidates& candidates, uint64_t* keys, uint64_t* others,
                      Candidates& sorted) {
  constexpr int kDigitBits = 8;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  constexpr int kMostDigits = 4;
  constexpr uint32_t kMostCounted = 1024;  // keys: a table for more takes longer than another digit
  int32_t highest = ordinal_of(candidates.values[0]);
  int32_t lowest = highest;
  uint32_t used = 0;
  for (size_t i = 0; i < candidates.count; ++i) {
    const int32_t ordinal = ordinal_of(candidates.values[i]);
    highest = ordinal > highest ? ordinal : highest;
    lowest = ordinal < lowest ? ordinal : lowest;
    used |= static_cast<uint32_t>(ordinal);
  }
  // The low bits that are 0 in every ordinal are 0 in their differences.
  const int shift = used == 0 ? 0 : __builtin_ctz(used);
  const auto distance_to = [&](int32_t ordinal) {
    return (static_cast<uint32_t>(highest) - static_cast<uint32_t>(ordinal)) >> shift;
  };
  const auto key_of = [&](size_t i) { return distance_to(ordinal_of(candidates.values[i])); };
  const uint32_t range = distance_to(lowest);
  sorted.count = candidates.count;
  if (range < kMostCounted) {
    sort_by_counts<kMostCounted>(candidates, range, key_of, sorted);
    return;
  }
  const int digits = (32 - __builtin_clz(range) + kDigitBits - 1) / kDigitBits;
  uint32_t places[kMostDigits][kDigits] = {};
  for (size_t i = 0; i < candidates.count; ++i) {
    const uint32_t key = key_of(i);
    keys[i] = uint64_t{key} << 32 | i;
    for (int digit = 0; digit < digits; ++digit) {
      ++places[digit][(key >> (digit * kDigitBits)) % kDigits];
    }
  }
  for (int digit = 0; digit < digits; ++digit) {
    uint32_t place = 0;
    for (uint32_t& start : places[digit]) {
      place += std::exchange(start, place);
    }
    for (size_t i = 0; i < candidates.count; ++i) {
      others[places[digit][(keys[i] >> (32 + digit * kDigitBits)) % kDigits]++] = keys[i];
    }
    std::swap(keys, others);
  }
  for (size_t i = 0; i < candidates.count; ++i) {
    const auto from = static_cast<uint32_t>(keys[i]);
    sorted.values[i] = candidates.values[from];
    sorted.ids[i] = candidates.ids[from];
  }
}

/// Sorts candidates from ascending ids into the total order, with that room for keys.
inline void sort(const Candidates& candidates, uint64_t* keys, uint64_t* others,
                 Candidates& sorted) {
  if (candidates.count <= kFewSorted) {
    sort_few(candidates, sorted);
  } else {
    sort_many(candidates, keys, others, sorted);
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
