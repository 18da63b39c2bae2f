// The one pass over a row: its maximum, the maxima of groups of its logits, its softmax's sum, and
// the entropy of that.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/rows/row.h"
#include "cpu/vectors/exponential.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Fills the maxima of a chunk's groups, whose lines `raw_line` gives by their numbers as load_raw
/// does. Returns the chunk's maximum; NaN counts as -inf.
template <typename Type, typename RawLine, typename Status>
ASCEND_SAMPLE_INLINE Floats scan_lines(RawLine raw_line, const Groups& groups, float* maxima,
                                       Status& seen) {
  Floats largest = splat(-kInfinity);
  for (size_t line = 0; line < kChunkLines; line += groups.lines) {
    const Line block =
        Type::maxima([&](size_t i) { return raw_line(line + i); }, groups.lines, maxima, seen);
    maxima += kLine;
    largest = larger(largest, larger(block.first, block.second));
  }
  return largest;
}

/// The `raw_line` of a chunk as it lies in memory, which asks for the lines that a scan reads next.
template <typename Type>
ASCEND_SAMPLE_INLINE auto raw_lines_of(const typename Type::Storage* chunk) {
  return [chunk](size_t line) {
    prefetch_ahead(chunk + line * kLine);
    return Type::load_raw(chunk + line * kLine);
  };
}

/// Scans a chunk as it lies in memory.
template <typename Type, typename Status>
ASCEND_SAMPLE_INLINE Floats scan_chunk(const typename Type::Storage* chunk, const Groups& groups,
                                       float* maxima, Status& seen) {
  return scan_lines<Type>(raw_lines_of<Type>(chunk), groups, maxima, seen);
}

/// Fills groups.maxima and returns the row's maximum. `raw_lines` gives the `raw_line` of a chunk,
/// by its number.
template <typename Type, typename Status, typename RawLines>
ASCEND_SAMPLE_INLINE float scan_maxima(const Row<Type>& row, const Groups& groups, Status& seen,
                                       RawLines raw_lines) {
  // Copies, which stay in registers: what is written through a pointer might be what a reference
  // names. With the accumulators of a status in memory, a scan takes twice as long.
  const Groups own_groups = groups;
  Status own_seen = seen;
  const size_t chunks = row.chunks();
  const size_t step = own_groups.blocks_in_chunk() * kLine;
  float* maxima = own_groups.maxima;
  Floats largest = splat(-kInfinity);
  for (size_t index = 0; index < chunks; ++index) {
    largest = larger(largest, scan_lines<Type>(raw_lines(index), own_groups, maxima, own_seen));
    maxima += step;
  }
  seen = own_seen;
  return largest_lane(largest);
}

template <typename Type, typename Status>
float scan_maxima(const Row<Type>& row, const Groups& groups, Status& seen) {
  return scan_maxima(row, groups, seen,
                     [own = row](size_t index) { return raw_lines_of<Type>(own.chunk(index)); });
}

template <typename Type>
float scan_maxima(const Row<Type>& row, const Groups& groups) {
  NoStatus seen;
  return scan_maxima(row, groups, seen);
}

/// What a softmax needs of a row.
struct RowSum {
  float maximum;
  double sum;  // of exp(logit - maximum)
};

/// What a number is between.
struct Interval {
  double least;
  double most;
};

/// Bounds of the sum of exp(logit - maximum).
using SumBounds = Interval;

/// Covers how far the exact sum may be off, and what rounding probabilities to float32 does.
inline constexpr double kSumMargin = 4e-6;

/// Bounds the sum of a row by what was added up of it: for ends that bounds from cheap exponentials
/// leave open.
inline SumBounds bound_sum(const RowSum& row_sum) {
  return {row_sum.sum * (1 - kSumMargin), row_sum.sum * (1 + kSumMargin)};
}

/// The rows whose approximate sum means anything: their exponentials stay far from float32's
/// limits.
inline constexpr float kLowestMaximum = -40.0F;
inline constexpr float kHighestMaximum = 60.0F;

/// A row's maximum, and the sum of approximate_exp(logit).
struct ApproximateSum {
  float maximum;
  double sum;
};

/// Whether an approximate sum has a meaning.
inline bool is_within_range(const ApproximateSum& approximate) {
  return approximate.maximum >= kLowestMaximum && approximate.maximum <= kHighestMaximum;
}

