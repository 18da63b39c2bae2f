// The branches of a row: docs/semantics.md, section 3, and docs/semantics_v2.md.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "cpu/draws/race.h"
#include "cpu/filters/distribution.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/min_p.h"
#include "cpu/filters/quantile.h"
#include "cpu/filters/ranged_draw.h"
#include "cpu/filters/sorted.h"
#include "cpu/filters/top_p.h"
#include "cpu/rows/edits.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Top-k: the first k of the total order, then perhaps top-p and min-p.
template <typename Type>
size_t sample_top_k(const Row<Type>& row, size_t k, const RowArguments& arguments,
                    const Report& report, Workspace& work) {
  const Groups groups = groups_for(k, row.vocab_size(), work);
  const float maximum = scan_first(row, groups, report.status);
  if (maximum == -kInfinity) {
    fill(report.kept, -kInfinity);
    return 0;
  }
  return sample_sorted(first_of_total_order(row, groups, k, work), maximum, arguments, report,
                       work);
}

/// Top-p alone, of a row whose draw by segments bounds do not decide, or of one that is drawn by
/// rank.
template <typename Type>
size_t sample_top_p(const Row<Type>& row, const RowArguments& arguments, const Report& report,
                    Workspace& work) {
  if (!arguments.draw.is_by_segments()) {
    if (const auto drawn = draw_nucleus(row, arguments, report, work)) {
      return *drawn;
    }
  }
  const Groups groups = groups_for(kMostCandidates, row.vocab_size(), work);
  const RowSum sum = scan_sum(row, groups, work.chunk_sums);
  if (sum.maximum == -kInfinity) {
    fill(report.kept, -kInfinity);
    return 0;
  }
  if (sum.maximum == kInfinity) {
    const size_t selected = sample_top_p(infinities_of(row, work), arguments, report, work);
    for (float& logit : report.kept) {
      logit = logit == 0.0F ? kInfinity : -kInfinity;
    }
    return selected;
  }
  return TopP<Type>(row, groups, sum, arguments, report, work).sample();
}

/// No filter.
template <typename Type>
size_t sample_unfiltered(const Row<Type>& row, const RowArguments& arguments, const Report& report,
                         Workspace& work) {
  if (report.wants_kept()) {
    write_kept(row, Kept{}, report.kept.data());
  }
  if (!arguments.is_drawn()) {
    return sample_top_k(row, 1, arguments, {.status = report.status}, work);
  }
  const float* q = contiguous(arguments.draw.noise(), row.vocab_size(), work);
  float maximum = 0;
  std::optional<size_t> selected = draw_unfiltered(row, q, arguments.eps, work, maximum);
  if (!selected.has_value() && maximum == kInfinity) {
    float ignored = 0;
    selected = draw_unfiltered(infinities_of(row, work), q, arguments.eps, work, ignored);
  }
  return selected.has_value() ? *selected
                              : compare_all_scores(row, Noise{q, 1}, arguments.eps, maximum,
                                                   sum_exactly(row, maximum, work), work);
}

/// A row whose logits need not be divided any more.
template <typename Type>
size_t sample_row(const Row<Type>& row, const RowArguments& arguments, const Report& report,
                  Workspace& work) {
  const bool is_best_wanted = !arguments.is_drawn() && !report.wants_kept();
  if (is_best_wanted || arguments.keeps_best()) {
    // Whatever else is kept, the first of the total order is.
    return sample_top_k(row, 1, arguments, report, work);
  }
  if (arguments.uses_k(row.vocab_size())) {
    return sample_top_k(row, static_cast<size_t>(arguments.k), arguments, report, work);
  }
  if (arguments.uses_p()) {
    return sample_top_p(row, arguments, report, work);
  }
  return arguments.uses_min_p() ? sample_min_p(row, arguments, report, work)
                                : sample_unfiltered(row, arguments, report, work);
}

