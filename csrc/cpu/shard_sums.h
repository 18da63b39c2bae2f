// What the logprobs of a row are made of where this is a part of it: docs/vocabulary_parallel.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/each_row.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/scan.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
void sum_chunks_of_row(const Row<Type>& row, const ChunksCall& call, int64_t index,
                       Workspace& work) {
  scan_sum(row, Groups{kChunkLines, work.maxima}, work.chunk_sums);
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
    const float* const maxima = call.maxima + index * call.chunks;
    const float maximum = *std::max_element(maxima, maxima + count);
    call.maximum[index] = maximum;
    call.log_sum[index] = maximum == -kInfinity
                              ? 0.0
                              : std::log(add_chunks(maxima, call.sums + index * call.chunks, count,
                                                    maximum, exponentials));
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
