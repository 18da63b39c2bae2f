// The range of a row's values that its filters keep: by bounds of what these ask of the row, from
// one pass with cheap exponentials, and exact ones of the few that weigh; else by exact weights.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "cpu/filters/range_filters.h"
#include "cpu/filters/range_scan.h"
#include "cpu/filters/weighed_values.h"
#include "cpu/rows/edits.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/temperature.h"
#include "cpu/vectors/total_order.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What a row's weights tell exactly.
struct RowWeights {
  float maximum;  // the others mean nothing where it is infinite
  double sum = 0;
  double mean = 0;  // of y, by weight
};

/// The sum of the weights of a chunk, and of their products with y.
template <typename Type, bool kWantsProducts>
double weigh_chunk(const typename Type::Storage* chunk, const Scale& scale, double& weighted) {
  Line sums{};
  Line products{};
  const auto add = [&scale](const Floats& values, Floats& sum, Floats& product) {
    const Floats y = y_of(values, scale);
    const Floats weight = weight_of(y);
    sum = sum + weight;
    if constexpr (kWantsProducts) {  // what weighs nothing may be -inf, or NaN
      product = product + weight * select(is_greater(y, splat(kLeastLogWeight)), y, Floats{});
    }
  };
  for (size_t line = 0; line < kChunkLines; ++line) {
    const Line logits = Type::load_unordered(chunk + line * kLine);
    add(logits.first, sums.first, products.first);
    add(logits.second, sums.second, products.second);
  }
  weighted = sum_lanes(products.first + products.second);
  return sum_lanes(sums.first + sums.second);
}

/// One pass, which fills groups.maxima: the maximum, and what is needed of the sums of chunks, each
/// relative to its own maximum.
template <typename Type>
RowWeights weigh_exactly(const Row<Type>& row, const Groups& groups, const RangeFilters& filters,
                         Workspace& work) {
  const ChunkSums& chunks = work.chunk_sums;
  const float temperature = filters.temperature();
  RowWeights result{
      scan_chunk_sums(row, groups, chunks, [&](const auto* chunk, float reference, size_t index) {
        double& weighted = chunks.exponentials[index];
        const Scale scale{reference, temperature};
        return !filters.needs().sum   ? 0.0
               : filters.needs().mean ? weigh_chunk<Type, true>(chunk, scale, weighted)
                                      : weigh_chunk<Type, false>(chunk, scale, weighted);
      })};
  double weighted = 0;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const double sum = chunks.sums[index];
    if (sum > 0) {
      const double shift =
          (double{chunks.maxima[index]} - double{result.maximum}) / double{temperature};
      const double scale = exp_not_positive(shift);
      result.sum += scale * sum;
      weighted += scale * (chunks.exponentials[index] + shift * sum);
    }
  }
  result.mean = weighted / result.sum;
  return result;
}

/// Finds a range of a row's values that keeps what its filters do, by facts between two ends:
/// bounds where these decide, else exact facts, whose ends are the same.
template <typename Type>
class RangeSearch {
 public:
  RangeSearch(const RangeFilters& filters, WeighedValues<Type>& weighed, Workspace& work)
      : filters_(filters), weighed_(weighed), work_(work), maximum_(weighed.scale().maximum) {}

  Kept find() {
    const Scanned& has = weighed_.scanned().has;
    std::optional<Kept> found = range();  // else it is known what is asked for
    for (const double depth : has.mean ? kDepthsOfMeans : kDepths) {
      const double deep = has.sum ? weighed_.scale().value_at(least_.log_sum - depth) : kInfinity;
      const float bound = WeighedValues<Type>::first_bound(std::min(deep, lowest_));
      if (!found.has_value() && bound < weighed_.bound()) {  // else no more than is gathered
        weighed_.gather(bound);
        found = range();
      }
    }
    return found.has_value() ? *found : find_exactly();
  }

