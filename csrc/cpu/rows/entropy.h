// The entropy of a row's softmax, from the chunks that its sum is made of.
#pragma once

#include <algorithm>

#include "cpu/rows/row.h"
#include "cpu/rows/scan.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The sum of a chunk's weights, as sum_exponentials has it by blocks, and how far its logits are
/// below its maximum: the mean, by weight.
struct WeighedChunk {
  double sum;
  float distance;
};

/// Of a chunk whose maximum is the reference. A weight below exp(kLeastLogWeight) is as large as
/// that, here alone, so that products are those of every instruction set; NaN has it too.
template <typename Type>
ASCEND_SAMPLE_INLINE WeighedChunk weigh_chunk(const typename Type::Storage* chunk,
                                              float reference) {
  const Floats shift = splat(reference);
  Line sums{};
  Line products{};
  for (size_t block = 0; block < kChunkLines; block += kBlockLines) {
    Line weights{};
    Line of_block{};
    const auto add = [&](const Floats& logits, Floats& weight, Floats& product) {
      const Floats difference = larger(logits - shift, splat(kLeastLogWeight));
      const Floats exponential = exp_not_positive(difference);
      weight = weight + exponential;
      product = fused(exponential, difference, product);
    };
    for (size_t line = block; line < block + kBlockLines; ++line) {
      prefetch_ahead(chunk + line * kLine);
      const Line logits = Type::load_unordered(chunk + line * kLine);
      add(logits.first, weights.first, of_block.first);
      add(logits.second, weights.second, of_block.second);
    }
    sums = {sums.first + weights.first, sums.second + weights.second};
    products = {products.first + of_block.first, products.second + of_block.second};
  }
  const double sum = sum_lanes(sums.first + sums.second);
  const double product = -sum_lanes(products.first + products.second);
  return {sum, static_cast<float>(product / sum)};
}

/// scan_sum by blocks, with the same bits, which fills the distances too: 0 for chunks without any
/// weight.
template <typename Type>
RowSum scan_distances(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks) {
  std::fill_n(chunks.distances, row.chunks(), 0.0F);
  return scan_sum(row, groups, chunks,
                  [&](const typename Type::Storage* chunk, float reference, size_t index) {
                    const WeighedChunk weighed = weigh_chunk<Type>(chunk, reference);
                    chunks.distances[index] = weighed.distance;
                    return weighed.sum;
                  });
}

/// The entropy of a row in nats: the logarithm of its sum, and the mean distance from its maximum.
/// `added` is what add_chunks has left, `row_sum` what it has returned; 0 for a row of -inf.
inline float entropy_of(const float* maxima, const float* distances, const double* added,
                        size_t count, const RowSum& row_sum, double log_sum) {
  constexpr double kNothing = 1e-29;   // of the mean: what 2^20 weights of -inf may add to it
  if (row_sum.maximum == kInfinity) {  // its entries share the mass
    return static_cast<float>(log_sum);
  }
  double total = 0;
  for (size_t index = 0; index < count; ++index) {
    if (added[index] > 0) {
      total += added[index] * (double{row_sum.maximum} - maxima[index] + distances[index]);
    }
  }
  const double mean = total > 0 ? total / row_sum.sum : 0.0;
  return static_cast<float>(mean < kNothing ? log_sum : log_sum + mean);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
