// Rows of the sampling layer after all of their edits, and the ranges of values that they keep.
#pragma once

#include <optional>
#include <span>

#include "cpu/each_row.h"
#include "cpu/filters/range_bounds.h"
#include "cpu/filters/range_scan.h"
#include "cpu/rows/edits.h"
#include "cpu/rows/value_range.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Calls `visit_range` with a row of the sampling layer after its edits, but for the range of
/// values that it keeps. `newer` are the tokens at the end of its output that nothing has counted
/// yet.
template <typename Type, typename Visit>
void with_edited_range(const Row<Type>& row, const Edits& edits, int64_t index,
                       std::span<const int64_t> newer, Scratch& scratch, Workspace& work,
                       Visit visit_range) {
  const RowMask mask(edits, index, row.vocab_size());
  if (slot_of(edits.addends, index).has_value() || slot_of(edits.penalties, index).has_value()) {
    visit_range(edit(row, edits, index, mask, newer, scratch, work));
  } else if (mask.is_there()) {
    visit_range(keep_allowed(row, mask, scratch, work));
  } else {
    visit_range(row);
  }
}

/// The range of values that a row keeps: by bounds, where these decide.
template <typename Type>
ValueRange range_of(const Row<Type>& row, const RangeFilters& filters, Workspace& work) {
  const Groups groups{kSegmentLines, work.maxima};
  const auto scanned =
      RangeScan<Type>(row, groups, filters.temperature(), scanned_for(filters)).scan();
  if (scanned.has_value()) {
    WeighedValues<Type> weighed(row, *scanned, groups, work);
    if (const auto range = RangeBounds<Type>(filters, weighed).find()) {
      return *range;
    }
  }
  return RangeSearch<Type>(row, filters, work).find();
}

/// The same after all edits.
template <typename Type, typename Visit>
void with_edited(const Row<Type>& row, const Requests& requests, int64_t index,
                 std::span<const int64_t> newer, Scratch& scratch, Workspace& work, Visit visit) {
  const std::optional<RangeFilters> filters =
      RangeFilters::of(requests.edits.ranges, index, requests.temperature[index]);
  with_edited_range(row, requests.edits, index, newer, scratch, work, [&](const auto& edited) {
    if (filters.has_value()) {
      visit(keep_range(edited, range_of(edited, *filters, work), scratch, work));
    } else {
      visit(edited);
    }
  });
}

inline void find_ranges(const RangesCall& call, int64_t first_row, int64_t last_row,
                        Scratch& scratch) {
  for_rows(call.logits, {}, first_row, last_row, scratch,
           [&]<typename Type>(const Row<Type>& row, int64_t index, Workspace& work) {
             const std::optional<RangeFilters> filters =
                 RangeFilters::of(call.ranges, index, call.temperature[index]);
             const ValueRange range =
                 filters.has_value() ? RangeSearch<Type>(row, *filters, work).find() : ValueRange{};
             call.least[index] = range.least;
             call.most[index] = range.most;
           });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