/// A row of the sampling layer whose kept logits are not ranked, drawn by segments. Logits are
/// divided by the temperature where they are looked at, but for top-p, and where the best alone is
/// kept, before: by the id is then taken what the division has made equal.
template <typename Type>
size_t sample_by_segments(const Row<Type>& row, RowArguments arguments, Report report,
                          Workspace& work) {
  const bool keeps_best = arguments.keeps_best();
  const bool uses_k = arguments.k >= 1 && static_cast<size_t>(arguments.k) < row.vocab_size();
  if (arguments.uses_p() && !uses_k && !keeps_best) {
    if (const auto drawn = draw_nucleus(row, arguments, report, work)) {
      return *drawn;
    }
  }
  const Groups groups{kSegmentLines, work.maxima};
  const float maximum = scan_first(row, groups, std::exchange(report.status, nullptr));
  if (maximum == -kInfinity) {
    return 0;
  }
  Kept kept;
  if (uses_k) {
    kept = find_top_k(row, static_cast<size_t>(arguments.k), arguments.keeps_ties, maximum, work);
    if (keeps_best || arguments.uses_p() || maximum == kInfinity) {
      arguments.k = 0;
      return sample_by_segments(copy_kept(row, kept, work), arguments, report, work);
    }
  }
  if (keeps_best || arguments.uses_p()) {
    const float temperature = std::exchange(arguments.temperature, 1.0F);
    if (keeps_best) {
      arguments.draw = {};
    }
    return temperature == 1.0F || maximum == kInfinity
               ? sample_row(row, arguments, report, work)
               : sample_row(divide(row, maximum, temperature, work), arguments, report, work);
  }
  if (maximum == kInfinity) {
    const Row<Float32> infinities = infinities_of(row, work);
    scan_maxima(infinities, groups);
    return *draw_kept(infinities, groups, {0.0F, 1.0F}, {}, arguments.draw.key(), report, work);
  }
  if (arguments.uses_min_p()) {
    kept = kept.from(least_of_min_p(arguments.min_p, maximum, arguments.temperature));
  }
  return *draw_kept(row, groups, {maximum, arguments.temperature}, {kept}, arguments.draw.key(),
                    report, work);
}

/// A row of the sampling layer whose edits are done.
template <typename Type>
size_t sample_edited(const Row<Type>& row, const RowArguments& arguments, const Report& report,
                     Workspace& work) {
  if (!arguments.is_drawn()) {
    return sample_top_k(row, 1, arguments, report, work);
  }
  return arguments.draw.is_by_segments() ? sample_by_segments(row, arguments, report, work)
                                         : sample_row(row, arguments, report, work);
}

/// A row of the sampling layer of which a range of values is kept, after its other edits.
template <typename Type>
size_t sample_range(const Row<Type>& row, const RangeFilters& filters,
                    const RowArguments& arguments, const Report& report, Workspace& work) {
  RangedDraw<Type> ranged(row, filters, arguments, report, work);
  if (const std::optional<size_t> drawn = ranged.draw()) {
    return *drawn;
  }
  return sample_edited(keep_range(row, ranged.range(), work), arguments, report, work);
}

/// The drawn id of a row of the sampling layer of which the mask allows little; none for other
/// rows, and where more than ranks decides. What is forbidden is not read.
template <typename Type>
std::optional<size_t> sample_allowed(const Row<Type>& row, const RowMask& mask,
                                     RowArguments arguments, const Report& report,
                                     Workspace& work) {
  if (!arguments.use_ranks()) {
    return std::nullopt;
  }
  const std::optional<size_t> count = gather_allowed(row, mask, work);
  if (!count.has_value()) {
    return std::nullopt;
  }
  if (*count == 0) {
    report.note(RowStatus::kAllMasked);
    return 0;
  }
  const Row<Type> rest(work.allowed.as<typename Type::Storage>(), *count);
  const size_t place =
      sample_top_k(rest, static_cast<size_t>(arguments.k), arguments, report, work);
  return rest.value(place) == -kInfinity ? 0 : work.allowed_ids[place];
}

/// Makes a top-k of 1 of what keeps the first of the total order alone; such a row has no ties.
inline void settle_best(RowArguments& arguments, size_t vocab_size) {
  arguments.keeps_ties = arguments.keeps_ties && arguments.k != 1;
  if (!(arguments.temperature > 0.0F)) {
    arguments.temperature = 1.0F;
    arguments.k = 1;
    arguments.keeps_ties = false;
  } else if (arguments.uses_k(vocab_size) && arguments.keeps_best()) {
    arguments.k = 1;
  }
}

