// Filters that keep a range of a row's values: typical sampling, cutoffs of probabilities, top-a,
// top-n-sigma, and the exclusion of the top choices. docs/filters.md, "Ranges of values", has
// their definitions; what follows looks at a row that is edited, before top-k.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "cpu/calls.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/deviation.h"
#include "cpu/rows/edits.h"
#include "cpu/rows/range_filters.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Finds the range of a row's values that its filters keep. The best of what typical sampling keeps
/// always stays, and so do all equals of a value that stays.
template <typename Type>
class RangeSearch {
 public:
  RangeSearch(const Row<Type>& row, const RangeFilters& filters, Workspace& work)
      : row_(row), filters_(filters), temperature_(filters.temperature()), work_(work) {
    scan();
  }

  /// What its weights tell, which mean nothing where the maximum is infinite.
  const RowWeights& weights() const { return weights_; }

  ValueRange find() {
    if (maximum_ == kInfinity || maximum_ == -kInfinity) {
      return {};  // its entries share the mass, or there is none
    }
    ValueRange range{-kInfinity, maximum_};
    if (filters_.is_typical()) {
      range = typical();
    }
    const double log_sum = std::log(weights_.sum);
    const auto drop_below = [&range](double bound) {
      range.least = std::max(range.least, std::min(range.most, first_at_least(bound)));
    };
    if (filters_.is_on(kEpsilonCutoff)) {
      drop_below(value_at(std::log(filters_[kEpsilonCutoff]) + log_sum));
    }
    if (filters_.is_on(kEtaCutoff)) {
      const double log_eta = std::log(filters_[kEtaCutoff]);
      const double entropy = log_sum - weights_.mean;
      drop_below(value_at(std::min(log_eta, 0.5 * log_eta - entropy) + log_sum));
    }
    if (filters_.is_on(kTopA)) {  // p >= a * the largest p squared, which is 1 / sum
      drop_below(value_at(std::log(filters_[kTopA]) - log_sum));
    }
    if (filters_.is_on(kTopNSigma)) {
      drop_below(double{maximum_} - filters_[kTopNSigma] * deviation_of(row_, maximum_));
    }
    if (filters_.is_on(kMinPBeforeExclusion)) {
      drop_below(double{range.most} +
                 double{temperature_} * std::log(filters_[kMinPBeforeExclusion]));
    }
    if (filters_.is_on(kExclusionThreshold)) {
      const float enough =
          first_at_least(value_at(std::log(filters_[kExclusionThreshold]) + log_sum));
      range.most = least_between(std::max(enough, range.least), range.most);
    }
    return range;
  }

 private:
  /// The value whose y this is.
  double value_at(double y) const { return double{maximum_} + double{temperature_} * y; }

  /// The smallest float32 that is no less.
  static float first_at_least(double bound) {
    const auto near = static_cast<float>(bound);
    return double{near} < bound ? next_above(near) : near;
  }

  /// One pass: the maximum, and the sums of chunks, each relative to its own maximum.
  void scan() {
    const Groups groups{kChunkLines, work_.folded_maxima};  // which nobody reads
    const bool weighs = filters_.weighs();
    const bool has_mean = filters_.is_typical() || filters_.is_on(kEtaCutoff);
    NoStatus unseen;
    Floats largest = splat(-kInfinity);
    for (size_t index = 0; index < row_.chunks(); ++index) {
      const Floats of_chunk = scan_chunk<Type>(row_.chunk(index), groups, groups.maxima, unseen);
      const float reference = largest_lane(of_chunk);
      largest = larger(largest, of_chunk);
      work_.chunk_sums.maxima[index] = reference;
      double& sum = work_.chunk_sums.sums[index];
      double& weighted = work_.chunk_sums.exponentials[index];
      sum = weighted = 0;
      if (weighs && reference > -kInfinity && reference < kInfinity) {
        if (has_mean) {
          sum_chunk<true>(row_.chunk(index), reference, sum, weighted);
        } else {
          sum_chunk<false>(row_.chunk(index), reference, sum, weighted);
        }
      }
    }
    maximum_ = largest_lane(largest);
    if (!weighs || maximum_ == kInfinity || maximum_ == -kInfinity) {
      return;
    }
    double weighted = 0;
    for (size_t index = 0; index < row_.chunks(); ++index) {
      const double sum = work_.chunk_sums.sums[index];
      if (sum > 0) {
        const double shift =
            (double{work_.chunk_sums.maxima[index]} - double{maximum_}) / double{temperature_};
        const double scale = exp_not_positive(shift);
        weights_.sum += scale * sum;
        weighted += scale * (work_.chunk_sums.exponentials[index] + shift * sum);
      }
    }
    weights_.mean = weighted / weights_.sum;
  }

