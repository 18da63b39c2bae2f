// The first k of a row's total order: a threshold from the maxima of groups, the logits above it,
// and their order. Comparisons only, so exact.
#pragma once

#include "scan.h"

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

inline constexpr size_t kSampleLines = 128;

/// Copies `count` lines spread over the row, which has as many, at places that no regular pattern
/// shares. NaN becomes -inf.
template <typename Type>
void sample_lines(const Row<Type>& row, size_t count, float* values) {
  const size_t lines = row.lines();
  const Floats lowest = splat(-kInfinity);
  Random random;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * lines / count;
    const size_t last = (i + 1) * lines / count;
    const Line line = Type::load(row.line(first + random.below(last - first)));
    store(values + i * kLine, larger(line.first, lowest));
    store(values + i * kLine + kLanes, larger(line.second, lowest));
  }
}

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

/// Pairs of lines, and the bits of their logits that were found.
struct Hits {
  uint64_t* bits;
  uint32_t* pairs;
  size_t count = 0;
};

/// Asks for two lines that will be read, perhaps behind the end of the row: often the next row.
template <typename Storage>
ASCEND_SAMPLE_INLINE void prefetch_pair(const Storage* data) {
  constexpr int kForReading = 0;
  constexpr int kIntoL2 = 2;
  const auto* bytes = reinterpret_cast<const char*>(data);
  for (size_t i = 0; i < 2 * kLine * sizeof(Storage); i += 64) {
    __builtin_prefetch(bytes + i, kForReading, kIntoL2);
  }
}

/// Finds the logits above `bound`. Returns their number. The census is that of a row without
/// groups.
template <typename Type, typename Census>
size_t hit_above(const Row<Type>& row, const Groups& groups, float bound, Hits& hits,
                 Census& census) {
  constexpr size_t kLinesAhead = 64;
  const Floats bounds = splat(bound);
  // Without a branch on a pair: fresh rows would mispredict it.
  size_t count = 0;
  size_t total = 0;
  const typename Type::Above above(bound);
  above.test([&](auto bits_of_pair) {
    const float* maxima = groups.maxima;
    const size_t step = groups.lines > 2 ? groups.lines : 2;
    for (size_t line = 0; line < row.lines(); line += step, maxima += kLine) {
      if (groups.lines > 1 && bits_of(is_greater(load_floats(maxima), bounds) |
                                      is_greater(load_floats(maxima + kLanes), bounds)) == 0) {
        continue;
      }
      const auto* data = row.line(line);
      for (size_t i = 0; i < step; i += 2) {
        if (groups.lines == 1) {  // the first to read the row
          prefetch_pair(data + kLinesAhead * kLine);
          census.add_pair(data + i * kLine);
        }
        const uint64_t bits = bits_of_pair(data + i * kLine);
        hits.bits[count] = bits;
        hits.pairs[count] = static_cast<uint32_t>((line + i) / 2);
        count += bits != 0;
        total += static_cast<size_t>(__builtin_popcountll(bits));
      }
    }
  });
  hits.count = count;
  return total;
}

template <typename Type>
size_t hit_above(const Row<Type>& row, const Groups& groups, float bound, Hits& hits) {
  NoCensus census;
  return hit_above(row, groups, bound, hits, census);
}

/// Appends the hits, by ascending id.
template <typename Type>
void append_hits(const Row<Type>& row, const Hits& hits, Candidates& candidates) {
  for (size_t i = 0; i < hits.count; ++i) {
    const size_t pair = hits.pairs[i];
    const auto* data = row.line(2 * pair);
    uint64_t bits = hits.bits[i];
    do {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      candidates.append(Type::value_of(data[place]), pair * 2 * kLine + place);
      bits &= bits - 1;
    } while (bits != 0);
  }
}

/// The values of the pairs that have hits, as far as they are above `bound`; up to whole lines.
/// Returns their number.
template <typename Type>
size_t copy_hit_values(const Row<Type>& row, const Hits& hits, float bound, float* values) {
  const Floats bounds = splat(bound);
  size_t count = 0;
  for (size_t i = 0; i < hits.count; ++i) {
    const auto* data = row.line(2 * hits.pairs[i]);
    for (const size_t line : {0, 1}) {
      const Line logits = Type::load(data + line * kLine);
      count += compress(values + count, is_greater(logits.first, bounds), logits.first);
      count += compress(values + count, is_greater(logits.second, bounds), logits.second);
    }
  }
  pad(values, count);
  return count;
}

