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

/// What a softmax needs of a row.
struct RowSum {
  float maximum;  // NaN counts as -inf
  double sum;     // of exp(logit - maximum)
};

/// One number a chunk for each.
struct ChunkSums {
  float* maxima;
  double* sums;
  double* exponentials;
};

/// The sum of exp(logit - reference) over a chunk.
template <typename Type>
ASCEND_SAMPLE_INLINE double sum_exponentials(const typename Type::Storage* chunk, float reference) {
  const Floats shift = splat(reference);
  Floats first{};
  Floats second{};
  for (size_t line = 0; line < kChunkLines; ++line) {
    const Line logits = Type::load_unordered(chunk + line * kLine);
    first = first + exp_not_positive(logits.first - shift);
    second = second + exp_not_positive(logits.second - shift);
  }
  return sum_lanes(first) + sum_lanes(second);
}

/// Fills groups.maxima; with kWithSum also adds up the exponentials (else the sum is 0). Every
/// chunk is summed relative to its own maximum, in a fixed order, so that the result is a function
/// of the row alone. The sum means nothing for a row with +inf.
template <bool kWithSum, typename Type>
RowSum scan(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks) {
  float* out = groups.maxima;
  Floats row_largest = splat(-kInfinity);
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    Floats chunk_largest = splat(-kInfinity);
    for (size_t block = 0; block < kChunkLines; block += groups.lines) {
      Floats first = splat(-kInfinity);
      Floats second = first;
      for (size_t line = 0; line < groups.lines; ++line) {
        const Line logits = Type::load_unordered(chunk + (block + line) * kLine);
        first = larger(logits.first, first);
        second = larger(logits.second, second);
      }
      store(out, first);
      store(out + kLanes, second);
      out += kLine;
      chunk_largest = larger(chunk_largest, larger(first, second));
    }
    row_largest = larger(row_largest, chunk_largest);
    if constexpr (kWithSum) {
      const float reference = largest_lane(chunk_largest);
      chunks.maxima[index] = reference;
      chunks.sums[index] =
          reference == -kInfinity ? 0.0 : sum_exponentials<Type>(chunk, reference);
    }
  }
  RowSum result{largest_lane(row_largest), 0.0};
  if constexpr (kWithSum) {
    exp_differences(chunks.maxima, row.chunks(), result.maximum, chunks.exponentials);
    for (size_t index = 0; index < row.chunks(); ++index) {
      chunks.exponentials[index] *= chunks.sums[index];
    }
    result.sum = sum(chunks.exponentials, row.chunks());
  }
  return result;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
