// The range of a row's values that its filters keep: by bounds of what they ask of the row, which
// one pass with cheap exponentials and exact ones of the few that weigh leave; and by exact
// weights.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "cpu/filters/range_filters.h"
#include "cpu/filters/range_scan.h"
#include "cpu/filters/weighed_values.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/edits.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline float least_lane(const Floats& vector) {
  float lanes[kLanes];
  store(lanes, vector);
  return *std::min_element(lanes, lanes + kLanes);
}

/// The least and the largest of the values that a mask chooses.
class Extremes {
 public:
  ASCEND_SAMPLE_INLINE void add(const Floats& values, const Mask& mask) {
    least_ = smaller(select(mask, values, splat(kInfinity)), least_);
    most_ = larger(select(mask, values, splat(-kInfinity)), most_);
  }
  ValueRange range() const { return {least_lane(least_), largest_lane(most_)}; }

 private:
  Floats least_ = splat(kInfinity);
  Floats most_ = splat(-kInfinity);
};

/// Finds the range of a row's values that its filters keep, by exact weights. What is gathered of
/// the row stays.
template <typename Type>
class ExactRange {
 public:
  ExactRange(const Row<Type>& row, const RangeFilters& filters, Workspace& work)
      : row_(row),
        filters_(filters),
        work_(work),
        distances_(work.room_values[1]),
        weights_(work.room_weights[1]) {
    scan();
    if (filters_.needs().sum && is_finite()) {
      weigh();
    }
  }

  /// Of the weights. They mean nothing where the maximum is infinite.
  double sum() const { return sum_; }
  /// But for the deviation.
  const RowFacts& facts() const { return facts_; }

  ValueRange find() {
    if (!is_finite()) {
      return {};  // its entries share the mass, or there is none
    }
    if (filters_.needs().deviation) {
      facts_.deviation = deviation_of(row_, facts_.scale.maximum);
    }
    return *filters_.range_of(facts_.scale.maximum, *this);
  }

 private:
  friend RangeFilters;

  /// One pass: the maximum, and the sums of chunks, each relative to its own maximum.
  void scan() {
    const Groups groups{kChunkLines, work_.folded_maxima};  // which nobody reads
    const ChunkSums& chunks = work_.chunk_sums;
    NoStatus unseen;
    Floats largest = splat(-kInfinity);
    for (size_t index = 0; index < row_.chunks(); ++index) {
      const Floats of_chunk = scan_chunk<Type>(row_.chunk(index), groups, groups.maxima, unseen);
      const float reference = largest_lane(of_chunk);
      largest = larger(largest, of_chunk);
      chunks.maxima[index] = reference;
      chunks.sums[index] = chunks.exponentials[index] = 0;
      if (filters_.needs().sum && reference > -kInfinity && reference < kInfinity) {
        if (filters_.needs().mean) {
          sum_chunk<true>(row_.chunk(index), reference, chunks.sums[index],
                          chunks.exponentials[index]);
        } else {
          sum_chunk<false>(row_.chunk(index), reference, chunks.sums[index],
                           chunks.exponentials[index]);
        }
      }
    }
    facts_.scale = {largest_lane(largest), filters_.temperature()};
  }

  bool is_finite() const { return std::fabs(facts_.scale.maximum) < kInfinity; }

  /// Adds up what chunks weigh.
  void weigh() {
    const ChunkSums& chunks = work_.chunk_sums;
    double weighted = 0;
    for (size_t index = 0; index < row_.chunks(); ++index) {
      const double sum = chunks.sums[index];
      if (sum > 0) {
        const double shift = (double{chunks.maxima[index]} - double{facts_.scale.maximum}) /
                             double{facts_.scale.temperature};
        const double scale = exp_not_positive(shift);
        sum_ += scale * sum;
        weighted += scale * (chunks.exponentials[index] + shift * sum);
      }
    }
    facts_.log_sum = std::log(sum_);
    facts_.mean = weighted / sum_;
  }