/// Of a top-k that is ranked: how many of its first ranks are kept, whose ids and exponentials are
/// in the workspace then. None for other rows.
template <typename Type>
std::optional<size_t> count_kept_ranks(const Row<Type>& row, const RowArguments& arguments,
                                       RowStatus* status, Workspace& work) {
  if (!arguments.uses_k(row.vocab_size())) {
    return std::nullopt;
  }
  const auto k = static_cast<size_t>(arguments.k);
  const Groups groups = groups_for(k, row.vocab_size(), work);
  const float maximum = scan_first(row, groups, status);
  if (maximum == -kInfinity) {
    return 0;
  }
  const Candidates first = first_of_total_order(row, groups, k, work);
  return keep_sorted(first, maximum, arguments, work).count;
}

/// Writes what the filters keep of a row above -inf, and -inf for the rest. Top-k keeps by the
/// logits, also where the division makes some equal. Returns whether (logit - maximum) /
/// temperature is written, and 0 for +inf; else it is the logit.
template <typename Type>
bool write_filtered(const Row<Type>& row, float maximum, RowArguments arguments,
                    std::span<float> kept, Workspace& work) {
  if (const auto count = count_kept_ranks(row, arguments, nullptr, work)) {
    fill(kept, -kInfinity);
    for (size_t rank = 0; rank < *count; ++rank) {
      kept[work.sorted_ids[rank]] = row.value(work.sorted_ids[rank]);
    }
    return false;
  }
  const Report report{.kept = kept};
  const float temperature = std::exchange(arguments.temperature, 1.0F);
  const auto write = [&](const auto& undivided) {
    if (maximum == kInfinity) {
      sample_row(infinities_of(undivided, work), arguments, report, work);
    } else if (arguments.uses_min_p() && !arguments.uses_p() && !arguments.keeps_best()) {
      // As the draw by segments.
      write_kept(undivided, {.value = least_of_min_p(arguments.min_p, maximum, temperature)},
                 kept.data());
      return false;
    } else if (temperature == 1.0F) {
      sample_row(undivided, arguments, report, work);
      return false;
    } else {
      sample_row(divide(undivided, maximum, temperature, work), arguments, report, work);
    }
    return true;
  };
  if (arguments.k < 1 || static_cast<size_t>(arguments.k) >= row.vocab_size()) {
    return write(row);
  }
  const auto k = static_cast<size_t>(std::exchange(arguments.k, 0));
  const Kept first = find_top_k(row, k, arguments.keeps_ties, maximum, work);
  return write(copy_kept(row, first, work));
}

/// The same as (logit - maximum) / temperature, 0 for +inf, or as logits at temperature 1: then the
/// maximum is what it was.
template <typename Type>
void write_scaled(const Row<Type>& row, float& maximum, const RowArguments& arguments,
                  std::span<float> kept, Workspace& work) {
  if (write_filtered(row, maximum, arguments, kept, work)) {
    maximum = 0.0F;
  } else if (arguments.temperature != 1.0F || maximum == kInfinity) {
    scale_kept(kept, std::exchange(maximum, 0.0F), arguments.temperature);
  }
}

/// The distribution of a row whose draw these arguments are for; id 0 alone where nothing is above
/// -inf. It lies in the thread's memory until that is used again.
template <typename Type>
TargetRow target_of(const Row<Type>& row, RowArguments arguments, RowStatus& status,
                    Workspace& work) {
  float* const memory = work.filtered.reserve(row.padded());
  uint32_t* const ids = work.sorted_ids;
  const auto few = [&](size_t count) { return TargetRow::of_few({ids, count}, {memory, count}); };
  settle_best(arguments, row.vocab_size());
  if (const auto count = count_kept_ranks(row, arguments, &status, work)) {
    if (*count == 0) {
      ids[0] = 0;
      memory[0] = 1.0F;
      return few(1);
    }
    const double total = sum(work.exponentials, *count);
    for (size_t rank = 0; rank < *count; ++rank) {
      memory[rank] = static_cast<float>(work.exponentials[rank] / total);
    }
    return few(*count);
  }
  const FloatStatus seen = scan_status(row);
  status = seen.status();
  float maximum = seen.maximum();
  const std::span<float> probabilities(memory, row.vocab_size());
  if (maximum == -kInfinity) {
    fill(probabilities, 0.0F);
    memory[0] = 1.0F;
  } else {
    write_scaled(row, maximum, arguments, probabilities, work);
    normalize_kept(probabilities, maximum);
  }
  return TargetRow::of_all(probabilities);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