  /// The same, by bounds alone, where nothing matters but the first k that the range does not leave
  /// out above: what it keeps below them is not told. None too where these, so many of the total
  /// order or all that the row has, do not hold them.
  std::optional<Kept> find_among(const Candidates& first, size_t many, size_t k) {
    pad(first.values, first.count);
    const float last = first.values[first.count - 1];
    weighed_.weigh(first.values, first.count, first.count < many ? -kInfinity : last);
    floor_ = last;
    std::optional<Kept> found = range();
    floor_ = -kInfinity;
    if (found.has_value() && count_above(*found) + k > many) {
      found.reset();
    }
    return found;
  }

  /// By exact facts alone.
  Kept find_exactly(const RowWeights& weights) {
    const double deviation =
        filters_.needs().deviation ? deviation_of(weighed_.row(), maximum_) : 0.0;
    is_exact_ = true;
    sum_ = {weights.sum, weights.sum};
    least_ = {weighed_.scale(), std::log(weights.sum), weights.mean, deviation};
    most_ = least_;
    return *filters_.range_of(maximum_, *this);
  }

  /// How many values exceed the range that was found, whose ends were gathered.
  size_t count_above(const Kept& range) const {
    return range.most == maximum_ ? 0 : weighed_.count_from(next_above(range.most));
  }

 private:
  friend RangeFilters;

  /// Below the logarithm of the sum: what is weighed exactly, so that bounds are narrow, at first
  /// and where that does not decide.
  static constexpr std::array<double, 3> kDepths{4, 8, 11};
  static constexpr std::array<double, 3> kDepthsOfMeans{6.5, 11, 14};
  static constexpr double kSlack = WeighedValues<Type>::kSlack;

  /// Where bounds by cheap exponentials do not decide. Apart, so that the compiler optimises what
  /// comes before.
  [[gnu::noinline]] Kept find_exactly() {
    const RowWeights weights = weigh_exactly(weighed_.row(), weighed_.groups(), filters_, work_);
    std::optional<Kept> found;
    if (filters_.needs().sum) {
      found = range(bound_sum(RowSum{maximum_, weights.sum}),
                    {weights.mean - kSlack, weights.mean + kSlack});
    }
    return found.has_value() ? *found : find_exactly(weights);  // a tie, but for rounding
  }

  /// By what is gathered; none where that does not decide.
  std::optional<Kept> range() {
    const Scanned& has = weighed_.scanned().has;
    return range(has.sum ? weighed_.sum_bounds() : SumBounds{1, 1},
                 has.mean ? weighed_.mean_bounds() : Interval{0, 0});
  }

  /// For every sum and mean between bounds.
  std::optional<Kept> range(const SumBounds& sum, const Interval& mean) {
    constexpr double kDeviation = 5e-5;  // what rounding changes of it
    const double deviation = weighed_.scanned().deviation;
    const Scale& scale = weighed_.scale();
    sum_ = sum;
    least_ = {scale, std::log(sum.least), mean.least, deviation * (1 - kDeviation)};
    most_ = {scale, std::log(sum.most), mean.most, deviation * (1 + kDeviation)};
    lowest_ = kInfinity;
    return filters_.range_of(maximum_, *this);
  }

  // What filters ask for.

  /// The least value from a bound on, wherever that lies, up to `best`, or anything that the bound
  /// is above, if that is below the floor; none where values lie there too, or may.
  std::optional<float> first_from(RangeFilter filter, float best) {
    const double first = filters_.bound_of(filter, least_, best);
    if (is_exact_) {  // the smallest float32 that is not below
      const auto near = static_cast<float>(first);
      return double{near} < first ? next_above(near) : near;
    }
    const double second = filters_.bound_of(filter, most_, best);
    const double size = std::fabs(first) + std::fabs(second) + std::fabs(double{maximum_});
    const double margin = 1e-6 * (size + 1);
    const double lowest = std::min(first, second) - margin;
    const double highest = std::max(first, second) + margin;
    if (filter != kExclusionThreshold && highest < double{floor_}) {
      return -kInfinity;
    }
    lowest_ = std::min(lowest_, lowest);
    const auto least = static_cast<float>(std::min(lowest, double{best}));
    const auto last = static_cast<float>(std::min(highest, double{best}));
    if (!(least > weighed_.bound()) || weighed_.count_from(least) != weighed_.count_from(last)) {
      return std::nullopt;
    }
    return last;
  }