  /// The sum of the weights of a chunk, relative to its maximum, and of their products with y.
  template <bool kWantsProducts>
  void sum_chunk(const typename Type::Storage* chunk, float reference, double& sum,
                 double& weighted) const {
    Line sums{};
    Line products{};
    const auto add = [](const Floats& y, Floats& sum, Floats& product) {
      const Floats weight = weight_of(y);
      sum = sum + weight;
      if constexpr (kWantsProducts) {  // what weighs nothing may be -inf, or NaN
        product = product + weight * select(is_greater(y, splat(kLeastLogWeight)), y, Floats{});
      }
    };
    for (size_t line = 0; line < kChunkLines; ++line) {
      divided(Type::load_unordered(chunk + line * kLine), reference, temperature_,
              [&](const Floats& first, const Floats& second) {
                add(first, sums.first, products.first);
                add(second, sums.second, products.second);
              });
    }
    sum = sum_lanes(sums.first + sums.second);
    weighted = sum_lanes(products.first + products.second);
  }

  /// The least value from `enough` to `most`, which is a value of the row; `most` if there is none.
  float least_between(float enough, float most) const {
    const Floats bound = splat(enough);
    const Floats upper = splat(most);
    Floats least = upper;
    for (size_t line = 0; line < row_.lines(); ++line) {
      const Line logits = Type::load(row_.line(line));
      for (const Floats& values : {logits.first, logits.second}) {
        least = smaller(select(is_at_least(values, bound), values, upper), least);
      }
    }
    float lanes[kLanes];
    store(lanes, least);
    return *std::min_element(lanes, lanes + kLanes);
  }

  /// What lies nearest to the mean of y, the nearest first, until it weighs enough: |-log(p) -
  /// entropy| is |y - mean|. Mostly that is among the few that weigh much, and nearly always among
  /// those that weigh more than 2e-9.
  ValueRange typical() {
    const double target = filters_.typical_p() * weights_.sum;
    const auto mean = static_cast<float>(weights_.mean);
    for (const float depth : {8.0F, 20.0F}) {
      const std::optional<float> distance = distance_with(gather_nearest(-depth, mean), target);
      if (distance.has_value() && *distance < depth + mean) {  // beyond are others as near
        return nearer_than(*distance, mean);
      }
    }
    const std::optional<float> distance = distance_with(gather_nearest(-kInfinity, mean), target);
    return nearer_than(distance.value_or(kInfinity), mean);
  }

  /// The range of the values above -inf that are no farther than a distance from the mean of y.
  ValueRange nearer_than(float distance, float mean) const {
    const Floats bound = splat(distance);
    const Floats center = splat(mean);
    Floats least = splat(kInfinity);
    Floats most = splat(-kInfinity);
    for (size_t line = 0; line < row_.lines(); ++line) {
      const Line logits = Type::load(row_.line(line));
      const auto look = [&](const Floats& y, const Floats& values) {
        const Mask is_near =
            is_at_least(bound, absolute(y - center)) & is_greater(values, splat(-kInfinity));
        least = smaller(select(is_near, values, splat(kInfinity)), least);
        most = larger(select(is_near, values, splat(-kInfinity)), most);
      };
      divided(logits, maximum_, temperature_, [&](const Floats& first, const Floats& second) {
        look(first, logits.first);
        look(second, logits.second);
      });
    }
    float lanes[kLanes];
    store(lanes, least);
    return {*std::min_element(lanes, lanes + kLanes), largest_lane(most)};
  }

