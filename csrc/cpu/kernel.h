// The kernel of one target: included by the file that is compiled for it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "cpu/branches.h"
#include "cpu/drawn_drafts.h"
#include "cpu/each_row.h"
#include "cpu/edited_rows.h"
#include "cpu/filters/best_tokens.h"
#include "cpu/filters/distribution.h"
#include "cpu/filters/edited_top_k.h"
#include "cpu/rows/edits.h"
#include "cpu/shards.h"
#include "cpu/targets.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A row of one of the operators.
template <typename Type>
size_t sample_for_operator(const Row<Type>& row, const OperatorCall& call, int64_t index,
                           Workspace& work) {
  const auto number_of = [index](const Column<void>& column) {
    return Type::value_of(
        static_cast<const typename Type::Storage*>(column.data)[index * column.stride]);
  };
  RowArguments arguments{.rules = call.rules,
                         .k = call.k.data[index * call.k.stride],
                         .p = number_of(call.p),
                         .min_p = call.min_p.has_value() ? number_of(*call.min_p) : 0.0F,
                         .eps = call.eps};
  if (call.q.has_value()) {
    arguments.draw = Draw(Noise(call.q->data + index * call.q->row_stride, call.q->column_stride));
  }
  Report report;
  if (!call.kept.empty()) {
    report.kept =
        call.kept.subspan(static_cast<size_t>(index) * row.vocab_size(), row.vocab_size());
  }
  return sample_row(row, arguments, report, work);
}

/// A row of the sampling layer, whose output ends with the tokens `newer` beside what was counted.
template <typename Type>
size_t sample_request(const Row<Type>& row, const SamplingCall& call, int64_t index,
                      std::span<const int64_t> newer, Workspace& work) {
  const Edits& edits = call.requests.edits;
  RowArguments arguments = arguments_of(call.requests, index);
  Report report{.status = call.status + index};
  const NoiseKey key = call.keys.of(index);
  std::optional<LazyNoise> noise;
  if (arguments.temperature > 0.0F && arguments.k != 1) {
    report.list = call.kept_of(index);
    if (arguments.uses_k(row.vocab_size())) {
      noise.emplace(key, work.noise.reserve(row.padded()));
      arguments.draw = Draw(Noise(*noise));
    } else {
      arguments.draw = Draw(key);
    }
  }
  const RowMask mask(edits, index, row.vocab_size());
  const bool is_listed =
      slot_of(edits.addends, index).has_value() || slot_of(edits.penalties, index).has_value();
  const bool is_edited = is_listed || mask.is_there();
  const std::optional<RangeFilters> filters =
      RangeFilters::of(edits.ranges, index, arguments.temperature);
  if (is_edited && !filters.has_value()) {
    if (!is_listed && !report.wants_list()) {
      if (const auto drawn = sample_allowed(row, mask, arguments, report, work)) {
        return *drawn;
      }
    }
    if (newer.empty()) {
      if (const auto drawn =
              sample_edited_top_k(row, edits, index, mask, arguments, report, work)) {
        return *drawn;
      }
    }
  }
  size_t selected = 0;
  with_edited_range(row, edits, index, newer, work, [&](const auto& edited) {
    selected = filters.has_value() ? sample_range(edited, *filters, arguments, report, work)
                                   : sample_edited(edited, arguments, report, work);
  });
  return selected;
}

/// What the filters keep of a row, after its edits.
template <typename Type>
void filter_request(const Row<Type>& row, const Requests& requests, int64_t index,
                    FilteredForm form, std::span<float> kept, Workspace& work) {
  RowArguments arguments = arguments_of(requests, index);
  settle_best(arguments, row.vocab_size());
  float maximum = scan_status(row).maximum();
  if (maximum == -kInfinity) {
    fill(kept, maximum);
  } else if (form == FilteredForm::kLogits) {
    if (write_filtered(row, maximum, arguments, kept, work)) {
      write_divided(row, 1.0F, kept);
    } else if (maximum == kInfinity) {  // top-k keeps what stands beside it
      std::replace_if(
          kept.begin(), kept.end(), [](float each) { return each < kInfinity; }, -kInfinity);
    }
  } else {
    write_scaled(row, maximum, arguments, kept, work);
  }
  switch (form) {
    case FilteredForm::kProbabilities:
      return normalize_kept(kept, maximum);
    case FilteredForm::kLogits:
      return;
    case FilteredForm::kShifted:
      return scale_kept(kept, maximum, 1.0F);
    case FilteredForm::kDivided:
      if (maximum == 0.0F) {  // else they are logits
        write_divided(row, arguments.temperature, kept);
      }
  }
}

inline void sample(const OperatorCall& call, int64_t first_row, int64_t last_row, Workspace& work) {
  for_rows(call.logits, {}, first_row, last_row, work, [&](const auto& row, int64_t index) {
    call.selected[index] = static_cast<int64_t>(sample_for_operator(row, call, index, work));
  });
}

/// What is reported of a row as the filters leave it.
template <typename Type>
void rank_filtered(const Row<Type>& row, const SamplingCall& call, int64_t index, Workspace& work) {
  float* const logits = work.filtered.reserve(row.padded());
  with_edited(row, call.requests, index, {}, work, [&](const auto& edited) {
    filter_request(edited, call.requests, index, FilteredForm::kLogits, {logits, row.vocab_size()},
                   work);
  });
  rank_row(Row<Float32>(logits, row.vocab_size()), call.ranked->ranking, call.ranked->places[index],
           work);
}

