// The values of a row above a bound, weighed exactly, and the bounds that this leaves to the row's
// sum and to the mean of its y, from cheap exponentials of the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/rows/hits.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/temperature.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The y of values, none of which exceeds the scale's maximum. NaN stays that.
ASCEND_SAMPLE_INLINE Floats y_of(const Floats& values, const Scale& scale) {
  const Floats difference = values - splat(scale.maximum);
  return scale.temperature == 1.0F ? difference : difference / splat(scale.temperature);
}

/// exp(y), and exactly 0 where that is nothing, for NaN too.
ASCEND_SAMPLE_INLINE Floats weight_of(const Floats& y) {
  return select(is_greater(y, splat(kLeastLogWeight)), exp_not_positive(y), Floats{});
}

/// A value weighs exp(y), where y = (value - maximum) / temperature.
template <typename Type>
class WeighedValues {
 public:
  static constexpr double kSlack = 1e-5;  // more than rounding changes of a weight

  /// The row is scanned, with these groups.
  WeighedValues(const Row<Type>& row, const ScannedRow& scanned, const Groups& groups,
                Workspace& work)
      : row_(row),
        scanned_(scanned),
        groups_(groups),
        work_(work),
        scale_{scanned.maximum, scanned.temperature()},
        rest_(scanned.approximate.sum),
        rest_product_(scanned.product) {}

  const Row<Type>& row() const { return row_; }
  const Groups& groups() const { return groups_; }
  const ScannedRow& scanned() const { return scanned_; }

  // What is gathered.

  /// A little below a value.
  static float first_bound(double value) {
    return static_cast<float>(value - kSlack * (1 + std::fabs(value)));
  }

  /// Gathers the values above a bound, with what is asked of their weights: up to so many. Returns
  /// false where there are more.
  bool gather(float bound, size_t most = std::numeric_limits<size_t>::max()) {
    if (hit_above(row_, groups_, bound, work_.hits) > most) {
      return false;
    }
    weigh(work_.values, copy_hit_values(row_, work_.hits, work_.values), bound);
    return true;
  }

  /// The same where all values above a bound are gathered already, with -inf behind them.
  void weigh(const float* values, size_t count, float bound) {
    bound_ = bound;
    values_ = values;
    count_ = count;
    if (!scanned_.has.sum) {
      return;
    }
    Sum weights;
    Sum approximate;
    Sum products;
    Sum approximate_products;
    for (size_t i = 0; i < count_; i += kLanes) {
      const Floats values = load_floats(values_ + i);
      const Floats y = y_of(values, scale_);
      const Floats weight = weight_of(y);
      store(work_.exponents + i, y);
      store(work_.weights + i, weight);
      weights.add(weight);
      const Floats limited = larger(y, splat(kLeastLogWeight));
      products.add(weight * limited);
      const Floats quotient = scanned_.quotients.of(values);
      const Floats cheap = scanned_.quotients.approximate_exp_of(values);
      approximate.add(cheap);
      approximate_products.add(cheap * larger(quotient, splat(kLeastLogWeight)));
    }
    weight_ = weights.total();
    weighted_ = -products.total();
    rest_ = scanned_.approximate.sum - approximate.total();
    rest_product_ = scanned_.product - approximate_products.total();
  }

  /// Weighs the whole row, so that bounds of its sum are those of rounding.
  void weigh_all() {
    const Floats reference = splat(scale_.maximum);
    const Floats inverse = splat(1.0F / scale_.temperature);
    Sum all;
    for (size_t line = 0; line < row_.lines(); ++line) {
      const Line logits = Type::load(row_.line(line));
      all.add(weight_of((logits.first - reference) * inverse));
      all.add(weight_of((logits.second - reference) * inverse));
    }
    all_ = all.total();
  }

  /// All values above it are gathered.
  float bound() const { return bound_; }
  size_t count() const { return count_; }
  double weight() const { return weight_; }

  size_t count_from(float least) const {
    return count_at_least(values_, (count_ + kLine - 1) / kLine * kLine, least);
  }

  /// Calls `visit` with vectors of what was gathered: values, y, weights.
  template <typename Visit>
  void for_gathered(Visit visit) const {
    for (size_t i = 0; i < count_; i += kLanes) {
      visit(load_floats(values_ + i), load_floats(work_.exponents + i),
            load_floats(work_.weights + i));
    }
  }