  float least_between(float enough, float most) {
    if (enough <= weighed_.bound()) {
      weighed_.gather(WeighedValues<Type>::first_bound(enough));
    }
    return weighed_.least_between(enough, most);
  }

  /// Unless more is gathered already.
  void gather_above(float bound) {
    if (bound < weighed_.bound()) {
      weighed_.gather(bound);
    }
  }

  /// What lies nearest to the mean of y, the nearest first, until it weighs enough: |-log(p) -
  /// entropy| is |y - mean|.
  std::optional<Kept> typical() { return is_exact_ ? typical_exactly() : typical_by_bounds(); }

  /// For any mean and sum that the bounds allow.
  std::optional<Kept> typical_by_bounds() const {
    constexpr int kSteps = 14;
    const double middle = 0.5 * (least_.mean + most_.mean);
    const Floats center = splat(static_cast<float>(middle));
    const double enough = filters_.typical_p() * 0.5 * (sum_.least + sum_.most);
    double near = 0;
    double far = std::max(-middle, middle - weighed_.value_below());
    for (int step = 0; step < kSteps; ++step) {
      const double distance = 0.5 * (near + far);
      const Floats bound = splat(static_cast<float>(distance));
      Sum within;
      weighed_.for_gathered([&](const Floats&, const Floats& y, const Floats& weight) {
        within.add(select(is_at_least(bound, absolute(y - center)), weight, Floats{}));
      });
      (within.total() < enough ? near : far) = distance;
    }
    return prove(weighed_.within(static_cast<float>(far), static_cast<float>(middle)));
  }

  /// A range, if it is what is kept for every mean and sum between the bounds.
  std::optional<Kept> prove(const Kept& range) const {
    if (!(range.value <= range.most)) {
      return std::nullopt;
    }
    const float first = largest_lane(y_of(splat(range.value), weighed_.scale()));
    const float last = largest_lane(y_of(splat(range.most), weighed_.scale()));
    const Floats lowest = splat(-kInfinity);
    const Floats highest = splat(kInfinity);
    Floats below = lowest;
    Floats above = highest;
    Sum weights;
    Sum firsts;
    Sum lasts;
    weighed_.for_gathered([&](const Floats&, const Floats& y, const Floats& weight) {
      const Mask is_less = is_greater(splat(first), y);
      const Mask is_more = is_greater(y, splat(last));
      below = larger(select(is_less, y, lowest), below);
      above = smaller(select(is_more, y, highest), above);
      weights.add(select(is_less | is_more, Floats{}, weight));
      firsts.add(select(is_equal(y, splat(first)), weight, Floats{}));
      lasts.add(select(is_equal(y, splat(last)), weight, Floats{}));
    });
    const double before = std::max(double{largest_lane(below)}, weighed_.value_below());
    const double behind{-largest_lane(-above)};
    const double slack = kSlack * (1 - before);
    const double target = filters_.typical_p();
    const double with_all = weights.total();
    const double enough = target * sum_.most * (1 + kSlack);
    const double too_little = target * sum_.least * (1 - kSlack);
    // The one that is farther may not go, where either may be, neither.
    const double ends = double{first} + double{last};
    const bool may_be_first = 2 * most_.mean - ends > -slack;
    const bool may_be_last = 2 * least_.mean - ends < slack;
    const bool is_certain = with_all >= enough &&
                            (!may_be_first || with_all - firsts.total() < too_little) &&
                            (!may_be_last || with_all - lasts.total() < too_little) &&
                            2 * least_.mean - before - double{last} > slack &&
                            behind + double{first} - 2 * most_.mean > slack;
    return is_certain ? std::optional(range) : std::nullopt;
  }

  /// Mostly that is among the few that weigh much, and nearly always among those that weigh more
  /// than 2e-9.
  Kept typical_exactly() {
    constexpr double kEdge = 0.01;  // more than rounding changes of a y
    const double target = filters_.typical_p() * sum_.least;
    const auto mean = static_cast<float>(least_.mean);
    std::optional<float> distance;
    for (const double depth : {8.0, 20.0, double{kInfinity}}) {
      gather_above(WeighedValues<Type>::first_bound(weighed_.scale().value_at(-depth)));
      distance = distance_with(mean, target);
      if (distance.has_value() && mean - *distance > weighed_.value_below() + kEdge) {
        break;  // else what is not gathered may be as near
      }
    }
    return weighed_.within(distance.value_or(kInfinity), mean);
  }