/// The id of the logit with this rank among those equal to `value`, by ascending id.
template <typename Type>
size_t find_equal(const Row<Type>& row, float value, size_t rank) {
  const typename Type::Equal wanted(value);
  for (size_t line = 0; line < row.lines(); ++line) {
    uint32_t bits = wanted.bits(row.line(line));
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

/// Writes the row with `lowest` for everything but what is above `bound` and, by id, the first
/// `equals` of those equal to it.
template <typename Type>
void write_kept(const Row<Type>& row, float bound, size_t equals, float* kept,
                float lowest = -kInfinity) {
  const Floats bounds = splat(bound);
  const Floats lows = splat(lowest);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = kept + line * kLine;
    store(out, select(is_greater(logits.first, bounds), logits.first, lows));
    store(out + kLanes, select(is_greater(logits.second, bounds), logits.second, lows));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    kept[id] = row.value(id) > bound ? row.value(id) : lowest;
  }
  const typename Type::Equal equal(bound);
  for (size_t line = 0; equals != 0; ++line) {
    uint32_t bits = equal.bits(row.line(line));
    for (; bits != 0 && equals != 0; bits &= bits - 1, --equals) {
      const size_t id = line * kLine + static_cast<size_t>(__builtin_ctz(bits));
      kept[id] = row.value(id);
    }
  }
}

/// Copies the row, with `lowest` for what is not above it: also for NaN.
template <typename Type>
void copy_above(const Row<Type>& row, float lowest, float* out) {
  const Floats lows = splat(lowest);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    store(out + line * kLine, larger(logits.first, lows));
    store(out + line * kLine + kLanes, larger(logits.second, lows));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    out[id] = row.value(id) > lowest ? row.value(id) : lowest;
  }
}

/// Appends the first `count` logits, by ascending id, of those equal to `value`; there are as many.
template <typename Type>
void collect_equal(const Row<Type>& row, const Groups& groups, float value, size_t count,
                   Candidates& candidates) {
  const Floats values = splat(value);
  const typename Type::Equal equal(value);
  const float* maxima = groups.maxima;
  for (size_t line = 0; line < row.lines(); line += groups.lines, maxima += kLine) {
    if (bits_of(is_at_least(load_floats(maxima), values) |
                is_at_least(load_floats(maxima + kLanes), values)) == 0) {
      continue;
    }
    const auto* data = row.line(line);
    for (size_t i = 0; i < groups.lines; ++i) {
      uint32_t bits = equal.bits(data + i * kLine);
      for (; bits != 0; bits &= bits - 1) {
        const auto place = static_cast<size_t>(__builtin_ctz(bits));
        candidates.append(Type::value_of(data[i * kLine + place]), (line + i) * kLine + place);
        if (--count == 0) {
          return;
        }
      }
    }
  }
}

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

/// Sorts candidates from ascending ids into the total order, digit by digit of those bits in which
/// their values differ. `keys` and `others` have room for a number a candidate.
inline void sort_many(const Candidates& candidates, uint64_t* keys, uint64_t* others,
                      Candidates& sorted) {
  constexpr int kDigitBits = 8;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  constexpr int kMostDigits = 4;
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
  const uint32_t range = (static_cast<uint32_t>(highest) - static_cast<uint32_t>(lowest)) >> shift;
  const int digits = range == 0 ? 0 : (32 - __builtin_clz(range) + kDigitBits - 1) / kDigitBits;
  uint32_t places[kMostDigits][kDigits] = {};
  for (size_t i = 0; i < candidates.count; ++i) {
    const uint32_t key = (static_cast<uint32_t>(highest) -
                          static_cast<uint32_t>(ordinal_of(candidates.values[i]))) >>
                         shift;
    keys[i] = uint64_t{key} << 32 | i;
    for (int digit = 0; digit < digits; ++digit) {
      ++places[digit][(key >> (digit * kDigitBits)) % kDigits];
    }
  }
  for (int digit = 0; digit < digits; ++digit) {
    uint32_t place = 0;
    for (uint32_t& start : places[digit]) {
      const uint32_t count = start;
      start = place;
      place += count;
    }
    for (size_t i = 0; i < candidates.count; ++i) {
      others[places[digit][(keys[i] >> (32 + digit * kDigitBits)) % kDigits]++] = keys[i];
    }
    uint64_t* const swap = keys;
    keys = others;
    others = swap;
  }
  for (size_t i = 0; i < candidates.count; ++i) {
    const auto from = static_cast<uint32_t>(keys[i]);
    sorted.values[i] = candidates.values[from];
    sorted.ids[i] = candidates.ids[from];
  }
  sorted.count = candidates.count;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
