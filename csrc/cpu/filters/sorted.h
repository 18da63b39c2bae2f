// Candidates in the total order: top-p and min-p among them, and the draw.
#pragma once

#include "cpu/draws/draw.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/temperature.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The id that is drawn from what top-k has kept; `maximum` is the first one's value.
inline size_t sample_sorted(const Candidates& candidates, float maximum, bool use_p,
                            const RowArguments& arguments, Workspace& work) {
  size_t count = candidates.count;
  double total = 0;
  if (use_p || arguments.uses_min_p() || arguments.is_drawn() || arguments.ranks != nullptr ||
      arguments.needs_list()) {
    if (arguments.temperature != 1.0F) {
      maximum = divide(candidates.values, count, maximum, arguments.temperature, candidates.values);
    }
    total = exp_differences(candidates.values, count, maximum, work.exponentials);
    const auto probability_of = [&](size_t rank) {
      return static_cast<float>(work.exponentials[rank] / total);
    };
    if (use_p) {
      const size_t n = count_until_exceeding(work.exponentials, count, total, arguments.target());
      count = n == 0 ? count : n;
    }
    count = arguments.count_staying(count, probability_of);
  }
  write_candidates(candidates, count, arguments.kept);
  if (arguments.ranks != nullptr) {
    arguments.ranks->count = count;
  }
  if (arguments.list != nullptr) {
    list_ranks({candidates.values, candidates.ids, count}, maximum, *arguments.list, work);
  }
  if (!arguments.is_drawn()) {
    return candidates.ids[0];
  }
  total = arguments.rules.softmaxes_again ? sum(work.exponentials, count) : total;
  const size_t rank =
      draw(work.exponentials, count, total, *arguments.noise, arguments.eps, work.scores);
  return candidates.ids[rank];
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