  /// The least of what was gathered from `enough` to `most`; `most` if there is none.
  float least_between(float enough, float most) const {
    Floats least = splat(most);
    for_gathered([&](const Floats& values, const Floats&, const Floats&) {
      const Mask is_enough = is_at_least(values, splat(enough));
      least = smaller(select(is_enough, values, splat(most)), least);
    });
    return -largest_lane(-least);
  }

  /// The least and the largest of what was gathered whose y is no farther than a distance from a
  /// center.
  Kept within(float distance, float center) const {
    const Floats lowest = splat(-kInfinity);
    Floats least = splat(kInfinity);
    Floats most = lowest;
    for_gathered([&](const Floats& values, const Floats& y, const Floats&) {
      const Mask is_near =
          is_at_least(splat(distance), absolute(y - splat(center))) & is_greater(values, lowest);
      least = smaller(select(is_near, values, splat(kInfinity)), least);
      most = larger(select(is_near, values, lowest), most);
    });
    return {largest_lane(most), -largest_lane(-least)};
  }

  // What it tells of the row.

  const Scale& scale() const { return scale_; }

  /// The y of what was not gathered is no more.
  double value_below() const {
    return (double{bound_} - double{scale_.maximum}) / double{scale_.temperature} + kSlack;
  }

  /// Of exp(y), over the row.
  SumBounds sum_bounds() const {
    if (all_ > 0) {
      return {all_ * (1 - kSlack), all_ * (1 + kSlack)};
    }
    const double rounding = kRounding * scanned_.approximate.sum;
    const double least = std::max(0.0, rest_ - rounding) / largest_ratio();
    const double most = (rest_ + rounding) / least_ratio();
    return {(weight_ + least) * (1 - kSumMargin), (weight_ + most) * (1 + kSumMargin)};
  }

  /// Of y, each as often as it weighs. What is not gathered draws the mean down, with more weight
  /// the more, if all of it is below the mean.
  Interval mean_bounds() const {
    const double maximum{scanned_.approximate.maximum};
    const double rounding = kRounding * scanned_.approximate.sum;
    const double size = (3 * std::fabs(maximum) + 1) * scanned_.approximate.sum;
    const double shift =
        0x1p-21 * std::fabs(double{scanned_.quotients.shift()}) * scanned_.approximate.sum;
    const double product_rounding = 2 * kRounding * (size + std::fabs(scanned_.product)) + shift;
    const double product = maximum * rest_ - rest_product_;  // with -y
    const auto mean_with = [&](double ratio, double rest_ratio, double sign) {
      const double rest = std::max(0.0, rest_ - sign * rounding);
      const double rest_product = std::max(0.0, product + sign * product_rounding);
      return -(weighted_ + rest_product / ratio) / (weight_ + rest / rest_ratio) *
             (1 + sign * (kSlack + 2 * kSumMargin));
    };
    const double least = least_ratio();
    const double largest = largest_ratio();
    const Interval mean{mean_with(least, least, 1), mean_with(largest, largest, -1)};
    return value_below() <= mean.least
               ? mean
               : Interval{mean_with(least, largest, 1), mean_with(largest, least, -1)};
  }

 private:
  static constexpr double kRounding = ScannedRow::kRounding;
  static constexpr double kQuotients = 2e-4;  // what their rounding changes of a weight

  // What an approximate sum is over the right one, of weights relative to the maximum's.
  double least_ratio() const {
    return kLeastRatio * (1 - kQuotients) * std::exp(double{scanned_.approximate.maximum});
  }
  double largest_ratio() const {
    return kLargestRatio * (1 + kQuotients) * std::exp(double{scanned_.approximate.maximum});
  }

  const Row<Type>& row_;
  const ScannedRow scanned_;
  const Groups groups_;
  Workspace& work_;
  const Scale scale_;
  float bound_ = kInfinity;
  const float* values_ = nullptr;
  size_t count_ = 0;
  double weight_ = 0;    // of what is gathered
  double weighted_ = 0;  // the sum of its -y
  double all_ = 0;       // of the row, where it was weighed
  double rest_;          // approximate sums of the others
  double rest_product_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