  /// The sum of the weights of a chunk, relative to its maximum, and of their products with y.
  template <bool kWantsProducts>
  void sum_chunk(const typename Type::Storage* chunk, float reference, double& sum,
                 double& weighted) const {
    const Scale scale{reference, filters_.temperature()};
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
      divided(Type::load_unordered(chunk + line * kLine), scale,
              [&](const Floats& first, const Floats& second) {
                add(first, sums.first, products.first);
                add(second, sums.second, products.second);
              });
    }
    sum = sum_lanes(sums.first + sums.second);
    weighted = sum_lanes(products.first + products.second);
  }

  // What filters ask for.

  /// The smallest float32 that is not below the bound, which may be above `best`.
  std::optional<float> first_from(RangeFilter filter, float best) const {
    const double bound = filters_.bound_of(filter, facts_, best);
    const auto near = static_cast<float>(bound);
    return double{near} < bound ? next_above(near) : near;
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
    return least_lane(least);
  }

  /// What lies nearest to the mean of y, the nearest first, until it weighs enough: |-log(p) -
  /// entropy| is |y - mean|. Mostly that is among the few that weigh much, and nearly always among
  /// those that weigh more than 2e-9.
  std::optional<ValueRange> typical() const {
    const double target = filters_.typical_p() * sum_;
    const auto mean = static_cast<float>(facts_.mean);
    std::optional<float> distance;
    for (const float depth : {8.0F, 20.0F, kInfinity}) {
      distance = distance_with(gather_nearest(-depth, mean), target);
      if (distance.has_value() && *distance < depth + mean) {  // beyond are others as near
        break;
      }
    }
    return nearer_than(distance.value_or(kInfinity), mean);
  }

  /// The range of the values above -inf that are no farther than a distance from the mean of y.
  ValueRange nearer_than(float distance, float mean) const {
    const Floats bound = splat(distance);
    const Floats center = splat(mean);
    Extremes extremes;
    for (size_t line = 0; line < row_.lines(); ++line) {
      const Line logits = Type::load(row_.line(line));
      const auto look = [&](const Floats& y, const Floats& values) {
        extremes.add(values, is_at_least(bound, absolute(y - center)) &
                                 is_greater(values, splat(-kInfinity)));
      };
      divided(logits, facts_.scale, [&](const Floats& first, const Floats& second) {
        look(first, logits.first);
        look(second, logits.second);
      });
    }
    return extremes.range();
  }

  /// Puts the distances from the mean and the weights of what has a y above a bound into the
  /// workspace, by ascending id. Returns their number.
  size_t gather_nearest(float bound, float mean) const {
    const Floats bounds = splat(bound);
    const Floats center = splat(mean);
    size_t count = 0;
    for (size_t line = 0; line < row_.lines(); ++line) {
      const auto gather = [&](const Floats& y) {
        const Mask mask = is_greater(y, bounds);
        if (bits_of(mask) != 0) {
          compress(distances_ + count, mask, absolute(y - center));
          count += compress(weights_ + count, mask, weight_of(y));
        }
      };
      divided(Type::load(row_.line(line)), facts_.scale,
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
  std::optional<float> distance_with(size_t count, double target) const {
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
        bins[digit_of(distances_[i])] += double{weights_[i]};
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
        if (digit_of(distances_[i]) == digit) {
          distances_[left] = distances_[i];
          weights_[left++] = weights_[i];
        }
      }
      count = left;
    }
    return std::bit_cast<float>(prefix);
  }

  const Row<Type>& row_;
  const RangeFilters& filters_;
  Workspace& work_;
  float* const distances_;  // from the mean, of what was gathered
  float* const weights_;
  RowFacts facts_{};
  double sum_ = 0;  // of weights
};

/// Finds a range that keeps the same values of the row as ExactRange's: by bounds where these
/// decide.
template <typename Type>
class RangeSearch {
 public:
  RangeSearch(const RangeFilters& filters, WeighedValues<Type>& weighed, Workspace& work)
      : filters_(filters), weighed_(weighed), work_(work), maximum_(weighed.scale().maximum) {}