  /// The least distance from the mean with which the gathered weights reach a target, added up by
  /// ascending distance: found digit by digit of its bits, while what has other digits is left out.
  /// None where they do not.
  std::optional<float> distance_with(float mean, double target) const {
    float* const distances = work_.room_values[1];
    float* const weights = work_.room_weights[1];
    size_t count = 0;
    weighed_.for_gathered([&](const Floats&, const Floats& y, const Floats& weight) {
      store(distances + count, absolute(y - splat(mean)));
      store(weights + count, weight);
      count += kLanes;
    });
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
        bins[digit_of(distances[i])] += double{weights[i]};
      }
      double reached = nearer;
      uint32_t digit = 0;  // the last that weighs anything, if rounding leaves all too little
      for (uint32_t next = 0; next < digits && reached < target; ++next) {
        if (bins[next] > 0) {
          digit = next;
          nearer = reached;
          reached += bins[next];
        }
      }
      if (reached < target && shift + bits_of_digit == 32) {
        return std::nullopt;
      }
      prefix = prefix << bits_of_digit | digit;
      size_t left = 0;
      for (size_t i = 0; i < count; ++i) {
        if (digit_of(distances[i]) == digit) {
          distances[left] = distances[i];
          weights[left++] = weights[i];
        }
      }
      count = left;
    }
    return std::bit_cast<float>(prefix);
  }

  const RangeFilters& filters_;
  WeighedValues<Type>& weighed_;
  Workspace& work_;
  const float maximum_;
  SumBounds sum_{};            // of weights
  RowFacts least_{};           // with the least of what each fact may be
  RowFacts most_{};            // with the most
  bool is_exact_ = false;      // then both are the same
  float floor_ = -kInfinity;   // nobody asks what is kept below
  double lowest_ = kInfinity;  // that was asked about
};

/// By exact facts alone, of any row.
template <typename Type>
Kept find_range_exactly(const Row<Type>& row, const RangeFilters& filters, Workspace& work) {
  const Groups groups{kSegmentLines, work.maxima};
  const RowWeights weights = weigh_exactly(row, groups, filters, work);
  if (!(std::fabs(weights.maximum) < kInfinity)) {
    return {};  // its entries share the mass, or there is none
  }
  const ScannedRow scanned{.has = filters.needs(),
                           .quotients = {weights.maximum, filters.temperature()},
                           .maximum = weights.maximum};
  WeighedValues<Type> weighed(row, scanned, groups, work);
  return RangeSearch<Type>(filters, weighed, work).find_exactly(weights);
}

/// By bounds, where these decide.
template <typename Type>
Kept find_range(const Row<Type>& row, const RangeFilters& filters, Workspace& work) {
  const Groups groups{kSegmentLines, work.maxima};
  const auto scanned = RangeScan<Type>(row, groups, filters.temperature(), filters.needs()).scan();
  if (!scanned.has_value()) {
    return find_range_exactly(row, filters, work);
  }
  WeighedValues<Type> weighed(row, *scanned, groups, work);
  return RangeSearch<Type>(filters, weighed, work).find();
}

/// The row with -inf for what is outside of a range; NaN stays, to be seen. A row that was edited
/// before is not to be read any more: it becomes this one.
template <typename Type>
Row<Type> keep_range(const Row<Type>& row, const Kept& range, Workspace& work) {
  auto* const out = work.edited.reserve<typename Type::Storage>(row.padded());
  const Floats least = splat(range.value);
  const Floats most = splat(range.most);
  const auto dropped = [&](const Floats& values) {
    return bits_of(is_greater(least, values) | is_greater(values, most));
  };
  for (size_t line = 0; line < row.lines(); ++line) {
    const Line logits = Type::load(row.line(line));
    const uint32_t bits = ~(dropped(logits.first) | dropped(logits.second) << kLanes);
    store(out + line * kLine, select_line<Type>(row.line(line), bits));
  }
  return {out, row.vocab_size()};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
