// The logits of a row that a pass looks for: above a value, or equal to one.
#pragma once

#include "cpu/rows/row.h"
#include "cpu/vectors/total_order.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

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

/// Of a row from which nothing is left out.
struct AllOfPair {
  uint64_t operator()(size_t) const { return ~uint64_t{0}; }
};

/// Finds the logits above `bound`, as far as `bits_left` has their bits: those of two lines by the
/// first one's number. Returns their number.
template <typename Type, typename BitsLeft>
size_t hit_above(const Row<Type>& row, const Groups& groups, float bound, Hits& hits,
                 BitsLeft bits_left) {
  const Floats bounds = splat(bound);
  // Without a branch on a pair: fresh rows would mispredict it.
  const Row<Type> own_row = row;  // copies, as in scan_maxima
  const Groups own_groups = groups;
  uint64_t* const found_bits = hits.bits;
  uint32_t* const found_pairs = hits.pairs;
  size_t count = 0;
  size_t total = 0;
  const typename Type::Above above(bound);
  above.test([&](auto bits_of_pair) {
    const float* maxima = own_groups.maxima;
    const size_t step = own_groups.lines > 2 ? own_groups.lines : 2;
    for (size_t line = 0; line < own_row.lines(); line += step, maxima += kLine) {
      if (own_groups.lines > 1 && bits_of(is_greater(load_floats(maxima), bounds) |
                                          is_greater(load_floats(maxima + kLanes), bounds)) == 0) {
        continue;
      }
      const auto* data = own_row.line(line);
      for (size_t i = 0; i < step; i += 2) {
        if (own_groups.lines == 1) {  // the first to read the row
          prefetch_ahead(data, 2);
        }
        const uint64_t bits = bits_of_pair(data + i * kLine) & bits_left(line + i);
        found_bits[count] = bits;
        found_pairs[count] = static_cast<uint32_t>((line + i) / 2);
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
  return hit_above(row, groups, bound, hits, AllOfPair());
}

/// Appends the hits, by ascending id.
template <typename Type>
void append_hits(const Row<Type>& row, const Hits& hits, Candidates& candidates) {
  for (size_t i = 0; i < hits.count; ++i) {
    const size_t pair = hits.pairs[i];
    const auto* data = row.line(2 * pair);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      candidates.append(Type::value_of(data[place]), pair * 2 * kLine + place);
    }
  }
}

/// The values of the hits, by ascending id, with -inf behind them up to whole lines. Returns their
/// number. There is room for a line more.
template <typename Type>
size_t copy_hit_values(const Row<Type>& row, const Hits& hits, float* values) {
  // So many at a time, be there fewer: how many a pair has cannot be predicted.
  constexpr size_t kStep = 4;
  constexpr uint64_t kLast = uint64_t{1} << 63;
  size_t count = 0;
  for (size_t i = 0; i < hits.count; ++i) {
    const auto* data = row.line(2 * hits.pairs[i]);
    uint64_t bits = hits.bits[i];
    const size_t end = count + static_cast<size_t>(__builtin_popcountll(bits));
    for (; count < end; count += kStep) {
#pragma GCC unroll 4
      for (size_t place = count; place < count + kStep; ++place, bits &= bits - 1) {
        values[place] = Type::value_of(data[__builtin_ctzll(bits | kLast)]);
      }
    }
    count = end;
  }
  pad(values, count);
  return count;
}

/// A bit of a sequence of words.
struct BitPlace {
  size_t word;
  size_t bit;
};

/// The set bit with this rank, which there is; `bits_of` gives the words.
template <typename BitsOf>
BitPlace find_bit(size_t rank, BitsOf bits_of) {
  for (size_t word = 0;; ++word) {
    uint64_t bits = bits_of(word);
    const auto count = static_cast<size_t>(__builtin_popcountll(bits));
    if (rank >= count) {
      rank -= count;
      continue;
    }
    for (; rank != 0; --rank) {
      bits &= bits - 1;
    }
    return {word, static_cast<size_t>(__builtin_ctzll(bits))};
  }
}

/// The id of the logit with this rank among those equal to `value`, by ascending id. The value was
/// counted in this row, whose groups were scanned, or have one line each.
template <typename Type>
size_t find_equal(const Row<Type>& row, float value, size_t rank,
                  const Groups& groups = {1, nullptr}) {
  const Floats values = splat(value);
  const typename Type::Equal wanted(value);
  const float* maxima = groups.maxima;
  for (size_t first = 0;; first += groups.lines, maxima += kLine) {
    if (groups.lines > 1 && bits_of(is_at_least(load_floats(maxima), values) |
                                    is_at_least(load_floats(maxima + kLanes), values)) == 0) {
      continue;
    }
    for (size_t line = first; line < first + groups.lines; ++line) {
      const uint32_t bits = wanted.bits(row.line(line));
      const auto count = static_cast<size_t>(__builtin_popcount(bits));
      if (rank < count) {
        return line * kLine + find_bit(rank, [bits](size_t) { return uint64_t{bits}; }).bit;
      }
      rank -= count;
    }
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

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
