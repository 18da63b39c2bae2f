// Rows of 16-bit logits have few distinct values. Counted by their bits they are in order without
// being sorted, and what depends on the value alone is computed once for each.
#pragma once

#include "runs.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Types of which a row has far fewer distinct values than logits.
template <typename Type>
inline constexpr bool kHasFewValues = sizeof(typename Type::Storage) == sizeof(uint16_t);

/// Counts logits by their bits. `counts` has a number for each of the kPatterns, all 0; so it is
/// again after take().
template <typename Type>
class Tally {
  using Storage = typename Type::Storage;

 public:
  static constexpr size_t kPatterns = size_t{1} << 16;

  explicit Tally(uint32_t* counts) : counts_(counts) {}

  /// What was found, `count` logits in all.
  void add(const Row<Type>& row, const Hits& hits, size_t count) {
    for (size_t i = 0; i < hits.count; ++i) {
      const Storage* data = row.line(2 * hits.pairs[i]);
      for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
        ++counts_[data[__builtin_ctzll(bits)]];
      }
    }
    total_ += count;
  }

  /// The whole row.
  void add(const Row<Type>& row) {
    for (size_t index = 0; index < row.chunks(); ++index) {
      const Storage* chunk = row.chunk(index);
      for (size_t i = 0; i < kChunk; i += 8) {
        // Two loads for eight logits. Each increment is a load and a store of its own.
        uint64_t words[2];
        std::memcpy(words, chunk + i, sizeof(words));
        for (const uint64_t word : words) {
          ++counts_[word & 0xFFFF];
          ++counts_[word >> 16 & 0xFFFF];
          ++counts_[word >> 32 & 0xFFFF];
          ++counts_[word >> 48];
        }
      }
    }
    total_ += row.chunks() * kChunk;
    forget(Type::kInfinity + 1, kSign);          // NaN
    forget(Type::kMinusInfinity, 2 * size_t{kSign});  // -inf, and NaN with a sign
  }

  /// Moves everything that was counted to runs of equal values. `patterns` has room for them.
  void take(Storage* patterns, Runs& runs) {
    runs.size = 0;
    counts_[0] += counts_[kSign];  // the zeros are equal
    counts_[kSign] = 0;
    for (size_t start = Type::kInfinity; total_ != 0; start -= kLanes) {
      for (uint32_t bits = counted(start); bits != 0;) {
        const auto lane = static_cast<size_t>(31 - __builtin_clz(bits));
        move(start + lane, patterns, runs);
        bits ^= uint32_t{1} << lane;
      }
      if (start == 0) {
        break;
      }
    }
    for (size_t start = kSign; total_ != 0; start += kLanes) {
      for (uint32_t bits = counted(start); bits != 0; bits &= bits - 1) {
        move(start + static_cast<size_t>(__builtin_ctz(bits)), patterns, runs);
      }
    }
    for (size_t i = 0; i < runs.size; i += kLine) {
      const Line values = Type::load(patterns + i);
      store(runs.values + i, values.first);
      store(runs.values + i + kLanes, values.second);
    }
  }

 private:
  static constexpr uint16_t kSign = 0x8000;

  void forget(size_t first, size_t last) {
    for (size_t bits = first; bits < last; ++bits) {
      total_ -= counts_[bits];
      counts_[bits] = 0;
    }
  }

  /// Bit i: pattern start + i was counted.
  ASCEND_SAMPLE_INLINE uint32_t counted(size_t start) const {
    return bits_of(is_greater(convert(load<IntPart>(counts_ + start)), Floats{}));
  }

  ASCEND_SAMPLE_INLINE void move(size_t bits, Storage* patterns, Runs& runs) {
    patterns[runs.size] = static_cast<Storage>(bits);
    runs.counts[runs.size] = counts_[bits];
    ++runs.size;
    total_ -= counts_[bits];
    counts_[bits] = 0;
  }

  uint32_t* counts_;
  size_t total_ = 0;  // of what is in counts_
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
