// Rows of the sampling layer after all of their edits, and the ranges of values that they keep.
#pragma once

#include <optional>
#include <span>

#include "cpu/each_row.h"
#include "cpu/filters/range_filters.h"
#include "cpu/filters/range_search.h"
#include "cpu/rows/edits.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Calls `visit_range` with a row of the sampling layer after its edits, but for the range of
/// values that it keeps. `newer` are the tokens at the end of its output that nothing has counted
/// yet.
template <typename Type, typename Visit>
void with_edited_range(const Row<Type>& row, const Edits& edits, int64_t index,
                       std::span<const int64_t> newer, Workspace& work, Visit visit_range) {
  const RowMask mask(edits, index, row.vocab_size());
  if (slot_of(edits.addends, index).has_value() || slot_of(edits.penalties, index).has_value()) {
    visit_range(edit(row, edits, index, mask, newer, work));
  } else if (mask.is_there()) {
    visit_range(keep_allowed(row, mask, work));
  } else {
    visit_range(row);
  }
}

/// The same after all edits.
template <typename Type, typename Visit>
void with_edited(const Row<Type>& row, const Requests& requests, int64_t index,
                 std::span<const int64_t> newer, Workspace& work, Visit visit) {
  const std::optional<RangeFilters> filters =
      RangeFilters::of(requests.edits.ranges, index, requests.temperature[index]);
  with_edited_range(row, requests.edits, index, newer, work, [&](const auto& edited) {
    if (filters.has_value()) {
      visit(keep_range(edited, find_range(edited, *filters, work), work));
    } else {
      visit(edited);
    }
  });
}

inline void find_ranges(const RangesCall& call, int64_t first_row, int64_t last_row,
                        Workspace& work) {
  for_rows(call.logits, {}, first_row, last_row, work, [&](const auto& row, int64_t index) {
    const std::optional<RangeFilters> filters =
        RangeFilters::of(call.ranges, index, call.temperature[index]);
    const Kept range = filters.has_value() ? find_range_exactly(row, *filters, work) : Kept{};
    call.least[index] = range.value;
    call.most[index] = range.most;
  });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
