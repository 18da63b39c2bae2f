// The rows of a call, one after the other: of the type that they have, side by side in memory.
#pragma once

#include <span>

#include "cpu/calls.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/row.h"
#include "cpu/rows/workspace.h"
#include "cpu/scratch.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

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

/// Calls `function` with each row, its index in the call, and the thread's memory.
template <typename Function>
void for_rows(const Logits& logits, std::span<const int64_t> rows, int64_t first_row,
              int64_t last_row, Scratch& scratch, Function function) {
  for_type(logits.type, [&]<typename Type>(Type) {
    using Storage = typename Type::Storage;
    const auto vocab_size = static_cast<size_t>(logits.vocab_size);
    Workspace work(scratch, vocab_size);
    for (int64_t index = first_row; index < last_row; ++index) {
      const Storage* data =
          static_cast<const Storage*>(logits.data) + place_in(rows, index) * logits.row_stride;
      if (logits.column_stride != 1) {
        auto* copy = reinterpret_cast<Storage*>(
            scratch.reserve(Scratch::kLogits, vocab_size * sizeof(Storage)));
        for (size_t id = 0; id < vocab_size; ++id) {
          copy[id] = data[static_cast<int64_t>(id) * logits.column_stride];
        }
        data = copy;
      }
      function(Row<Type>(data, vocab_size, reinterpret_cast<Storage*>(work.last_chunk)), index,
               work);
    }
  });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
