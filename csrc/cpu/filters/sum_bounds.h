// A row's sum from cheap exponentials: known within bounds, which decide most draws.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/contenders.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/row.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/status.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Fills groups.maxima, and adds up approximate exponentials in the same pass.
template <typename Type, typename Status>
ApproximateSum scan_approximate_sum(const Row<Type>& row, const Groups& groups, Status& seen) {
  const Row<Type> own_row = row;  // copies, as in scan_maxima
  Status own_seen = seen;
  const size_t lines = groups.lines;
  float* maxima = groups.maxima;
  Floats largest = splat(-kInfinity);
  Floats sums[2] = {};
  for (size_t index = 0; index < own_row.chunks(); ++index) {
    const auto* chunk = own_row.chunk(index);
    Floats chunk_sums[2] = {};
    for (size_t block = 0; block < kChunkLines; block += lines) {
      Floats first = splat(-kInfinity);
      Floats second = first;
#pragma GCC unroll 4
      for (size_t line = 0; line < lines; ++line) {
        prefetch_ahead(chunk + (block + line) * kLine);
        const Line logits = Type::load_unordered(chunk + (block + line) * kLine);
        own_seen.add_line(logits);
        first = larger(logits.first, first);
        second = larger(logits.second, second);
        chunk_sums[0] = added(approximate_exp(logits.first), chunk_sums[0]);
        chunk_sums[1] = added(approximate_exp(logits.second), chunk_sums[1]);
      }
      own_seen.add_extremes(Line{first, second});
      store(maxima, first);
      store(maxima + kLanes, second);
      maxima += kLine;
      largest = larger(largest, larger(first, second));
    }
    sums[0] = sums[0] + chunk_sums[0];
    sums[1] = sums[1] + chunk_sums[1];
  }
  seen = own_seen;
  return {largest_lane(largest), sum_lanes(sums[0]) + sum_lanes(sums[1])};
}

/// The same, and the row's status where that is wanted.
template <typename Type>
ApproximateSum scan_approximate_sum(const Row<Type>& row, const Groups& groups,
                                    const RowArguments& arguments) {
  if (arguments.status.empty()) {
    NoStatus unseen;
    return scan_approximate_sum(row, groups, unseen);
  }
  FloatStatus seen;
  const ApproximateSum approximate = scan_approximate_sum(row, groups, seen);
  arguments.status.front() = seen.status();
  return approximate;
}

/// Adds approximate exponentials of a few values; there is room up to whole lines.
inline double sum_approximately(float* values, size_t count) {
  Sum sum;
  pad(values, count);
  for (size_t i = 0; i < count; i += kLanes) {
    sum.add(approximate_exp(load_floats(values + i)));
  }
  return sum.total();
}

/// A part of the row: its sum of exp(logit - maximum), and of approximate_exp(logit).
struct PartialSum {
  double weight;
  double approximate;
};

/// Bounds the sum of a row of so many chunks, where a part is known.
inline SumBounds bound_sum(const ApproximateSum& approximate, const PartialSum& known,
                           size_t chunks) {
  const double rest = approximate.sum - known.approximate;
  // The approximate sum adds in float32: the lines of a chunk, then one chunk after the other.
  const double rounding = static_cast<double>(chunks + kChunkLines + 2) * 0x1p-24 * approximate.sum;
  const double unit = std::exp(-static_cast<double>(approximate.maximum));
  const double least_rest = (rest - rounding) / kLargestRatio * unit;
  const double most_rest = (rest + rounding) / kLeastRatio * unit;
  return {(known.weight + (least_rest > 0 ? least_rest : 0)) * (1 - kSumMargin),
          (known.weight + most_rest) * (1 + kSumMargin)};
}

/// Whether a score is less than another for every inverse of the sum, which is known to `spread`;
/// `difference` is that of the two exponentials.
inline bool is_surely_less(double score, double other, double difference, double spread) {
  constexpr double kMargin = 8e-6;
  return score * (1 + 2 * (std::fabs(difference) * spread + kMargin)) < other;
}

/// The rank that is drawn from a large nucleus of any size between `least` and `most`, for any sum
/// within the bounds; none where that is not one rank. `end` is the least exponential of the
/// nucleus. `exponential_of` gives that of a rank, `is_at_most` says at less cost whether that is
/// at most a number.
template <typename ExponentialOf, typename IsAtMost>
std::optional<size_t> draw_surely(const float* q, size_t least, size_t most, const SumBounds& sum,
                                  double end, const RowArguments& arguments, float* minima,
                                  ExponentialOf exponential_of, IsAtMost is_at_most) {
  // The last weight over the first is at least:
  const double inverse_ratio =
      arguments.rules.softmaxes_again ? exp_not_positive(end / sum.most - 1 / sum.least) : end;
  const Contenders contenders =
      find_contenders(q, most, arguments.eps, 1.0 / inverse_ratio, minima);
  if (contenders.is_open) {
    return std::nullopt;
  }
  const double inverse = (1 / sum.least + 1 / sum.most) / 2;
  const double spread = arguments.rules.softmaxes_again ? 1 / sum.least - inverse : 0.0;
  double exponentials[Contenders::kMost];
  double scores[Contenders::kMost];
  size_t best = contenders.count - 1;
  // From the least noise on, which mostly wins.
  for (size_t i = contenders.count; i-- > 0;) {
    const size_t rank = contenders.ranks[i];
    const double noise{__builtin_fabsf(q[rank]) + arguments.eps};
    const auto set = [&](double exponential) {
      exponentials[i] = exponential;
      scores[i] = arguments.draw_weight(exponential, inverse) / noise;
    };
    if (i != best) {
      // With the exponential of so much weight it loses, but for a little.
      set(arguments.exponential_with(scores[best] * noise * (1 - 4e-5), inverse));
      const double difference = exponentials[i] - exponentials[best];
      if (is_surely_less(scores[i], scores[best], difference, spread) &&
          is_at_most(rank, exponentials[i])) {
        continue;
      }
    }
    set(exponential_of(rank));
    best = scores[i] > scores[best] ? i : best;
  }
  bool is_certain = contenders.ranks[best] < least;
  for (size_t i = 0; i < contenders.count; ++i) {
    const double difference = exponentials[i] - exponentials[best];
    is_certain &= i == best || is_surely_less(scores[i], scores[best], difference, spread);
  }
  return is_certain ? std::optional<size_t>(contenders.ranks[best]) : std::nullopt;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
