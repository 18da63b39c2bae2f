// The draw from a range of a row's values, without a copy of the row: what the other filters keep
// of it ends at the range's least value, and begins below what exceeds it.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpu/filters/nucleus_draw.h"
#include "cpu/filters/range_filters.h"
#include "cpu/filters/range_scan.h"
#include "cpu/filters/range_search.h"
#include "cpu/filters/sorted.h"
#include "cpu/filters/top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class RangedDraw {
 public:
  RangedDraw(const Row<Type>& row, const RangeFilters& filters, const RowArguments& arguments,
             const Report& report, Workspace& work)
      : row_(row),
        filters_(filters),
        arguments_(arguments),
        report_(report),
        work_(work),
        groups_{kSegmentLines, work.maxima} {}

  /// The drawn id, and the row's status; none where a copy of the range is drawn from, which is
  /// always right.
  std::optional<size_t> draw() {
    if (!is_served()) {
      return std::nullopt;
    }
    Scanned wanted = filters_.needs();
    wanted.sum |= arguments_.uses_p() && !uses_k();
    const auto scanned = RangeScan<Type>(row_, groups_, filters_.temperature(), wanted).scan();
    if (!scanned.has_value()) {
      return std::nullopt;
    }
    report_.note(RowStatus::kOk);
    WeighedValues<Type> weighed(row_, *scanned, groups_, work_);
    RangeSearch<Type> search(filters_, weighed, work_);
    if (uses_k()) {
      return draw_sorted(search);
    }
    range_ = search.find();
    return arguments_.uses_p()
               ? NucleusDraw<Type>(weighed, *range_, arguments_, report_, work_).draw()
               : draw_segmented(*range_);
  }

  /// What is to be copied where no id was drawn.
  Kept range() const {
    return range_.has_value() ? *range_ : find_range_exactly(row_, filters_, work_);
  }

 private:
  bool uses_k() const { return arguments_.uses_k(row_.vocab_size()); }

  /// Whether there is a way for this row.
  bool is_served() const {
    if (!arguments_.is_drawn() || report_.wants_kept() || arguments_.keeps_best()) {
      return false;
    }
    if (uses_k()) {
      return arguments_.k <= int32_t{kFewSorted} && are_enough(static_cast<size_t>(arguments_.k));
    }
    return arguments_.k < 1 || arguments_.k >= int64_t(row_.vocab_size());
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

  /// Of top-k.
  std::optional<size_t> draw_sorted(RangeSearch<Type>& search) {
    const auto k = static_cast<size_t>(arguments_.k);
    Candidates found = first_of_total_order(row_, groups_, wanted(), work_);
    const std::optional<Kept> among = search.find_among(found, wanted(), k);
    if (!among.has_value()) {
      range_ = search.find();
    }
    const Kept range = among.has_value() ? *among : *range_;
    const size_t above = search.count_above(range);
    if (above > kFewSorted || !are_enough(k + above)) {
      return std::nullopt;
    }
    if (k + above > wanted()) {
      found = first_of_total_order(row_, groups_, k + above, work_);
    }
    found.count = std::min(found.count - above, k);
    std::memmove(found.values, found.values + above, found.count * sizeof(float));
    std::memmove(found.ids, found.ids + above, found.count * sizeof(uint32_t));
    while (found.values[found.count - 1] < range.value) {
      --found.count;
    }
    return sample_sorted(found, found.values[0], arguments_, report_, work_);
  }

  /// No other filter, or min-p.
  size_t draw_segmented(const Kept& range) {
    const float temperature = filters_.temperature();
    const Kept kept = arguments_.uses_min_p()
                          ? range.from(least_of_min_p(arguments_.min_p, range.most, temperature))
                          : range;
    return *draw_kept(row_, groups_, {range.most, temperature}, {kept}, arguments_.draw.key(),
                      report_, work_);
  }

  const Row<Type>& row_;
  const RangeFilters& filters_;
  const RowArguments& arguments_;
  const Report& report_;
  Workspace& work_;
  const Groups groups_;
  std::optional<Kept> range_;  // of all of the row
};

/// The draw from the nucleus of a row that was not scanned yet; none where bounds do not decide it,
/// or hardly will.
template <typename Type>
std::optional<size_t> draw_nucleus(const Row<Type>& row, const RowArguments& arguments,
                                   const Report& report, Workspace& work) {
  if (work.history.is_likely_large()) {
    return std::nullopt;
  }
  const Groups groups{kSegmentLines, work.maxima};
  const auto scanned = RangeScan<Type>(row, groups, arguments.temperature, {.sum = true}).scan();
  if (!scanned.has_value()) {
    return std::nullopt;
  }
  report.note(RowStatus::kOk);
  WeighedValues<Type> weighed(row, *scanned, groups, work);
  const Kept all{.most = scanned->maximum};
  return NucleusDraw<Type>(weighed, all, arguments, report, work).draw();
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
