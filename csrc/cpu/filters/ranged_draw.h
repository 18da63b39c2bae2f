// The draw from a range of a row's values, without a copy of the row: what the other filters keep
// of it ends at the range's least value, and begins below what exceeds it.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpu/draws/segments.h"
#include "cpu/filters/histogram_filters.h"
#include "cpu/filters/min_p.h"
#include "cpu/filters/range_bounds.h"
#include "cpu/filters/sorted.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/value_range.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class RangedDraw {
 public:
  RangedDraw(const Row<Type>& row, const RangeFilters& filters, const RowArguments& arguments,
             Scratch& scratch, Workspace& work)
      : row_(row),
        filters_(filters),
        arguments_(arguments),
        scratch_(scratch),
        work_(work),
        groups_{kSegmentLines, work.maxima},
        scan_(row, filters, groups_) {}

  /// The drawn id, and the row's status; none where a copy of the row is drawn from, which is
  /// always right.
  std::optional<size_t> draw() {
    if (!is_served() || !scan_.scan()) {
      return std::nullopt;
    }
    RangeBounds<Type> bounds(row_, filters_, scan_, groups_, work_);
    Candidates first{};
    std::optional<ValueRange> range;
    if (uses_k()) {
      first = first_of_total_order(row_, groups_, wanted(), work_);
      range = bounds.find_among(first, wanted(), static_cast<size_t>(arguments_.k));
    }
    if (!range.has_value()) {
      range = bounds.find();
    }
    if (!range.has_value() && scan_.has_sum()) {
      range = find_exactly(bounds);
    }
    if (!range.has_value()) {
      return std::nullopt;
    }
    if (arguments_.needs_list() && !uses_k() && range->most < scan_.maximum()) {
      return std::nullopt;  // what is listed has no end above
    }
    arguments_.range = *range;
    arguments_.status.front() = RowStatus::kOk;
    return uses_k() ? draw_sorted(first, bounds.count_above(*range))
                    : (arguments_.uses_p() ? draw_nucleus() : draw_segmented());
  }

 private:
  bool uses_k() const { return arguments_.uses_k(row_.vocab_size()); }

  /// Whether there is a way for this row.
  bool is_served() const {
    if (!arguments_.is_drawn() || arguments_.wants_kept() || arguments_.keeps_best() ||
        !filters_.is_ordinary()) {
      return false;
    }
    if (uses_k()) {
      return arguments_.k <= int32_t{kFewSorted} && are_enough(static_cast<size_t>(arguments_.k));
    }
    const bool is_cut_by_k = arguments_.k >= 1 && arguments_.k < int64_t(row_.vocab_size());
    const bool is_counted = kHasFewValues<Type> && filters_.temperature() == 1.0F;
    return !is_cut_by_k && (is_counted || !arguments_.uses_p());
  }

  /// By exact weights, of rows that bounds have left undecided; none where top-k would have to know
  /// what was gathered above. Apart, so that the compiler optimises what comes before.
  [[gnu::noinline]] std::optional<ValueRange> find_exactly(RangeBounds<Type>& bounds) {
    RangeSearch<Type> search(row_, filters_, work_);
    if (const std::optional<ValueRange> found = bounds.find(search.weights())) {
      return found;
    }
    const ValueRange range = search.find();  // a tie, but for rounding
    return uses_k() && range.most != scan_.maximum() ? std::nullopt : std::optional(range);
  }

  /// Top-k's, and as many more as may be excluded above them.
  size_t wanted() const {
    const double threshold = filters_[kExclusionThreshold];
    const auto k = static_cast<size_t>(arguments_.k);
    const bool is_few = threshold > 1.0 / kFewSorted;  // of what has at least so much of the mass
    return is_few && are_enough(k + kFewSorted) ? k + static_cast<size_t>(1.0 / threshold) : k;
  }

  /// Whether a search for so many may use the maxima of groups.
  bool are_enough(size_t k) const { return k <= count_maxima() / 2; }
  size_t count_maxima() const { return row_.vocab_size() / kSegmentLines; }

  /// Top-k, and perhaps more, of the first of the total order; the first `above` of that are not of
  /// the range.
  std::optional<size_t> draw_sorted(Candidates found, size_t above) {
    const auto k = static_cast<size_t>(arguments_.k);
    if (above > kFewSorted || !are_enough(k + above)) {
      return std::nullopt;
    }
    if (k + above > wanted()) {
      found = first_of_total_order(row_, groups_, k + above, work_);
    }
    found.count = std::min(found.count - above, k);
    std::memmove(found.values, found.values + above, found.count * sizeof(float));
    std::memmove(found.ids, found.ids + above, found.count * sizeof(uint32_t));
    while (found.values[found.count - 1] < arguments_.range.least) {
      --found.count;
    }
    return sample_sorted(found, found.values[0], arguments_.uses_p(), arguments_, work_);
  }

  /// Top-p alone.
  std::optional<size_t> draw_nucleus() {
    if constexpr (kHasFewValues<Type>) {
      const auto try_above = [&](float low) {
        History unused;
        return HistogramFilters<Type>(row_, arguments_, scratch_, work_)
            .try_top_p(scan_.approximate(), groups_, low, unused);
      };
      // Bounds of the sum are of all that is below what is looked at: that is of the range then.
      const float least = arguments_.range.least;
      if (least > -kInfinity) {
        return try_above(next_below(least));
      }
      for (const size_t many : {kMostCandidates / 8, kMostCandidates}) {
        const size_t count = std::min(many, count_maxima() / 4 + 1);
        if (const auto drawn = try_above(find_bound(row_, groups_, count, work_))) {
          return drawn;
        }
      }
    }
    return std::nullopt;
  }

  /// No other filter, or min-p.
  size_t draw_segmented() {
    const ValueRange& range = arguments_.range;
    const float temperature = filters_.temperature();
    Cut cut{range.least, row_.vocab_size() - 1};
    if (arguments_.uses_min_p()) {
      const Cut other = cut_of_min_p(arguments_.min_p, range.most, temperature, row_.vocab_size());
      cut = other.value > cut.value ? other : cut;
    }
    return draw_listed(SegmentedDraw<Type>(row_, groups_, range.most, temperature,
                                           *arguments_.segments, work_, 0, range.most),
                       cut, arguments_, work_);
  }

  const Row<Type>& row_;
  const RangeFilters& filters_;
  RowArguments arguments_;
  Scratch& scratch_;
  Workspace& work_;
  const Groups groups_;
  RangeScan<Type> scan_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
