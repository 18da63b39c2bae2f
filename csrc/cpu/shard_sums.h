// What the logprobs of a row are made of where this is a part of it: docs/vocabulary_parallel.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/each_row.h"
#include "cpu/rows/entropy.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/scan.h"
#include "cpu/shard_calls.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
void sum_chunks_of_row(const Row<Type>& row, const ChunksCall& call, int64_t index,
                       Workspace& work) {
  const Groups groups{kChunkLines, work.maxima};
  if (call.distances.empty()) {
    scan_sum<kBlockLines>(row, groups, work.chunk_sums);
  } else {
    scan_distances(row, groups, work.chunk_sums);
    std::copy_n(work.chunk_sums.distances, row.chunks(),
                call.distances.data() + index * call.chunks);
  }
  float* const maxima = call.maxima + index * call.chunks;
  double* const sums = call.sums + index * call.chunks;
  std::copy_n(work.chunk_sums.maxima, row.chunks(), maxima);
  std::copy_n(work.chunk_sums.sums, row.chunks(), sums);
  for (size_t chunk = 0; chunk < row.chunks(); ++chunk) {
    if (maxima[chunk] == kInfinity) {
      const size_t first = chunk * kChunk;
      const size_t end = std::min(first + kChunk, row.vocab_size());
      sums[chunk] = 0;
      for (size_t id = first; id < end; ++id) {
        sums[chunk] += row.value(id) == kInfinity ? 1 : 0;
      }
    }
  }
}

inline void sum_chunks(const ChunksCall& call, int64_t first_row, int64_t last_row,
                       Scratch& scratch) {
  for_rows(call.logits, call.rows, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             sum_chunks_of_row(row, call, index, work);
           });
}

/// As Numbers (filters/best_tokens.h) has it of a row that is not split.
inline void add_sums(const LogSumCall& call, int64_t first_row, int64_t last_row,
                     Scratch& scratch) {
  const auto count = static_cast<size_t>(call.chunks);
  auto* const exponentials =
      reinterpret_cast<double*>(scratch.reserve(Scratch::kLogits, count * sizeof(double)));
  for (int64_t index = first_row; index < last_row; ++index) {
    const int64_t first = index * call.chunks;
    const float* const maxima = call.maxima + first;
    RowSum row_sum{*std::max_element(maxima, maxima + count), 0};
    double log_sum = 0;
    float entropy = 0;
    if (row_sum.maximum > -kInfinity) {
      row_sum.sum = add_chunks(maxima, call.sums + first, count, row_sum.maximum, exponentials);
      log_sum = std::log(row_sum.sum);
      if (!call.distances.empty()) {
        entropy = entropy_of(maxima, call.distances.data() + first, exponentials, count, row_sum,
                             log_sum);
      }
    }
    call.maximum[index] = row_sum.maximum;
    call.log_sum[index] = log_sum;
    if (!call.distances.empty()) {
      call.entropies[index] = entropy;
    }
  }
}

inline void count_above(const AboveCall& call, int64_t first_row, int64_t last_row,
                        Scratch& scratch) {
  for_rows(call.logits, call.rows, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             call.counts[index] = static_cast<int64_t>(
                 hit_above(row, Groups{1, work.maxima}, call.bounds[index], work.hits));
           });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
