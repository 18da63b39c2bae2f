// The standard deviation of a row's values, each counted once.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/rows/row.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is told of values by their differences from a center.
struct Moments {
  double count = 0;
  double total = 0;
  double squares = 0;

  Moments& operator+=(const Moments& other) {
    count += other.count;
    total += other.total;
    squares += other.squares;
    return *this;
  }

  double mean() const { return total / count; }
  double deviation() const { return std::sqrt(std::max(0.0, squares / count - mean() * mean())); }
};

/// The moments of the values above -inf in a chunk, added up in float32; where all have to be
/// there, they mean nothing if some are not. Where float32 is too small for the squares, their sum
/// is infinite. `for_lines` calls what it is given with each line.
template <bool kAreAllThere, typename ForLines>
ASCEND_SAMPLE_INLINE Moments moments_of_lines(float center, ForLines for_lines) {
  const Floats centers = splat(center);
  struct Sums {
    Floats counts{};
    Floats totals{};
    Floats squares{};
  };
  Sums first;  // two, so that one need not wait for the other
  Sums second;
  const auto add = [&centers](const Floats& values, Sums& sums) {
    Floats difference = values - centers;
    if constexpr (!kAreAllThere) {
      const Mask is_there = is_greater(values, splat(-kInfinity));  // NaN is not
      difference = select(is_there, difference, Floats{});
      sums.counts = sums.counts + select(is_there, splat(1.0F), Floats{});
    }
    sums.totals = added(difference, sums.totals);
    sums.squares = fused(difference, difference, sums.squares);
  };
  for_lines([&](const Line& logits) {
    add(logits.first, first);
    add(logits.second, second);
  });
  return {kAreAllThere ? double{kChunk} : sum_lanes(first.counts + second.counts),
          sum_lanes(first.totals + second.totals), sum_lanes(first.squares + second.squares)};
}

template <typename Type, bool kAreAllThere>
Moments moments_of_chunk(const typename Type::Storage* chunk, float center) {
  return moments_of_lines<kAreAllThere>(center, [chunk](auto add) {
#pragma GCC unroll 4
    for (size_t line = 0; line < kChunkLines; ++line) {
      prefetch_ahead(chunk + line * kLine);
      add(Type::load_unordered(chunk + line * kLine));
    }
  });
}

/// Those of some first chunks.
template <typename Type>
Moments moments_of(const Row<Type>& row, size_t chunks, float center) {
  Moments result;
  for (size_t index = 0; index < chunks; ++index) {
    result += moments_of_chunk<Type, false>(row.chunk(index), center);
  }
  return result;
}

/// The same in float64, which is slow.
template <typename Type>
Moments exact_moments_of(const Row<Type>& row, float center) {
  Moments result;
  for (size_t id = 0; id < row.vocab_size(); ++id) {
    const float value = row.value(id);
    if (value > -kInfinity) {
      const double difference = double{value} - double{center};
      result.count += 1;
      result.total += difference;
      result.squares += difference * difference;
    }
  }
  return result;
}

/// Of the values above -inf, of which the largest is finite. They are looked at from the mean of
/// the first chunk, so that squares are not much larger than what is looked for.
template <typename Type>
double deviation_of(const Row<Type>& row, float maximum) {
  const Moments first = moments_of(row, 1, maximum);
  const auto center = static_cast<float>(double{maximum} + first.mean());
  const bool is_near = center > -kInfinity && center < kInfinity;  // not NaN, of no values
  const Moments found = moments_of(row, row.chunks(), is_near ? center : maximum);
  return found.squares < double{kInfinity} ? found.deviation()
                                           : exact_moments_of(row, maximum).deviation();
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
