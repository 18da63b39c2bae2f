// The range of a row's values that its filters keep, where bounds of the row's sum and of its
// entropy decide it: one pass with cheap exponentials, and exact ones of the few that weigh.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "cpu/filters/weighed_values.h"
#include "cpu/rows/cut.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Finds what RangeSearch does, or rather a range that keeps the same values of the row.
template <typename Type>
class RangeBounds {
 public:
  RangeBounds(const RangeFilters& filters, WeighedValues<Type>& weighed)
      : filters_(filters),
        scanned_(weighed.scanned()),
        weighed_(weighed),
        temperature_(weighed.scanned().temperature()),
        maximum_(weighed.scanned().maximum) {}

  /// None where bounds do not decide.
  std::optional<ValueRange> find() {
    if (!scanned_.has.sum) {
      weighed_.gather(WeighedValues<Type>::first_bound(deviation_bound().least));
      return range({1, 1});
    }
    if (const std::optional<ValueRange> found = range(weighed_.sum_bounds())) {
      return found;  // else it is known what is asked for
    }
    for (const double depth : scanned_.has.mean ? kDepthsOfMeans : kDepths) {
      const double deep = weighed_.value_at(std::log(weighed_.sum_bounds().least) - depth);
      const float bound = WeighedValues<Type>::first_bound(std::min(deep, lowest_));
      if (bound >= weighed_.bound()) {
        continue;  // no more than is gathered, which has not decided
      }
      weighed_.gather(bound);
      if (const std::optional<ValueRange> found = range(weighed_.sum_bounds())) {
        return found;
      }
    }
    return std::nullopt;
  }

  /// The same where nothing matters but the first k that the range does not leave out above: what
  /// it keeps below them is not told. None too where these, so many of the total order or all that
  /// the row has, do not hold them.
  std::optional<ValueRange> find_among(const Candidates& first, size_t many, size_t k) {
    pad(first.values, first.count);
    const float last = first.values[first.count - 1];
    weighed_.weigh(first.values, first.count, first.count < many ? -kInfinity : last);
    floor_ = last;
    std::optional<ValueRange> found =
        range(scanned_.has.sum ? weighed_.sum_bounds() : SumBounds{1, 1});
    floor_ = -kInfinity;
    if (found.has_value() && count_above(*found) + k > many) {
      found.reset();
    }
    return found;
  }

  /// The same where bounds of the sum have not decided, by exact weights.
  std::optional<ValueRange> find(const RowWeights& weights) {
    mean_ = {weights.mean - kSlack, weights.mean + kSlack};
    return range(bound_sum(RowSum{maximum_, weights.sum}));
  }

  /// How many values exceed the range that was found.
  size_t count_above(const ValueRange& range) const {
    return range.most == maximum_ ? 0 : weighed_.count_from(next_above(range.most));
  }

 private:
  /// Below the logarithm of the sum: what is weighed exactly, so that bounds are narrow, at first
  /// and where that does not decide.
  static constexpr std::array<double, 3> kDepths{4, 8, 11};
  static constexpr std::array<double, 3> kDepthsOfMeans{6.5, 11, 14};
  static constexpr double kSlack = WeighedValues<Type>::kSlack;

  // What filters make of it.

  Between values_at(const Between& y) const {
    return {weighed_.value_at(y.least), weighed_.value_at(y.most)};
  }

  Between deviation_bound() const {
    const double below = filters_[kTopNSigma] * scanned_.deviation;
    const double margin = 5e-5 * below + 1e-6 * std::fabs(double{maximum_});
    return Between{-below - margin, -below + margin} + double{maximum_};
  }

  /// The least value that is at least as large as a bound, wherever that lies, or anything not
  /// above `floor`; none where values lie there too, or may.
  std::optional<float> decide(const Between& bound, float most, float floor = -kInfinity) {
    const double margin = 1e-6 * (std::fabs(bound.least) + std::fabs(bound.most) + 1);
    if (bound.most + margin < double{floor}) {
      return -kInfinity;
    }
    const double lowest = bound.least - margin;
    lowest_ = std::min(lowest_, lowest);
    const auto least = static_cast<float>(std::min(lowest, double{most}));
    const auto last = static_cast<float>(std::min(bound.most + margin, double{most}));
    if (!(least > weighed_.bound()) || weighed_.count_from(least) != weighed_.count_from(last)) {
      return std::nullopt;
    }
    return last;
  }

