// Candidates in the total order: top-p and min-p among them, and the draw.
#pragma once

#include "cpu/draws/draw.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/temperature.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What top-p and min-p keep of candidates in the total order: so many of the first. Their values
/// are divided by the temperature, and their exponentials are in the workspace.
struct KeptRanks {
  size_t count;
  float maximum;
  double total;  // of the exponentials of all candidates
};

/// `maximum` is the first one's value.
inline KeptRanks keep_sorted(const Candidates& candidates, float maximum,
                             const RowArguments& arguments, Workspace& work) {
  size_t count = candidates.count;
  if (arguments.temperature != 1.0F) {
    maximum = divide(candidates.values, count, maximum, arguments.temperature, candidates.values);
  }
  const double total = exp_differences(candidates.values, count, maximum, work.exponentials);
  if (arguments.uses_p()) {
    const size_t n = count_until_exceeding(work.exponentials, count, total, arguments.target());
    count = n == 0 ? count : n;
  }
  count = arguments.count_staying(
      count, [&](size_t rank) { return static_cast<float>(work.exponentials[rank] / total); });
  return {count, maximum, total};
}

/// The id that is drawn from what top-k has kept; `maximum` is the first one's value.
inline size_t sample_sorted(const Candidates& candidates, float maximum,
                            const RowArguments& arguments, const Report& report, Workspace& work) {
  KeptRanks kept{candidates.count, maximum, 0.0};
  if (arguments.uses_p() || arguments.uses_min_p() || arguments.is_drawn() || report.wants_list()) {
    kept = keep_sorted(candidates, maximum, arguments, work);
  }
  write_candidates(candidates, kept.count, report.kept);
  if (report.wants_list()) {
    list_ranks({candidates.values, candidates.ids, kept.count}, kept.maximum, *report.list, work);
  }
  if (!arguments.is_drawn()) {
    return candidates.ids[0];
  }
  const double total =
      arguments.rules.softmaxes_again ? sum(work.exponentials, kept.count) : kept.total;
  const size_t rank = draw(work.exponentials, kept.count, total, arguments.draw.noise(),
                           arguments.eps, work.scores);
  return candidates.ids[rank];
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