/// (value - reference) / temperature, nearly.
class Quotients {
 public:
  Quotients(float reference, float temperature)
      : temperature_(temperature),
        reference_(reference),
        inverse_(1.0F / temperature),
        shift_(-reference * inverse_) {}

  float temperature() const { return temperature_; }
  float shift() const { return shift_; }

  /// Whether they are known well.
  bool are_close() const {
    constexpr float kMostShift = 256;
    return std::isnormal(temperature_) && std::isnormal(inverse_) &&
           std::fabs(shift_) <= kMostShift;
  }
  /// Whether they are the values themselves.
  bool are_values() const { return temperature_ == 1.0F && shift_ == 0.0F; }

  ASCEND_SAMPLE_INLINE Floats of(const Floats& values) const {
    return fused(values, splat(inverse_), splat(shift_));
  }
  template <bool kIsHasty = false>
  ASCEND_SAMPLE_INLINE Floats approximate_exp_of(const Floats& values) const {
    return approximate_exp<kIsHasty>(values, splat(kExponentE * inverse_),
                                     splat(kExponentBias + kExponentE * shift_));
  }
  float exactly(float value) const { return (value - reference_) / temperature_; }

 private:
  float temperature_;
  float reference_;
  float inverse_;
  float shift_;
};

/// What a pass finds of a row beside maxima.
struct Scanned {
  bool mean = false;
  bool sum = false;
  bool deviation = false;

  Scanned& operator|=(const Scanned& other) {
    mean |= other.mean;
    sum |= other.sum;
    deviation |= other.deviation;
    return *this;
  }
};

/// What it has found.
struct ScannedRow {
  Scanned has;
  Quotients quotients;
  float maximum = -kInfinity;       // of the values
  ApproximateSum approximate = {};  // of exp(quotient), and the largest one
  double product = 0;               // the sum of approximate exp(quotient) * quotient
  double deviation = 0;             // of the values

  /// Of sums of approximate exponentials: what float32 may round of them.
  static constexpr size_t kFlushed = 16;  // chunks that are added up in it
  static constexpr double kRounding = (kFlushed + kChunkLines + 16) * 0x1p-24;

  float temperature() const { return quotients.temperature(); }
};

/// The softmax's probability of a value, rounded as the reference does.
ASCEND_SAMPLE_INLINE float probability_of(float value, const RowSum& row_sum) {
  const double difference = static_cast<double>(value) - row_sum.maximum;
  return static_cast<float>(exp_not_positive(difference) / row_sum.sum);
}

/// Lines whose numbers are added up one after the other where 1e-6 counts: of more of them, float32
/// would lose that, as it may round all of many equal ones in one direction, and what is added to
/// a 1.
inline constexpr size_t kBlockLines = 8;

/// The sum of exp(logit - reference) over a chunk, the reference being its maximum: blocks of so
/// many lines are added up, and then added.
template <typename Type, size_t kLines = kChunkLines>
ASCEND_SAMPLE_INLINE double sum_exponentials(const typename Type::Storage* chunk, float reference) {
  const Floats shift = splat(reference);
  const auto sum_with = [&](auto prepare) {
    Line sums{};
    for (size_t block = 0; block < kChunkLines; block += kLines) {
      Line of_block{};
      for (size_t line = block; line < block + kLines; ++line) {
        prefetch_ahead(chunk + line * kLine);
        const Line logits = Type::load_unordered(chunk + line * kLine);
        of_block.first = of_block.first + exp_not_positive(prepare(logits.first) - shift);
        of_block.second = of_block.second + exp_not_positive(prepare(logits.second) - shift);
      }
      sums = {sums.first + of_block.first, sums.second + of_block.second};
    }
    return sum_lanes(sums.first + sums.second);
  };
  const double sum = sum_with([](const Floats& logits) { return logits; });
  if (sum == sum) [[likely]] {
    return sum;
  }
  const Floats lowest = splat(-kInfinity);  // what a NaN becomes
  return sum_with([&](const Floats& logits) { return larger(logits, lowest); });
}