/// What is kept of a greedy row is what it takes; of one with a bad status, nothing.
inline void complete_list(const SamplingCall& call, int64_t index, size_t selected) {
  KeptList* const list = call.kept_of(index);
  if (list == nullptr) {
    return;
  }
  if (call.status[index] != RowStatus::kOk) {
    list->clear();
  } else if (!(call.requests.temperature[index] > 0.0F) || call.requests.k[index] == 1) {
    list->resize(1);
    list->ids()[0] = static_cast<int32_t>(selected);
    list->log_probs()[0] = 0.0F;
  }
}

inline void sample_requests(const SamplingCall& call, int64_t first_row, int64_t last_row,
                            Workspace& work) {
  for_rows(call.logits, call.rows, first_row, last_row, work, [&](const auto& row, int64_t index) {
    const size_t selected = sample_request(row, call, index, {}, work);
    call.selected[index] = static_cast<int64_t>(selected);
    complete_list(call, index, selected);
    if (call.ranked.has_value() && call.ranked->places[index] >= 0) {
      const int64_t place = call.ranked->places[index];  // the row is still near
      call.ranked->is_filtered ? rank_filtered(row, call, index, work)
                               : rank(call.ranked->ranking, place, place + 1, work);
    }
  });
}

/// Calls `visit` with the distribution of a place, whose status it writes; `newer` as above.
template <typename Visit>
void with_target(const SamplingCall& call, int64_t place, std::span<const int64_t> newer,
                 Workspace& work, Visit visit) {
  for_rows(call.logits, {}, place, place + 1, work, [&](const auto& row, int64_t index) {
    const RowArguments arguments = arguments_of(call.requests, index);
    with_edited(row, call.requests, index, newer, work, [&](const auto& edited) {
      visit(target_of(edited, arguments, call.status[index], work));
    });
  });
}

/// Draws the token of a place, after drafts that are not counted yet.
inline int64_t draw_place(const SamplingCall& call, int64_t place, std::span<const int64_t> newer,
                          Workspace& work) {
  for_rows(call.logits, {}, place, place + 1, work, [&](const auto& row, int64_t index) {
    call.selected[index] = static_cast<int64_t>(sample_request(row, call, index, newer, work));
  });
  return call.selected[place];
}

/// The tree of a request: each token leads to the first place that follows with it.
inline void verify_tree(const VerifyingCall& call, int64_t request, Workspace& work) {
  const int64_t first_place = call.first_place(request);
  const auto places = static_cast<size_t>(call.ends[request] - first_place);
  std::fill_n(call.places.selected + first_place, places, kNoToken);
  std::fill_n(call.places.status + first_place, places, RowStatus::kOk);
  int64_t* const path = call.trees->path + first_place;
  size_t accepted = 0;
  for (int64_t place = 0;;) {
    const int64_t token = draw_place(call.places, first_place + place, {path, accepted}, work);
    place = call.next_of(request, place, token);
    if (place == 0) {
      break;
    }
    path[accepted++] = token;
  }
  call.accepted[request] = static_cast<int64_t>(accepted);
}

/// A place is looked at when the drafts before it may stay.
inline void verify(const VerifyingCall& call, int64_t first_request, int64_t last_request,
                   Workspace& work) {
  for (int64_t request = first_request; request < last_request; ++request) {
    if (call.trees.has_value()) {
      verify_tree(call, request, work);
      continue;
    }
    const std::span<const int64_t> drafts = call.drafts_of(request);
    const int64_t first_place = call.first_place(request);
    size_t accepted = 0;
    bool is_replaced = false;
    if (call.rule != DraftRule::kMatch) {
      const auto with_target_of = [&](int64_t place, std::span<const int64_t> newer, auto visit) {
        with_target(call.places, place, newer, work, visit);
      };
      DrawnDrafts drawn(call, request, with_target_of, work);
      accepted = drawn.judge();
      is_replaced = accepted < drawn.count();
    }
    while (!is_replaced) {
      const int64_t place = first_place + static_cast<int64_t>(accepted);
      const int64_t token = draw_place(call.places, place, drafts.first(accepted), work);
      if (call.rule != DraftRule::kMatch || accepted == drafts.size() ||
          token != drafts[accepted]) {
        break;
      }
      ++accepted;
    }
    call.accepted[request] = static_cast<int64_t>(accepted);
    const size_t unreached = drafts.size() - accepted;
    const int64_t next = first_place + static_cast<int64_t>(accepted) + 1;
    std::fill_n(call.places.selected + next, unreached, kNoToken);
    std::fill_n(call.places.status + next, unreached, RowStatus::kOk);
  }
}

inline void filter(const FilteringCall& call, int64_t first_row, int64_t last_row,
                   Workspace& work) {
  for_rows(call.logits, {}, first_row, last_row, work, [&](const auto& row, int64_t index) {
    const std::span<float> kept(call.kept + index * call.logits.vocab_size, row.vocab_size());
    with_edited(row, call.requests, index, {}, work, [&](const auto& edited) {
      filter_request(edited, call.requests, index, call.form, kept, work);
    });
  });
}

extern const Kernel kKernel;
const Kernel kKernel{.sample = sample,
                     .sample_requests = sample_requests,
                     .verify = verify,
                     .filter = filter,
                     .find_ranges = find_ranges,
                     .rank = rank,
                     .find_winners = find_winners,
                     .fill_noise = fill_exponential};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
