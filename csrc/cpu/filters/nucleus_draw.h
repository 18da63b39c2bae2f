// The draw from the nucleus of a row, or of a range of its values, without a copy of the row:
// bounds of the sum leave the nucleus' end between two cuts, and most draws are the same with both.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "cpu/draws/segments.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/rules.h"
#include "cpu/filters/weighed_values.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class NucleusDraw {
 public:
  /// Of a row that is drawn from by segments: what top-p, and perhaps min-p, keep of this range.
  NucleusDraw(WeighedValues<Type>& weighed, const ValueRange& range, const RowArguments& arguments,
              Workspace& work)
      : weighed_(weighed),
        range_(range),
        has_all_(range.least > -kInfinity),
        arguments_(arguments),
        work_(work) {}

  /// The drawn id; none where the nucleus is large, or rounding decides.
  std::optional<size_t> draw() {
    for (const double depth : kDepths) {
      gather(depth);
      if (weighed_.count() > kMostGathered) {
        return std::nullopt;
      }
      if (const std::optional<size_t> drawn = draw_by_bounds()) {
        return drawn;
      }
      if (has_all_) {
        return std::nullopt;
      }
    }
    if (!is_gathered_) {
      return std::nullopt;
    }
    weighed_.weigh_all();
    return draw_by_bounds();
  }

 private:
  /// Below the logarithm of the sum: what is weighed exactly, at first and where that does not do.
  static constexpr std::array<double, 3> kDepths{6.5, 9.5, 12.5};
  static constexpr size_t kMostGathered = 16384;
  static constexpr double kSlack = WeighedValues<Type>::kSlack;

  /// Draws what both ends of the nucleus draw that bounds of the sum leave; none where they differ.
  std::optional<size_t> draw_by_bounds() {
    const SumBounds sum = bound_sum_of_range();
    const double p = arguments_.target();
    const std::optional<Cut> least = cut_at(p * sum.least * (1 - kSlack), 1 + kUnsure);
    const std::optional<Cut> most = cut_at(p * sum.most * (1 + kSlack), 1 - kUnsure);
    is_gathered_ = least.has_value() && most.has_value();
    if (!is_gathered_ || (arguments_.needs_list() && *least != *most)) {
      return std::nullopt;
    }
    return draw_between(segmented_draw(), *least, *most, arguments_, work_);
  }

  /// Of what is below a range it is not known how much that weighs: all of the range is gathered.
  void gather(double depth) {
    const double deep = std::log(weighed_.sum_bounds().least) - depth;
    weighed_.gather(has_all_ ? next_below(range_.least)
                             : WeighedValues<Type>::first_bound(weighed_.value_at(deep)));
  }

  /// Calls `visit` with vectors of what was gathered of the range: values, y, weights. What exceeds
  /// the range has a y of -inf, and no weight.
  template <typename Visit>
  void for_range(Visit visit) const {
    const Floats most = splat(range_.most);
    weighed_.for_gathered([&](const Floats& values, const Floats& y, const Floats& weight) {
      const Mask is_of_range = is_at_least(most, values);
      visit(values, select(is_of_range, y, splat(-kInfinity)),
            select(is_of_range, weight, Floats{}));
    });
  }

  SumBounds bound_sum_of_range() const {
    const double within = weight_above(-kInfinity);
    if (has_all_) {
      return {within, within};
    }
    const double beyond = weighed_.weight() - within;
    const SumBounds sum = weighed_.sum_bounds();
    return {std::max(0.0, sum.least - beyond * (1 + kSlack)), sum.most - beyond * (1 - kSlack)};
  }

  /// Of all with a larger y.
  double weight_above(float bound) const {
    const Floats bounds = splat(bound);
    Sum above;
    for_range([&](const Floats&, const Floats& y, const Floats& weight) {
      above.add(select(is_greater(y, bounds), weight, Floats{}));
    });
    return above.total();
  }

  /// Those with one y, which filters tell apart by their ids.
  struct Equals {
    float y;
    size_t count = 0;
    double each = 0;  // weighs one of them
    float least;      // of their values
    float most;
  };

  /// Those with the largest y that is not above a bound.
  Equals equals_at(float bound) const {
    const Floats bounds = splat(bound);
    const Floats lowest = splat(-kInfinity);
    Floats largest = lowest;
    for_range([&](const Floats&, const Floats& y, const Floats&) {
      largest = larger(select(is_at_least(bounds, y), y, lowest), largest);
    });
    Equals found{.y = largest_lane(largest), .least = kInfinity, .most = -kInfinity};
    const Floats wanted = splat(found.y);
    Floats least = splat(kInfinity);
    Floats most = lowest;
    for_range([&](const Floats& values, const Floats& y, const Floats&) {
      const Mask is_equal_to = is_equal(y, wanted);
      found.count += static_cast<size_t>(__builtin_popcount(bits_of(is_equal_to)));
      least = smaller(select(is_equal_to, values, splat(kInfinity)), least);
      most = larger(select(is_equal_to, values, lowest), most);
    });
    found.least = -largest_lane(-least);
    found.most = largest_lane(most);
    found.each = exp_not_positive(double{found.y});
    return found;
  }

  /// Where what is kept ends, if the nucleus' weight is to exceed a target; none where that is
  /// below what is gathered, or among different values of the same y.
  std::optional<Cut> cut_at(double target, double min_p_factor) const {
    const float least = arguments_.uses_min_p() ? least_of_min_p(min_p_factor) : -kInfinity;
    if (weight_above(-kInfinity) > target) {
      const std::optional<Cut> cut = cut_of_nucleus(target);
      return cut.has_value() && least > cut->value ? cut_from(least) : cut;
    }
    if (has_all_ || least > weighed_.bound()) {
      return cut_from(std::max(least, range_.least));
    }
    return std::nullopt;
  }

  float least_of_min_p(double factor) const {
    const float min_p = arguments_.with_min_p_times(factor).min_p;
    return cut_of_min_p(min_p, range_.most, weighed_.scanned().temperature(), last_id()).value;
  }

  /// All of at least a value, by the least one that there is.
  Cut cut_from(float value) const {
    const Floats bounds = splat(value);
    Floats least = splat(range_.most);
    weighed_.for_gathered([&](const Floats& values, const Floats&, const Floats&) {
      least = smaller(select(is_at_least(values, bounds), values, least), least);
    });
    return {-largest_lane(-least), last_id()};
  }

  size_t last_id() const { return weighed_.row().vocab_size() - 1; }

  /// The same of the nucleus alone, whose weight what is gathered exceeds.
  std::optional<Cut> cut_of_nucleus(double target) const {
    constexpr int kSteps = 12;
    constexpr int kMostSteps = 8;                               // from one y to the next
    auto low = static_cast<float>(weighed_.value_below() - 1);  // what is above exceeds the target
    float high = 0.0F;                                          // what is above does not
    for (int step = 0; step < kSteps; ++step) {
      const float middle = 0.5F * (low + high);
      (weight_above(middle) > target ? low : high) = middle;
    }
    for (int step = 0; step < kMostSteps; ++step) {
      const Equals equals = equals_at(high);
      const double above = weight_above(equals.y);
      // The first is kept: sums are rounded less than the slack of targets.
      const double kept = std::max(1.0, std::floor((target - above) / equals.each) + 1);
      if (kept > static_cast<double>(equals.count)) {
        high = next_below(equals.y);
        continue;
      }
      if (kept == static_cast<double>(equals.count)) {
        return Cut{equals.least, last_id()};
      }
      if (equals.least != equals.most) {
        return std::nullopt;
      }
      const auto rank = static_cast<size_t>(kept) - 1;
      return Cut{equals.least, find_equal(weighed_.row(), equals.least, rank, weighed_.groups())};
    }
    return std::nullopt;
  }

  SegmentedDraw<Type> segmented_draw() const {
    return {weighed_.row(),
            weighed_.groups(),
            range_.most,
            weighed_.scanned().temperature(),
            *arguments_.segments,
            work_,
            0,
            range_.most};
  }

  WeighedValues<Type>& weighed_;
  const ValueRange range_;
  const bool has_all_;        // of the range, once something is gathered
  bool is_gathered_ = false;  // the nucleus
  const RowArguments& arguments_;
  Workspace& work_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