/// The sum of a row from those of its chunks, each relative to its own maximum. `exponentials` has
/// room for a number a chunk, and is left with what each adds.
inline double add_chunks(const float* maxima, const double* sums, size_t count, float maximum,
                         double* exponentials) {
  exp_differences(maxima, count, maximum, exponentials);
  for (size_t index = 0; index < count; ++index) {
    exponentials[index] *= sums[index];
  }
  return sum(exponentials, count);
}

/// Fills groups.maxima, and the maxima and sums of chunks in the same pass, each relative to its
/// own maximum. Returns that of the row. `sum_chunk` returns what sum_exponentials does of the
/// chunk at an index; of one without any weight it is not asked.
template <typename Type, typename SumChunk>
float scan_chunk_sums(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks,
                      SumChunk sum_chunk) {
  float* maxima = groups.maxima;
  NoStatus seen;
  Floats largest = splat(-kInfinity);
  for (size_t index = 0; index < row.chunks(); ++index) {
    const auto* chunk = row.chunk(index);
    const Floats chunk_largest = scan_chunk<Type>(chunk, groups, maxima, seen);
    maxima += groups.blocks_in_chunk() * kLine;
    largest = larger(largest, chunk_largest);
    const float reference = largest_lane(chunk_largest);
    chunks.maxima[index] = reference;
    chunks.sums[index] = reference == -kInfinity ? 0.0 : sum_chunk(chunk, reference, index);
  }
  return largest_lane(largest);
}

/// Every chunk is summed in a fixed order, so that the result is a function of the row alone. The
/// sum means nothing for a row with +inf.
template <typename Type, typename SumChunk>
RowSum scan_sum(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks,
                SumChunk sum_chunk) {
  const float maximum = scan_chunk_sums(row, groups, chunks, sum_chunk);
  return {maximum,
          add_chunks(chunks.maxima, chunks.sums, row.chunks(), maximum, chunks.exponentials)};
}

/// By blocks of so many lines: what draws decide by has one block, what is reported has more.
template <size_t kLines = kChunkLines, typename Type>
RowSum scan_sum(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks) {
  return scan_sum(row, groups, chunks,
                  [](const typename Type::Storage* chunk, float reference, size_t) {
                    return sum_exponentials<Type, kLines>(chunk, reference);
                  });
}

/// The sum of exp(logit - reference) over a chunk, as sum_exponentials has it by blocks, and how
/// far its logits are below the reference, its maximum: the mean, by weight. A weight below
/// exp(kLeastLogWeight) is as large as that, here alone, so that products are those of every
/// instruction set; NaN has it too.
template <typename Type>
ASCEND_SAMPLE_INLINE double sum_with_distance(const typename Type::Storage* chunk, float reference,
                                              float& distance) {
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
  distance = static_cast<float>(product / sum);
  return sum;
}

/// scan_sum by blocks, with the same bits, which fills the distances too: 0 for chunks without any
/// weight.
template <typename Type>
RowSum scan_distances(const Row<Type>& row, const Groups& groups, const ChunkSums& chunks) {
  float* const distances = chunks.distances;
  std::fill_n(distances, row.chunks(), 0.0F);
  return scan_sum(row, groups, chunks,
                  [&](const typename Type::Storage* chunk, float reference, size_t index) {
                    return sum_with_distance<Type>(chunk, reference, distances[index]);
                  });
}

/// The entropy of a row in nats: the logarithm of its sum, and the mean distance from its maximum.
/// `chunks` are as scan_distances has left them, `row_sum` is what it has returned; 0 for a row of
/// -inf.
inline float entropy_of(const ChunkSums& chunks, size_t count, const RowSum& row_sum,
                        double log_sum) {
  constexpr double kNothing = 1e-29;   // of the mean: what 2^20 weights of -inf may add to it
  if (row_sum.maximum == kInfinity) {  // its entries share the mass
    return static_cast<float>(log_sum);
  }
  double total = 0;
  for (size_t index = 0; index < count; ++index) {
    const double weight = chunks.exponentials[index];
    if (weight > 0) {
      total += weight * (double{row_sum.maximum} - chunks.maxima[index] + chunks.distances[index]);
    }
  }
  const double mean = total > 0 ? total / row_sum.sum : 0.0;
  return static_cast<float>(mean < kNothing ? log_sum : log_sum + mean);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