  ValueRange find() {
    const Scanned& has = weighed_.scanned().has;
    std::optional<ValueRange> found = range();  // else it is known what is asked for
    for (const double depth : has.mean ? kDepthsOfMeans : kDepths) {
      const double deep = has.sum ? weighed_.value_at(least_.log_sum - depth) : kInfinity;
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
  std::optional<ValueRange> find_among(const Candidates& first, size_t many, size_t k) {
    pad(first.values, first.count);
    const float last = first.values[first.count - 1];
    weighed_.weigh(first.values, first.count, first.count < many ? -kInfinity : last);
    floor_ = last;
    std::optional<ValueRange> found = range();
    floor_ = -kInfinity;
    if (found.has_value() && *count_above(*found) + k > many) {
      found.reset();
    }
    return found;
  }

  /// How many values exceed a range; none where not all of them were gathered.
  std::optional<size_t> count_above(const ValueRange& range) const {
    if (range.most == maximum_) {
      return 0;
    }
    return range.most < weighed_.bound()
               ? std::nullopt
               : std::optional(weighed_.count_from(next_above(range.most)));
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
  [[gnu::noinline]] ValueRange find_exactly() {
    ExactRange<Type> exact(weighed_.row(), filters_, work_);
    std::optional<ValueRange> found;
    if (filters_.needs().sum) {
      const double mean = exact.facts().mean;
      found = range(bound_sum(RowSum{maximum_, exact.sum()}), {mean - kSlack, mean + kSlack});
    }
    return found.has_value() ? *found : exact.find();  // a tie, but for rounding
  }

  /// By what is gathered; none where that does not decide.
  std::optional<ValueRange> range() {
    const Scanned& has = weighed_.scanned().has;
    return range(has.sum ? weighed_.sum_bounds() : SumBounds{1, 1},
                 has.mean ? weighed_.mean_bounds() : Interval{0, 0});
  }

  /// For every sum and mean between bounds.
  std::optional<ValueRange> range(const SumBounds& sum, const Interval& mean) {
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

  /// The least value from `enough` to `most`, or `most`.
  float least_between(float enough, float most) const {
    Floats least = splat(most);
    weighed_.for_gathered([&](const Floats& values, const Floats&, const Floats&) {
      const Mask is_enough = is_at_least(values, splat(enough));
      least = smaller(select(is_enough, values, splat(most)), least);
    });
    return least_lane(least);
  }

  /// What lies nearest to the mean of y, of any that the bounds allow.
  std::optional<ValueRange> typical() const {
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
    return prove(splat(static_cast<float>(far)), center);
  }

  /// The values within a distance of the center, if these are what is kept for every mean and sum
  /// between the bounds.
  std::optional<ValueRange> prove(const Floats& distance, const Floats& center) const {
    const Floats lowest = splat(-kInfinity);
    const Floats highest = splat(kInfinity);
    Extremes extremes_of_y;
    Extremes extremes;
    weighed_.for_gathered([&](const Floats& values, const Floats& y, const Floats&) {
      const Mask is_near = is_at_least(distance, absolute(y - center));
      extremes_of_y.add(y, is_near);
      extremes.add(values, is_near);
    });
    const auto [first, last] = extremes_of_y.range();
    if (!(first <= last)) {
      return std::nullopt;
    }
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
    const double behind{least_lane(above)};
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
    return is_certain ? std::optional(extremes.range()) : std::nullopt;
  }

  const RangeFilters& filters_;
  WeighedValues<Type>& weighed_;
  Workspace& work_;
  const float maximum_;
  SumBounds sum_{};            // of weights
  RowFacts least_{};           // with the least of what each fact may be
  RowFacts most_{};            // with the most
  float floor_ = -kInfinity;   // nobody asks what is kept below
  double lowest_ = kInfinity;  // that was asked about
};

template <typename Type>
ValueRange find_range_exactly(const Row<Type>& row, const RangeFilters& filters, Workspace& work) {
  return ExactRange<Type>(row, filters, work).find();
}

/// By bounds, where these decide.
template <typename Type>
ValueRange find_range(const Row<Type>& row, const RangeFilters& filters, Workspace& work) {
  const Groups groups{kSegmentLines, work.maxima};
  const auto scanned = RangeScan<Type>(row, groups, filters.temperature(), filters.needs()).scan();
  if (!scanned.has_value()) {
    return find_range_exactly(row, filters, work);
  }
  WeighedValues<Type> weighed(row, *scanned, groups, work);
  return RangeSearch<Type>(filters, weighed, work).find();
}

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
