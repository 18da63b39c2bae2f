// The rows of a call, one after the other: of the type that they have, side by side in memory.
#pragma once

#include <span>

#include "cpu/calls.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/row.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Reserves the arrays that every row may need.
inline void make_room(size_t vocab_size, Workspace& work) {
  const size_t chunks = (vocab_size + kChunk - 1) / kChunk;
  const size_t padded = chunks * kChunk;
  const size_t pairs = padded / kLine / 2 + 1;
  work.last_chunk.reserve<float>(kChunk);
  work.chunk_sums.maxima.reserve(chunks);
  work.chunk_sums.sums.reserve(chunks);
  work.chunk_sums.distances.reserve(chunks);
  work.chunk_sums.exponentials.reserve(chunks);
  work.maxima.reserve(padded);
  work.folded_maxima.reserve(padded / 2 + kLine);
  work.hits.bits.reserve(pairs);
  work.hits.pairs.reserve(pairs);
  work.values.reserve(padded + kChunk);
  work.ids.reserve(padded + kChunk);
  work.weights.reserve(padded + kChunk);
  work.exponents.reserve(padded + kChunk);
  for (const size_t i : {0, 1}) {
    work.room_values[i].reserve(padded + kChunk);
    work.room_weights[i].reserve(padded + kChunk);
  }
  work.sample_values.reserve(kSampleLines * kLine);
  work.sample_weights.reserve(kSampleLines * kLine);
  work.inside_values.reserve(kSampleLines * kLine + kLine);
  work.inside_weights.reserve(kSampleLines * kLine + kLine);
  work.sorted_values.reserve(kMostSorted + kLine);
  work.sorted_ids.reserve(kMostSorted + kLine);
  work.keys.reserve(kMostSorted);
  work.other_keys.reserve(kMostSorted);
  work.exponentials.reserve(kChunk);
  work.scores.reserve(kChunk);
  work.last_noise.reserve(kLine);
  work.noise_minima.reserve(chunks + 1);
  work.segment_noise.reserve(padded / kSegment + kLanes);
  work.segment_scores.reserve(padded / kSegment + kLine);
}

/// Calls `function` with a number of the type.
template <typename Function>
void for_type(LogitsType type, Function function) {
  switch (type) {
    case LogitsType::kFloat32:
      return function(Float32{});
    case LogitsType::kFloat16:
      return function(Float16{});
    case LogitsType::kBFloat16:
      return function(BFloat16{});
  }
}

/// Where among the logits a row of a call is; without `rows` where the call has it.
inline int64_t place_in(std::span<const int64_t> rows, int64_t index) {
  return rows.empty() ? index : rows[static_cast<size_t>(index)];
}

/// Calls `function` with each row and its index in the call.
template <typename Function>
void for_rows(const Logits& logits, std::span<const int64_t> rows, int64_t first_row,
              int64_t last_row, Workspace& work, Function function) {
  for_type(logits.type, [&]<typename Type>(Type) {
    using Storage = typename Type::Storage;
    const auto vocab_size = static_cast<size_t>(logits.vocab_size);
    make_room(vocab_size, work);
    for (int64_t index = first_row; index < last_row; ++index) {
      const Storage* data =
          static_cast<const Storage*>(logits.data) + place_in(rows, index) * logits.row_stride;
      if (logits.column_stride != 1) {
        auto* const copy = work.strided.reserve<Storage>(vocab_size);
        for (size_t id = 0; id < vocab_size; ++id) {
          copy[id] = data[static_cast<int64_t>(id) * logits.column_stride];
        }
        data = copy;
      }
      function(Row<Type>(data, vocab_size, work.last_chunk.as<Storage>()), index);
    }
  });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
