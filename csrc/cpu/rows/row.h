// Rows cut into lines and chunks, and what a pass over one leaves behind.
#pragma once

#include <cstring>

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline constexpr size_t kChunkLines = 32;  // lines
inline constexpr size_t kChunk = kLine * kChunkLines;
inline constexpr size_t kSegment = 256;  // ids of a segment of the vocabulary: docs/seeds.md
inline constexpr size_t kSegmentLines = kSegment / kLine;

/// A contiguous row that can be read in whole chunks: the last one is filled up with -inf, in a
/// copy where behind the row there is no room.
template <typename Type>
class Row {
 public:
  using Storage = typename Type::Storage;

  /// `last_chunk` has room for kChunk logits.
  Row(const Storage* logits, size_t vocab_size, Storage* last_chunk)
      : logits_(logits), vocab_size_(vocab_size), last_chunk_(logits) {
    const size_t whole = vocab_size / kChunk;
    if (const size_t rest = vocab_size % kChunk; rest != 0) {
      std::memcpy(last_chunk, logits + whole * kChunk, rest * sizeof(Storage));
      for (size_t i = rest; i < kChunk; ++i) {
        last_chunk[i] = Type::kMinusInfinity;
      }
      last_chunk_ = last_chunk;
    } else {
      last_chunk_ = logits + (whole - 1) * kChunk;
    }
  }

  /// `logits` has room for whole chunks.
  Row(Storage* logits, size_t vocab_size)
      : logits_(logits), vocab_size_(vocab_size), last_chunk_(logits + (chunks() - 1) * kChunk) {
    for (size_t id = vocab_size; id < padded(); ++id) {
      logits[id] = Type::kMinusInfinity;
    }
  }

  size_t vocab_size() const { return vocab_size_; }
  size_t chunks() const { return (vocab_size_ + kChunk - 1) / kChunk; }
  size_t lines() const { return (vocab_size_ + kLine - 1) / kLine; }
  size_t padded() const { return chunks() * kChunk; }  // logits of whole chunks

  const Storage* chunk(size_t index) const {
    return index + 1 < chunks() ? logits_ + index * kChunk : last_chunk_;
  }
  const Storage* line(size_t index) const {
    return chunk(index / kChunkLines) + (index % kChunkLines) * kLine;
  }

  /// NaN counts as -inf.
  float value(size_t id) const {
    const float value = Type::value_of(logits_[id]);
    return value == value ? value : -kInfinity;
  }

 private:
  const Storage* logits_;
  size_t vocab_size_;
  const Storage* last_chunk_;
};

/// Asks for some lines of logits, or of noise, which may lie behind what they belong to.
template <typename Number>
ASCEND_SAMPLE_INLINE void prefetch_lines(const Number* data, size_t count = 1) {
  const auto* bytes = reinterpret_cast<const char*>(data);
  for (size_t i = 0; i < count * kLine * sizeof(Number); i += 64) {
    __builtin_prefetch(bytes + i);
  }
}

/// How far ahead of itself a pass asks for lines: a part of what the nearest cache holds, and far
/// enough for memory to answer.
template <typename Number>
inline constexpr size_t kLinesAhead = 12288 / (kLine * sizeof(Number));

/// Asks for lines that a pass will read soon after this one: perhaps those of the next row. What a
/// processor asks for by itself ends with each page, and comes too late for most passes.
template <typename Number>
ASCEND_SAMPLE_INLINE void prefetch_ahead(const Number* line, size_t count = 1) {
  prefetch_lines(line + kLinesAhead<Number> * kLine, count);
}

/// Types of 16 bits, in whose order these are as integers.
template <typename Type>
inline constexpr bool kHas16Bits = sizeof(typename Type::Storage) == sizeof(uint16_t);

/// Maxima of groups of logits. A group is one lane of `lines` lines that follow one another, so
/// that neighbours, which a sorted row puts side by side, fall into different groups.
struct Groups {
  size_t lines;   // a divisor of kChunkLines
  float* maxima;  // kLine for each block of so many lines, from the first block to the last

  size_t blocks_in_chunk() const { return kChunkLines / lines; }
};

/// For a scan that need not notice what it reads (status.h).
struct NoStatus {
  template <typename... Lines>
  ASCEND_SAMPLE_INLINE void add_line(const Lines&...) {}
  template <typename... Lines>
  ASCEND_SAMPLE_INLINE void add_extremes(const Lines&...) {}
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
