// Rows of 16-bit logits have few distinct values. Counted by their bits they are in order without
// being sorted, and what depends on the value alone is computed once for each.
#pragma once

#include "cpu/filters/bins.h"
#include "cpu/rows/row.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Counts logits by their bits. take() leaves the table as it has to be at the beginning: all 0.
template <typename Type>
class Histogram {
  using Storage = typename Type::Storage;

 public:
  struct Table {
    static constexpr size_t kPatterns = size_t{1} << 16;
    static constexpr size_t kBlock = 64;

    // Of each pattern. Neighbours in the row count in different columns, since an increment of the
    // number that was incremented just now has to wait for that. The columns are an odd number of
    // cache lines apart.
    uint32_t counts[2][kPatterns + kLanes];
    uint8_t is_used[kPatterns / kBlock];  // whether a block of patterns may have counts
  };

  explicit Histogram(Table& table) : table_(table) {}

  /// What was found.
  void add(const Row<Type>& row, const Hits& hits) {
    for (size_t i = 0; i < hits.count; ++i) {
      const Storage* data = row.line(2 * hits.pairs[i]);
      prefetch_lines(row.line(0) + row.vocab_size() + 2 * i * kLine, 2);  // meanwhile the next row
      for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
        const Storage logit = data[__builtin_ctzll(bits)];
        ++table_.counts[0][logit];
        table_.is_used[logit / Table::kBlock] = 1;
      }
    }
  }

  /// The whole row.
  void add(const Row<Type>& row) {
    if (const auto [first, second] = frequent(row.line(0)); first != second) {
      add_beside(row, first, second);
    } else {
      add_each(row);
    }
    const auto forget = [this](size_t first, size_t last) {
      for (auto& column : table_.counts) {
        std::memset(column + first, 0, (last - first) * sizeof(uint32_t));
      }
    };
    forget(Type::kInfinity + 1, kSign);               // NaN
    forget(Type::kMinusInfinity, 2 * size_t{kSign});  // -inf, and NaN with a sign
    std::memset(table_.is_used, 1, sizeof(table_.is_used));
  }

  /// Moves everything that was counted to bins of equal values. `patterns` has room for them.
  void take(Storage* patterns, Bins& bins) {
    constexpr size_t kBlocks = kSign / Table::kBlock;  // of numbers with the same sign
    bins.size = 0;
    for (auto& column : table_.counts) {
      column[0] += column[kSign];  // the zeros are equal
      column[kSign] = 0;
    }
    table_.is_used[0] |= table_.is_used[kBlocks];
    for (size_t block = kBlocks; block-- > 0;) {
      for_bins<true>(block, [&](size_t bits) { move(bits, patterns, bins); });
    }
    for (size_t block = kBlocks; block < 2 * kBlocks; ++block) {
      for_bins<false>(block, [&](size_t bits) { move(bits, patterns, bins); });
    }
    for (size_t i = 0; i < bins.size; i += kLine) {
      const Line values = Type::load(patterns + i);
      store(bins.values + i, values.first);
      store(bins.values + i + kLanes, values.second);
    }
  }

 private:
  static constexpr uint16_t kSign = 0x8000;

  struct Frequent {
    Storage first;
    Storage second;
  };

  /// The two patterns that make up most of a line; equal ones where no two do.
  static Frequent frequent(const Storage* line) {
    constexpr size_t kMost = kLine * 3 / 4;
    const Storage first = line[0];
    size_t place = 1;
    while (place < kLine && line[place] == first) {
      ++place;
    }
    const Storage second = place < kLine ? line[place] : static_cast<Storage>(~first);
    size_t count = 0;
    for (size_t i = 0; i < kLine; ++i) {
      count += line[i] == first || line[i] == second;
    }
    return {first, count >= kMost ? second : first};
  }

  /// A row that consists mostly of two patterns: an increment would wait for the one before.
  void add_beside(const Row<Type>& row, Storage first, Storage second) {
    uint32_t firsts = 0;
    uint32_t seconds = 0;
    for (size_t index = 0; index < row.chunks(); ++index) {
      const Storage* chunk = row.chunk(index);
      for (size_t i = 0; i < kChunk; i += kLine) {
        const uint32_t first_bits = Type::bits_of_pattern(chunk + i, first);
        const uint32_t second_bits = Type::bits_of_pattern(chunk + i, second);
        firsts += static_cast<uint32_t>(__builtin_popcount(first_bits));
        seconds += static_cast<uint32_t>(__builtin_popcount(second_bits));
        for (uint32_t bits = ~(first_bits | second_bits); bits != 0; bits &= bits - 1) {
          ++table_.counts[0][chunk[i + static_cast<size_t>(__builtin_ctz(bits))]];
        }
      }
    }
    table_.counts[0][first] += firsts;
    table_.counts[0][second] += seconds;
  }

  void add_each(const Row<Type>& row) {
    for (size_t index = 0; index < row.chunks(); ++index) {
      const Storage* chunk = row.chunk(index);
      for (size_t i = 0; i < kChunk; i += 8) {
        // Two loads for eight logits. Each increment is a load and a store of its own.
        uint64_t words[2];
        std::memcpy(words, chunk + i, sizeof(words));
        for (const uint64_t word : words) {
          ++table_.counts[0][word & 0xFFFF];
          ++table_.counts[1][word >> 16 & 0xFFFF];
          ++table_.counts[0][word >> 32 & 0xFFFF];
          ++table_.counts[1][word >> 48];
        }
      }
    }
  }

  /// Calls the function with the patterns of a block that were counted.
  template <bool kDescending, typename Function>
  ASCEND_SAMPLE_INLINE void for_bins(size_t block, Function function) {
    if (table_.is_used[block] == 0) {
      return;
    }
    table_.is_used[block] = 0;
    const size_t start = block * Table::kBlock;
    uint64_t counted = 0;
    for (size_t i = 0; i < Table::kBlock; i += kLanes) {
      const Ints counts =
          load<IntPart>(table_.counts[0] + start + i) + load<IntPart>(table_.counts[1] + start + i);
      counted |= uint64_t{bits_of(is_greater(convert(counts), Floats{}))} << i;
    }
    while (counted != 0) {
      const auto place = static_cast<size_t>(kDescending ? 63 - __builtin_clzll(counted)
                                                         : __builtin_ctzll(counted));
      function(start + place);
      counted ^= uint64_t{1} << place;
    }
  }

  ASCEND_SAMPLE_INLINE void move(size_t bits, Storage* patterns, Bins& bins) {
    patterns[bins.size] = static_cast<Storage>(bits);
    bins.counts[bins.size] = table_.counts[0][bits] + table_.counts[1][bits];
    ++bins.size;
    table_.counts[0][bits] = 0;
    table_.counts[1][bits] = 0;
  }

  Table& table_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
