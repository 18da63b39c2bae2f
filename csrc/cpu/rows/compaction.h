// Rows of which a mask has left little: what is above -inf, gathered in one pass, is sampled alone.
//
// The result is that of the whole row, bit for bit: nothing else enters an order, a draw or a sum.
// A sum over whole chunks would round otherwise, so where one decides, the whole row is sampled.
#pragma once

#include <optional>

#include "cpu/rows/formats.h"
#include "cpu/rows/row.h"
#include "cpu/rows/status.h"
#include "cpu/rows/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Bit i: logit i of a line is above -inf.
ASCEND_SAMPLE_INLINE uint32_t bits_above_lowest(const Line& line) {
  const Floats lowest = splat(-kInfinity);
  return bits_of(is_greater(line.first, lowest)) | bits_of(is_greater(line.second, lowest))
                                                       << kLanes;
}

/// Whether most of the row seems to be -inf or NaN. A row that is not masked is known by its first
/// lines: it is not delayed.
template <typename Type>
bool seems_masked(const Row<Type>& row) {
  constexpr size_t kLooks = 16;
  constexpr size_t kMostDense = 2;  // so that one stretch of an eighth of the row is one of little
  constexpr int kMostOfLine = 4;
  const size_t lines = row.lines();
  if (lines < 2 * kLooks) {
    return false;
  }
  size_t dense = 0;
  for (size_t look = 0; look < kLooks && dense <= kMostDense; ++look) {
    const uint32_t bits = bits_above_lowest(Type::load(row.line(look * lines / kLooks)));
    dense += __builtin_popcount(bits) > kMostOfLine;
  }
  return dense <= kMostDense;
}

/// What is above -inf, by ascending id, and what was seen in the row.
template <typename Type>
struct CompactedRow {
  const typename Type::Storage* logits;
  const uint32_t* ids;
  size_t count;  // perhaps 0
  RowStatus status;
};

/// Finds what is above -inf, and notices what else there is. Returns its number, or the number so
/// far where that is more than `most` already.
template <typename Type, typename Status>
ASCEND_SAMPLE_INLINE size_t hit_all(const Row<Type>& row, size_t most, float* maxima, Hits& hits,
                                    Status& seen) {
  constexpr size_t kLines = 4;  // that are passed over at once
  size_t count = 0;
  hits.count = 0;
  for (size_t index = 0; index < row.chunks() && count <= most; ++index) {
    const auto* const chunk = row.chunk(index);
    for (size_t start = 0; start < kChunkLines; start += kLines) {
      const auto* const block = chunk + start * kLine;
      prefetch_ahead(block, kLines);
      const auto raw_line = [block](size_t line) { return Type::load_raw(block + line * kLine); };
      if (bits_above_lowest(Type::maxima(raw_line, kLines, maxima, seen)) == 0) {
        continue;
      }
      for (size_t line = 0; line < kLines; line += 2) {  // without a branch on a pair, as hit_above
        const auto* const pair = block + line * kLine;
        const uint64_t bits = bits_above_lowest(Type::load(pair)) |
                              uint64_t{bits_above_lowest(Type::load(pair + kLine))} << kLine;
        hits.bits[hits.count] = bits;
        hits.pairs[hits.count] = static_cast<uint32_t>((index * kChunkLines + start + line) / 2);
        hits.count += bits != 0;
        count += static_cast<size_t>(__builtin_popcountll(bits));
      }
    }
  }
  return count;
}

/// None where that is not little.
template <typename Type>
std::optional<CompactedRow<Type>> compact(const Row<Type>& row, Workspace& work) {
  using Storage = typename Type::Storage;
  if (!seems_masked(row)) {
    return std::nullopt;
  }
  const size_t most = row.vocab_size() / Workspace::kCompactedPart;
  StatusOf<Type> seen;
  const size_t count = hit_all(row, most, work.maxima, work.hits, seen);
  if (count > most) {
    return std::nullopt;
  }
  auto* const logits = reinterpret_cast<Storage*>(work.compacted);
  size_t gathered = 0;
  for (size_t i = 0; i < work.hits.count; ++i) {
    const size_t pair = work.hits.pairs[i];
    const Storage* const data = row.line(2 * pair);
    uint64_t bits = work.hits.bits[i];
    do {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      logits[gathered] = data[place];
      work.compacted_ids[gathered++] = static_cast<uint32_t>(pair * 2 * kLine + place);
      bits &= bits - 1;
    } while (bits != 0);
  }
  return CompactedRow<Type>{logits, work.compacted_ids, count, seen.status()};
}

/// The row with 0 for +inf and -inf for everything else: what is left where a softmax gives the
/// whole mass to the entries of +inf.
template <typename Type>
Row<Float32> infinities_of(const Row<Type>& row, Scratch& scratch, Workspace& work,
                           Scratch::Slot slot = Scratch::kCopy) {
  auto* values = reinterpret_cast<float*>(scratch.reserve(slot, row.vocab_size() * sizeof(float)));
  const Floats infinity = splat(kInfinity);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = values + line * kLine;
    store(out, select(is_equal(logits.first, infinity), Floats{}, splat(-kInfinity)));
    store(out + kLanes, select(is_equal(logits.second, infinity), Floats{}, splat(-kInfinity)));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    values[id] = row.value(id) == kInfinity ? 0.0F : -kInfinity;
  }
  return {values, row.vocab_size(), work.last_chunk_of_copy};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