  /// Puts the distances from the mean and the weights of what has a y above a bound into the
  /// workspace, by ascending id. Returns their number.
  size_t gather_nearest(float bound, float mean) {
    const Floats bounds = splat(bound);
    const Floats center = splat(mean);
    size_t count = 0;
    for (size_t line = 0; line < row_.lines(); ++line) {
      const auto gather = [&](const Floats& y) {
        const Mask mask = is_greater(y, bounds);
        if (bits_of(mask) != 0) {
          compress(work_.values + count, mask, absolute(y - center));
          count += compress(work_.weights + count, mask, weight_of(y));
        }
      };
      divided(Type::load(row_.line(line)), maximum_, temperature_,
              [&](const Floats& first, const Floats& second) {
                gather(first);
                gather(second);
              });
    }
    return count;
  }

  /// The least distance with which the gathered weights reach a target, added up by ascending
  /// distance: found digit by digit of its bits, while what has other digits is left out. None
  /// where they do not.
  std::optional<float> distance_with(size_t count, double target) {
    constexpr int kDigitBits[] = {12, 10, 10};
    int shift = 32;
    uint32_t prefix = 0;
    double nearer = 0;  // of what has smaller digits
    for (const int bits_of_digit : kDigitBits) {
      shift -= bits_of_digit;
      const uint32_t digits = uint32_t{1} << bits_of_digit;
      double bins[1U << kDigitBits[0]] = {};
      const auto digit_of = [&](float distance) {
        return (std::bit_cast<uint32_t>(distance) >> shift) & (digits - 1);
      };
      for (size_t i = 0; i < count; ++i) {
        bins[digit_of(work_.values[i])] += double{work_.weights[i]};
      }
      uint32_t last = digits;  // that weighs anything
      while (last > 0 && bins[last - 1] == 0) {
        --last;
      }
      uint32_t digit = 0;
      while (digit < last && nearer + bins[digit] < target) {
        nearer += bins[digit++];
      }
      if (digit == last) {
        if (shift + bits_of_digit == 32) {
          return std::nullopt;
        }
        --digit;  // as a whole they did: rounding
      }
      prefix = prefix << bits_of_digit | digit;
      size_t left = 0;
      for (size_t i = 0; i < count; ++i) {
        if (digit_of(work_.values[i]) == digit) {
          work_.values[left] = work_.values[i];
          work_.weights[left++] = work_.weights[i];
        }
      }
      count = left;
    }
    return std::bit_cast<float>(prefix);
  }

  const Row<Type>& row_;
  const RangeFilters& filters_;
  float temperature_;
  Workspace& work_;
  float maximum_ = -kInfinity;
  RowWeights weights_;
};

/// The row with -inf for what is outside of a range; NaN stays, to be seen. The row itself, which
/// may be an edited one, is not to be read any more.
template <typename Type>
Row<Type> keep_range(const Row<Type>& row, const ValueRange& range, Scratch& scratch,
                     Workspace& work) {
  using Storage = typename Type::Storage;
  auto* const out = reinterpret_cast<Storage*>(
      scratch.reserve(Scratch::kEdited, row.lines() * kLine * sizeof(Storage)));
  const Floats least = splat(range.least);
  const Floats most = splat(range.most);
  const auto dropped = [&](const Floats& values) {
    return bits_of(is_greater(least, values) | is_greater(values, most));
  };
  for (size_t line = 0; line < row.lines(); ++line) {
    const Line logits = Type::load(row.line(line));
    const uint32_t bits = ~(dropped(logits.first) | dropped(logits.second) << kLanes);
    store(out + line * kLine, select_line<Type>(row.line(line), bits));
  }
  return {out, row.vocab_size(), reinterpret_cast<Storage*>(work.last_chunk)};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
