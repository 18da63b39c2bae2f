// The one pass over a row: its maximum, the maxima of groups of its logits, and its softmax's sum.
#pragma once

#include "exponential.h"
#include "logits.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Maxima of groups of logits. A group is one lane of `lines` lines that follow one another, so
/// that neighbours, which a sorted row puts side by side, fall into different groups.
struct Groups {
  size_t lines;   // a divisor of kChunkLines
  float* maxima;  // kLine for each block of so many lines, from the first block to the last

  size_t blocks_in_chunk() const { return kChunkLines / lines; }
};

/// One number a chunk for each.
struct ChunkSums {
  float* maxima;
  double* sums;
  double* exponentials;
};

/// Fills the maxima of a chunk's groups. Returns the chunk's maximum; NaN counts as -inf.
template <typename Type>
ASCEND_SAMPLE_INLINE Floats scan_chunk(const typename Type::Storage* chunk, const Groups& groups,
                                       float* maxima) {
  Floats largest = splat(-kInfinity);
  for (size_t line = 0; line < kChunkLines; line += groups.lines) {
    const Line block = Type::maxima(chunk + line * kLine, groups.lines, maxima);
    maxima += kLine;
    largest = larger(largest, larger(block.first, block.second));
  }
  return largest;
}

/// Fills groups.maxima and returns the row's maximum.
template <typename Type>
float scan_maxima(const Row<Type>& row, const Groups& groups) {
  float* maxima = groups.maxima;
  Floats largest = splat(-kInfinity);
  for (size_t index = 0; index < row.chunks(); ++index) {
    largest = larger(largest, scan_chunk<Type>(row.chunk(index), groups, maxima));
    maxima += groups.blocks_in_chunk() * kLine;
  }
  return largest_lane(largest);
}

/// What a softmax needs of a row.
struct RowSum {
  float maximum;
  double sum;  // of exp(logit - maximum)
};

/// The sum of exp(logit - reference) over a chunk, the reference being its maximum.
template <typename Type>
ASCEND_SAMPLE_INLINE double sum_exponentials(const typename Type::Storage* chunk, float reference) {
  const Floats shift = splat(reference);
  const auto sum_with = [&](auto prepare) {
    Floats first{};
    Floats second{};
    for (size_t line = 0; line < kChunkLines; ++line) {
      const Line logits = Type::load_unordered(chunk + line * kLine);
      first = first + exp_not_positive(prepare(logits.first) - shift);
      second = second + exp_not_positive(prepare(logits.second) - shift);
    }
    return sum_lanes(first + second);
  };
  const double sum = sum_with([](const Floats& logits) { return logits; });
  if (sum == sum) [[likely]] {
    return sum;
  }
  const Floats lowest = splat(-kInfinity);  // what a NaN becomes
  return sum_with([&](const Floats& logits) { return larger(logits, lowest); });
}

/// Fills groups.maxima, and adds up the exponentials in the same pass. Every chunk is summed
/// relative to its own maximum, in a fixed order, so that the result is a function of the row
/// alone. The sum means nothing for a row with +inf.
template <typename Type>
RowSum scan_sum(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks) {
  float* maxima = groups.maxima;
  Floats largest = splat(-kInfinity);
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    const Floats chunk_largest = scan_chunk<Type>(chunk, groups, maxima);
    maxima += groups.blocks_in_chunk() * kLine;
    largest = larger(largest, chunk_largest);
    const float reference = largest_lane(chunk_largest);
    chunks.maxima[index] = reference;
    chunks.sums[index] = reference == -kInfinity ? 0.0 : sum_exponentials<Type>(chunk, reference);
  }
  const float maximum = largest_lane(largest);
  exp_differences(chunks.maxima, row.chunks(), maximum, chunks.exponentials);
  for (size_t index = 0; index < row.chunks(); ++index) {
    chunks.exponentials[index] *= chunks.sums[index];
  }
  return {maximum, sum(chunks.exponentials, row.chunks())};
}

/// exp(x) within the factors below, in five operations: the bits of x log2(e), taken as the
/// exponent and mantissa of a float, interpolate 2^t between whole t.
ASCEND_SAMPLE_INLINE Floats rough_exp(const Floats& x) {
  // The sum lies in [2^15, 2^16), so its last bit counts 2^-8; 127 is the bias of the exponent.
  constexpr float kShift = 49152.0F + 127.0F;
  const Floats limited = larger(x, splat(-80.0F));  // -80 for NaN too
  const Floats shifted = fused(limited, splat(0x1.715476p+0F), splat(kShift));
  return floats_of(shift_left<15>(bits_of(shifted)));
}

/// rough_exp(x) / exp(x) is at most 1.0615 (the chord over the curve, at t = 0.53), at least 1,
/// and rounding t to 2^-8 adds a factor of 1.0014 either way.
inline constexpr double kRoughMost = 1.063;
inline constexpr double kRoughLeast = 0.998;
/// The rows whose rough sum means anything: their exponentials stay far from float32's limits.
inline constexpr float kRoughLowestMaximum = -40.0F;
inline constexpr float kRoughHighestMaximum = 60.0F;

/// A row's maximum, and the sum of rough_exp(logit).
struct RoughSum {
  float maximum;
  double sum;
};

/// Fills groups.maxima, and adds up rough exponentials in the same pass.
template <typename Type>
RoughSum scan_rough_sum(const Row<Type>& row, const Groups& groups) {
  float* maxima = groups.maxima;
  Floats largest = splat(-kInfinity);
  Floats sums[2] = {};
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    Floats chunk_sums[2] = {};
    for (size_t block = 0; block < kChunkLines; block += groups.lines) {
      Floats first = splat(-kInfinity);
      Floats second = first;
      for (size_t line = 0; line < groups.lines; ++line) {
        const Line logits = Type::load_unordered(chunk + (block + line) * kLine);
        first = larger(logits.first, first);
        second = larger(logits.second, second);
        chunk_sums[0] = chunk_sums[0] + rough_exp(logits.first);
        chunk_sums[1] = chunk_sums[1] + rough_exp(logits.second);
      }
      store(maxima, first);
      store(maxima + kLanes, second);
      maxima += kLine;
      largest = larger(largest, larger(first, second));
    }
    sums[0] = sums[0] + chunk_sums[0];
    sums[1] = sums[1] + chunk_sums[1];
  }
  return {largest_lane(largest), sum_lanes(sums[0]) + sum_lanes(sums[1])};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