  std::optional<ValueRange> range(const SumBounds& sum) {
    lowest_ = kInfinity;
    ValueRange range{-kInfinity, maximum_};
    const Between log_sum{std::log(sum.least), std::log(sum.most)};
    const Between mean = mean_.has_value()   ? *mean_
                         : scanned_.has.mean ? weighed_.mean_bounds()
                                             : Between{0, 0};
    if (filters_.is_typical()) {
      const std::optional<ValueRange> typical = nearest(mean, sum);
      if (!typical.has_value()) {
        return std::nullopt;
      }
      range = *typical;
    }
    bool is_decided = true;
    const auto drop_below = [&](const Between& bound) {
      const std::optional<float> least = decide(bound, range.most, floor_);
      is_decided &= least.has_value();
      range.least = std::max(range.least, least.value_or(range.least));
    };
    if (filters_.is_on(kEpsilonCutoff)) {
      drop_below(values_at(log_sum + std::log(filters_[kEpsilonCutoff])));
    }
    if (filters_.is_on(kEtaCutoff)) {  // the entropy is log_sum - mean
      const double log_eta = std::log(filters_[kEtaCutoff]);
      drop_below(values_at({std::min(log_eta + log_sum.least, 0.5 * log_eta + mean.least),
                            std::min(log_eta + log_sum.most, 0.5 * log_eta + mean.most)}));
    }
    if (filters_.is_on(kTopA)) {
      const double log_a = std::log(filters_[kTopA]);
      drop_below(values_at({log_a - log_sum.most, log_a - log_sum.least}));
    }
    if (filters_.is_on(kTopNSigma)) {
      drop_below(deviation_bound());
    }
    if (filters_.is_on(kMinPBeforeExclusion)) {
      const double bound =
          double{range.most} + double{temperature_} * std::log(filters_[kMinPBeforeExclusion]);
      drop_below({bound, bound});
    }
    if (is_decided && filters_.is_on(kExclusionThreshold)) {
      const std::optional<float> enough =
          decide(values_at(log_sum + std::log(filters_[kExclusionThreshold])), maximum_);
      is_decided &= enough.has_value();
      range.most = least_from(std::max(enough.value_or(kInfinity), range.least), range.most);
    }
    return is_decided ? std::optional(range) : std::nullopt;
  }

  /// The least value from `enough` to `most`, or `most`.
  float least_from(float enough, float most) const {
    Floats least = splat(most);
    weighed_.for_gathered([&](const Floats& values, const Floats&, const Floats&) {
      const Mask is_enough = is_at_least(values, splat(enough));
      least = smaller(select(is_enough, values, splat(most)), least);
    });
    return -largest_lane(-least);
  }

  /// What typical sampling keeps: what lies nearest to the mean of y, of any that the bounds allow.
  std::optional<ValueRange> nearest(const Between& mean, const SumBounds& sum) const {
    constexpr int kSteps = 14;
    const double target = filters_.typical_p();
    const double middle = 0.5 * (mean.least + mean.most);
    const Floats center = splat(static_cast<float>(middle));
    const double enough = target * 0.5 * (sum.least + sum.most);
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
    return prove(static_cast<float>(far), center, mean, sum);
  }

  /// The values within a distance of the center, if these are what is kept for every mean and sum
  /// between the bounds.
  std::optional<ValueRange> prove(float distance, const Floats& center, const Between& mean,
                                  const SumBounds& sum) const {
    const Floats lowest = splat(-kInfinity);
    const Floats highest = splat(kInfinity);
    Floats least = highest;  // of y, within
    Floats most = lowest;
    Floats least_value = highest;
    Floats most_value = lowest;
    weighed_.for_gathered([&](const Floats& values, const Floats& y, const Floats&) {
      const Mask is_near = is_at_least(splat(distance), absolute(y - center));
      least = smaller(select(is_near, y, highest), least);
      most = larger(select(is_near, y, lowest), most);
      least_value = smaller(select(is_near, values, highest), least_value);
      most_value = larger(select(is_near, values, lowest), most_value);
    });
    const float first = -largest_lane(-least);
    const float last = largest_lane(most);
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
    const double behind{-largest_lane(-above)};
    const double slack = kSlack * (1 - before);
    const double target = filters_.typical_p();
    const double with_all = weights.total();
    const double enough = target * sum.most * (1 + kSlack);
    const double too_little = target * sum.least * (1 - kSlack);
    // The one that is farther may not go, where either may be, neither.
    const double ends = double{first} + double{last};
    const bool may_be_first = 2 * mean.most - ends > -slack;
    const bool may_be_last = 2 * mean.least - ends < slack;
    const bool is_certain = with_all >= enough &&
                            (!may_be_first || with_all - firsts.total() < too_little) &&
                            (!may_be_last || with_all - lasts.total() < too_little) &&
                            2 * mean.least - before - double{last} > slack &&
                            behind + double{first} - 2 * mean.most > slack;
    return is_certain
               ? std::optional(ValueRange{-largest_lane(-least_value), largest_lane(most_value)})
               : std::nullopt;
  }

  const RangeFilters& filters_;
  const ScannedRow& scanned_;
  WeighedValues<Type>& weighed_;
  const float temperature_;
  const float maximum_;
  float floor_ = -kInfinity;     // nobody asks what is kept below
  double lowest_ = kInfinity;    // that was asked about
  std::optional<Between> mean_;  // of y, where it is known exactly
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
