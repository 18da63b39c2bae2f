// The draw from the nucleus of a row, or of a range of its values, without a copy of the row:
// bounds of the sum leave two ends of the nucleus, and most draws are the same with both.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/filters/kept_list.h"
#include "cpu/filters/rank_draw.h"
#include "cpu/filters/rules.h"
#include "cpu/filters/weighed_values.h"
#include "cpu/filters/weighted_set.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class NucleusDraw {
 public:
  /// What top-p, and perhaps min-p, keep of this range of a row.
  NucleusDraw(WeighedValues<Type>& weighed, const Kept& range, const RowArguments& arguments,
              const Report& report, Workspace& work)
      : weighed_(weighed),
        range_(range),
        has_all_(range.value > -kInfinity),
        arguments_(arguments),
        report_(report),
        work_(work) {}

  /// The drawn id; none where the nucleus is large, or rounding decides.
  std::optional<size_t> draw() {
    double reached = 0;
    // What is kept needs one end: where the first try leaves two, hardly a try between decides.
    const double second = kDepths[report_.needs_end() ? 2 : 0];
    for (const double next :
         {work_.history.depth + kMore, second, kDepths[1], kDepths[2], kDepths[3]}) {
      const double depth = std::clamp(next, kDepths[0], kDepths[3]);
      if (depth <= reached) {
        continue;
      }
      reached = depth;
      if (!gather(depth)) {
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
  static constexpr double kDepths[]{6.5, 9.5, 12.5, 15.5};
  static constexpr double kMore = 0.25;        // than for the row before
  static constexpr size_t kMostListed = 2048;  // of more, bounds hardly leave one end
  static constexpr size_t kMostAround = kSampleLines * kLine - kLanes;
  static constexpr double kSlack = WeighedValues<Type>::kSlack;

  /// Where what is kept ends: at some, or all, of the equals of a value. `count` are kept, with
  /// what is beyond the range.
  struct End {
    float value;
    size_t count;
    size_t kept_equals = 0;
    size_t equals = 0;
  };

  /// Draws what both ends of the nucleus draw that bounds of the sum leave; none where they differ.
  std::optional<size_t> draw_by_bounds() {
    const double beyond = weight_beyond();
    const SumBounds sum = bound_sum_of_range(beyond);
    const double p = arguments_.target();
    const Targets targets{(beyond + p * sum.least) * (1 - kSlack),
                          (beyond + p * sum.most) * (1 + kSlack)};
    const WeightedSet around = narrowed(targets);
    const auto least = end_at(targets.least, around, 1 + kUnsure);
    const auto most = end_at(targets.most, around, 1 - kUnsure);
    const bool has_ends = least.has_value() && most.has_value();
    is_gathered_ = has_ends || weighed_.weight() > targets.most;
    if (!has_ends || (report_.needs_end() && least->count != most->count)) {
      return std::nullopt;
    }
    const double end = (double{most->value} - weighed_.scanned().maximum) / temperature();
    work_.history.depth = std::log(sum.most) - end;
    work_.history.note_large(false);
    if (!arguments_.draw.is_by_segments()) {
      return draw_ranked(*least, *most, sum);
    }
    const Kept outer = kept_to(*most);
    const Kept inner = least->count == most->count ? outer : kept_to(*least);
    return draw_kept(weighed_.row(), weighed_.groups(), {range_.most, temperature()},
                     {inner, outer}, arguments_.draw.key(), report_, work_);
  }

  Kept kept_to(const End& end) const {
    Kept kept =
        keep_equals(weighed_.row(), end.value, end.kept_equals, end.equals, weighed_.groups());
    kept.most = range_.most;
    return kept;
  }

  /// The same by rank.
  std::optional<size_t> draw_ranked(const End& least, const End& most, const SumBounds& sum) {
    const Row<Type>& row = weighed_.row();
    const float maximum = weighed_.scanned().maximum;
    if (report_.wants_kept()) {
      write_kept(row, kept_to(most), report_.kept.data());
    }
    if (!arguments_.is_drawn()) {
      return find_equal(row, maximum, 0, weighed_.groups());
    }
    const WeightedSet values{work_.values, nullptr, weighed_.count()};
    const auto quantile_of = [&](size_t rank) {
      return find_quantile<Weight::kOne>(
          values, maximum, static_cast<double>(rank),
          {{work_.room_values[0], nullptr}, {work_.room_values[1], nullptr}});
    };
    const auto drawn = draw_by_rank(
        contiguous(arguments_.draw.noise(), most.count, work_),
        {least.count, most.count, most.value, sum, maximum}, quantile_of,
        [&](float value) { return count_greater(values, value); }, arguments_, work_);
    return drawn.has_value()
               ? std::optional(find_equal(row, drawn->at.value, drawn->rank - drawn->at.count_above,
                                          weighed_.groups()))
               : std::nullopt;
  }

  /// What a nucleus has to exceed, with what is beyond the range.
  struct Targets {
    double least;
    double most;
  };

  /// What lies around the ends of the nucleus, in the place of values their y. It is all, or few.
  WeightedSet narrowed(const Targets& targets) const {
    constexpr int kSteps = 10;
    const WeightedSet all{work_.exponents, work_.weights, weighed_.count()};
    if (weighed_.count() <= kFewSorted) {
      return all;
    }
    Bracket bracket{kLowest, 0.0F};
    auto low = static_cast<float>(weighed_.value_below() - 1);
    for (int step = 0; step < kSteps; ++step) {
      const float middle = 0.5F * (low + bracket.high);
      const double above = weight_above(middle);
      if (above > targets.most) {
        low = middle;
        bracket.low = next_above(middle);
      } else if (above <= targets.least) {
        bracket.high = middle;
      } else {
        break;
      }
    }
    return partition<Weight::kExponential>(all, bracket,
                                           {work_.room_values[1], work_.room_weights[1]});
  }

  double weight_above(float y) const {
    const Floats bounds = splat(y);
    Sum above;
    weighed_.for_gathered([&](const Floats&, const Floats& of_values, const Floats& weight) {
      above.add(select(is_greater(of_values, bounds), weight, Floats{}));
    });
    return above.total();
  }

  /// Of what is below a range it is not known how much that weighs: all of the range is gathered.
  /// Returns whether that is not too much.
  bool gather(double depth) {
    const double deep = std::log(weighed_.sum_bounds().least) - depth;
    return weighed_.gather(has_all_
                               ? next_below(range_.value)
                               : WeighedValues<Type>::first_bound(weighed_.scale().value_at(deep)),
                           report_.needs_end() ? kMostListed : kMostGathered);
  }

  /// Of what exceeds the range.
  double weight_beyond() const {
    if (range_.most >= weighed_.scanned().maximum) {
      return 0;
    }
    const Floats most = splat(range_.most);
    Sum beyond;
    weighed_.for_gathered([&](const Floats& values, const Floats&, const Floats& weight) {
      beyond.add(select(is_greater(values, most), weight, Floats{}));
    });
    return beyond.total();
  }

  SumBounds bound_sum_of_range(double beyond) const {
    if (has_all_) {
      return {weighed_.weight() - beyond, weighed_.weight() - beyond};
    }
    const SumBounds sum = weighed_.sum_bounds();
    return {std::max(0.0, sum.least - beyond * (1 + kSlack)), sum.most - beyond * (1 - kSlack)};
  }

  /// The end, if the nucleus' weight, with what is beyond the range, is to exceed a target; none
  /// where that is below what is gathered, or among different values of the same y.
  std::optional<End> end_at(double target, const WeightedSet& around, double min_p_factor) const {
    const float least = arguments_.uses_min_p() ? least_staying(min_p_factor) : -kInfinity;
    if (weighed_.weight() > target) {
      const std::optional<End> end = end_of_nucleus(target, around);
      return end.has_value() && least > end->value ? end_from(least) : end;
    }
    if (has_all_ || least > weighed_.bound()) {
      return end_from(std::max(least, range_.value));
    }
    return std::nullopt;
  }

  /// The least value that min-p keeps.
  float least_staying(double factor) const {
    const float min_p = arguments_.with_min_p_times(factor).min_p;
    return least_of_min_p(min_p, range_.most, temperature());
  }

  /// All of at least a value, by the least one that there is.
  End end_from(float value) const {
    const Floats bounds = splat(value);
    Floats least = splat(range_.most);
    weighed_.for_gathered([&](const Floats& values, const Floats&, const Floats&) {
      least = smaller(select(is_at_least(values, bounds), values, least), least);
    });
    return {-largest_lane(-least), weighed_.count_from(value)};
  }

  float temperature() const { return weighed_.scanned().temperature(); }

  /// The same of the nucleus alone, whose weight what is gathered exceeds; none, too, where many
  /// values lie around its end.
  std::optional<End> end_of_nucleus(double target, const WeightedSet& around) const {
    if (around.size > kMostAround) {
      return std::nullopt;
    }
    const Quantile end = find_quantile<Weight::kExponential>(
        around, 0.0F, target,
        {{work_.sample_values, work_.sample_weights}, {work_.inside_values, work_.inside_weights}});
    const size_t count = count_until_exceeding<Weight::kExponential>(end, 0.0F, target);
    const size_t equals = count - end.count_above;
    const Kept values = values_of(end.value);
    if (values.most > range_.most) {
      return std::nullopt;
    }
    if (equals < end.count_equal && values.value < values.most) {
      return std::nullopt;  // filters tell those of the same y apart by their ids
    }
    return End{values.value, count, equals, end.count_equal};
  }

  /// The least and the largest of the values that have a y.
  Kept values_of(float y) const {
    const Floats wanted = splat(y);
    Floats least = splat(kInfinity);
    Floats most = splat(-kInfinity);
    weighed_.for_gathered([&](const Floats& values, const Floats& of_values, const Floats&) {
      const Mask is_wanted = is_equal(of_values, wanted);
      least = smaller(select(is_wanted, values, splat(kInfinity)), least);
      most = larger(select(is_wanted, values, splat(-kInfinity)), most);
    });
    return {largest_lane(most), -largest_lane(-least)};
  }

  WeighedValues<Type>& weighed_;
  const Kept range_;
  const bool has_all_;        // of the range, once something is gathered
  bool is_gathered_ = false;  // the nucleus
  const RowArguments& arguments_;
  const Report& report_;
  Workspace& work_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
