// The segmented draw of a row of which this is a part: docs/vocabulary_parallel.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/draws/segments.h"
#include "cpu/each_row.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The draw of one row's part, whose segments are aligned, by the maximum of the whole row.
template <typename Type>
void find_winner(const Row<Type>& row, const WinnersCall& call, int64_t index, Workspace& work) {
  const Groups groups{kSegmentLines, work.maxima};
  const float own = scan_maxima(row, groups);
  const float maximum = call.maximum[index];
  call.scores[index] = 0;
  call.ids[index] = 0;
  const auto draw_from = [&](const auto& weighed, const Scale& scale, const Kept& kept) {
    SegmentedDraw draw(weighed, groups, scale, call.keys.of(index), work,
                       static_cast<size_t>(call.first_id) / kSegment);
    const auto winner = *draw.draw_segment({kept});
    call.scores[index] = winner.score;
    call.ids[index] = static_cast<int64_t>(draw.leading_id(winner.segment, kept));
  };
  if (own == -kInfinity || std::isnan(maximum)) {
    return;
  }
  if (maximum == kInfinity) {
    if (own == kInfinity) {
      const Row<Float32> infinities = infinities_of(row, work);
      scan_maxima(infinities, groups);
      draw_from(infinities, {0.0F, 1.0F}, {});
    }
    return;
  }
  const float temperature = call.temperature[index];
  Kept kept;
  if (call.min_p[index] > 0.0F) {
    kept.value = least_of_min_p(call.min_p[index], maximum, temperature);
  }
  if (own >= kept.value) {
    draw_from(row, {maximum, temperature}, kept);
  }
}

inline void find_winners(const WinnersCall& call, int64_t first_row, int64_t last_row,
                         Workspace& work) {
  for_rows(call.logits, {}, first_row, last_row, work,
           [&](const auto& row, int64_t index) { find_winner(row, call, index, work); });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
