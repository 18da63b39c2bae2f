// The kernel of one target: included by the file that is compiled for it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "cpu/branches.h"
#include "cpu/each_row.h"
#include "cpu/edited_rows.h"
#include "cpu/filters/best_tokens.h"
#include "cpu/filters/distribution.h"
#include "cpu/filters/edited_top_k.h"
#include "cpu/filters/rejection.h"
#include "cpu/filters/sample_result.h"
#include "cpu/rows/edits.h"
#include "cpu/shard_sums.h"
#include "cpu/shards.h"
#include "cpu/targets.h"
#include "cpu/told_rows.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A row of one of the operators.
template <typename Type>
size_t sample_for_operator(const Row<Type>& row, const OperatorCall& call, int64_t index,
                           Scratch& scratch, Workspace& work) {
  const auto number_of = [index](const Column<void>& column) {
    return Type::value_of(
        static_cast<const typename Type::Storage*>(column.data)[index * column.stride]);
  };
  const int64_t start = index * call.logits.vocab_size;
  RowArguments arguments{.rules = call.rules,
                         .k = call.k.data[index * call.k.stride],
                         .p = number_of(call.p),
                         .min_p = call.min_p.has_value() ? number_of(*call.min_p) : 0.0F,
                         .eps = call.eps};
  if (call.q.has_value()) {
    arguments.noise.emplace(call.q->data + index * call.q->row_stride, call.q->column_stride);
  }
  if (!call.kept.empty()) {
    arguments.kept = call.kept.subspan(static_cast<size_t>(start), row.vocab_size());
  }
  std::optional<SampleResult> result = call.sample_result;
  if (result.has_value()) {
    result->weights += start;
    result->ids += start;
  }
  if (result.has_value() || call.are_probabilities) {
    return sample_with_result(row, arguments, call.are_probabilities, result, scratch, work);
  }
  const std::optional<size_t> drawn = sample_compacted(row, arguments, scratch, work);
  return drawn.has_value() ? *drawn : sample_row(row, arguments, scratch, work);
}

/// A row of the sampling layer, whose output ends with the tokens `newer` beside what was counted;
/// null for `told`: nothing is.
template <typename Type>
size_t sample_request(const Row<Type>& row, const SamplingCall& call, int64_t index,
                      std::span<const int64_t> newer, ToldRows* told, Scratch& scratch,
                      Workspace& work) {
  const float temperature = call.requests.temperature[index];
  RowArguments arguments = arguments_of(call.requests, index);
  arguments.status = {call.status + index, 1};
  arguments.keeps_ties = call.keeps_ties;
  arguments.temperature = temperature;
  const NoiseKey key{call.seed[index], call.position[index], call.purpose};
  std::optional<LazyNoise> noise;
  if (temperature > 0.0F && arguments.k != 1) {
    if (told != nullptr) {
      told->ask(index, key, arguments);
    }
    if (arguments.uses_k(row.vocab_size())) {
      noise.emplace(key, reinterpret_cast<float*>(scratch.reserve(
                             Scratch::kNoise, row.lines() * kLine * sizeof(float))));
      arguments.noise.emplace(*noise);
    } else {
      arguments.segments = key;
    }
  }
  const RowMask mask(call.edits, index, row.vocab_size());
  const bool is_listed = slot_of(call.edits.addends, index).has_value() ||
                         slot_of(call.edits.penalties, index).has_value();
  const bool is_edited = is_listed || mask.is_there();
  const std::optional<RangeFilters> filters =
      RangeFilters::of(call.edits.ranges, index, temperature);
  if (is_edited && !filters.has_value()) {
    if (!is_listed && !arguments.needs_list()) {
      if (const auto drawn = sample_allowed(row, mask, arguments, scratch, work)) {
        return *drawn;
      }
    }
    if (newer.empty()) {
      if (const auto drawn =
              sample_edited_top_k(row, call.edits, index, mask, arguments, scratch, work)) {
        return *drawn;
      }
    }
  }
  size_t selected = 0;
  with_edited_range(row, call.edits, index, mask, newer, scratch, work, [&](const auto& edited) {
    selected = filters.has_value() ? sample_range(edited, *filters, arguments, scratch, work)
                                   : sample_edited(edited, arguments, scratch, work);
  });
  return selected;
}

/// A row of filter_probabilities, or one of filter_logits after its edits.
template <typename Type>
void filter_request(const Row<Type>& row, const FilteringCall& call, int64_t index,
                    Scratch& scratch, Workspace& work) {
  const std::span<float> kept(call.kept + index * call.logits.vocab_size, row.vocab_size());
  RowArguments arguments = arguments_of(call.requests, index);
  arguments.keeps_ties = call.keeps_ties;
  arguments.temperature = call.requests.temperature[index];
  settle_best(arguments, row.vocab_size());
  float maximum = scan_status(row).maximum();
  if (maximum == -kInfinity) {
    fill(kept, maximum);
  } else {
    write_scaled(row, maximum, arguments, kept, scratch, work);
  }
  switch (call.form) {
    case FilteredForm::kProbabilities:
      return normalize_kept(kept, maximum);
    case FilteredForm::kShifted:
      return scale_kept(kept, maximum, 1.0F);
    case FilteredForm::kDivided:
      if (maximum == 0.0F) {  // else they are logits
        write_divided(row, arguments.temperature, kept);
      }
  }
}

inline void sample(const OperatorCall& call, int64_t first_row, int64_t last_row,
                   Scratch& scratch) {
  for_rows(call.logits, {}, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             call.selected[index] =
                 static_cast<int64_t>(sample_for_operator(row, call, index, scratch, work));
           });
}

inline void sample_requests(const SamplingCall& call, int64_t first_row, int64_t last_row,
                            Scratch& scratch) {
  ToldRows told(call);
  for_rows(call.logits, call.rows, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             const size_t selected = sample_request(row, call, index, {}, &told, scratch, work);
             call.selected[index] = static_cast<int64_t>(selected);
             told.complete(index, selected);
             if (call.ranked != nullptr && call.ranked->places[index] >= 0) {
               // The row is still near to the processor; the draw may have lost its last chunk.
               const int64_t place = call.ranked->places[index];
               rank(call.ranked->ranking, place, place + 1, scratch);
             }
           });
}

/// Calls `visit` with the distribution of a place, whose status it writes; `newer` as above.
template <typename Visit>
void with_target(const SamplingCall& call, int64_t place, std::span<const int64_t> newer,
                 Scratch& scratch, Visit visit) {
  for_rows(call.logits, {}, place, place + 1, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             RowArguments arguments = arguments_of(call.requests, index);
             arguments.status = {call.status + index, 1};
             arguments.keeps_ties = call.keeps_ties;
             arguments.temperature = call.requests.temperature[index];
             with_edited(row, call, index, newer, scratch, work, [&](const auto& edited) {
               visit(target_of(edited, arguments, scratch, work));
             });
           });
}

/// The drafts of one request, judged by what they were drawn from.
class DrawnDrafts {
 public:
  DrawnDrafts(const VerifyingCall& call, int64_t request, Scratch& scratch)
      : call_(call),
        first_place_(call.first_place(request)),
        first_draft_(first_place_ - request),
        drafts_(call.drafts_of(request)),
        scratch_(scratch) {
    size_t count = 0;
    while (count < drafts_.size() && drafts_[count] >= 0) {
      ++count;  // a placeholder ends them
    }
    drafts_ = drafts_.first(count);
  }

  /// Returns how many stay, and writes them and the token behind them; where all stay, the caller
  /// draws it.
  size_t judge() { return call_.rule == DraftRule::kStandard ? judge_each() : judge_together(); }

  size_t count() const { return drafts_.size(); }

 private:
  int64_t place(size_t number) const { return first_place_ + static_cast<int64_t>(number); }

  /// Calls `visit` with the target at the place of a draft, and what that was drawn from.
  template <typename Visit>
  void with_draft(size_t number, Visit visit) {
    with_target(
        call_.places, place(number), drafts_.first(number), scratch_, [&](const TargetRow& target) {
          const ProposalRow proposal(call_.proposals, first_draft_ + static_cast<int64_t>(number),
                                     drafts_[number],
                                     static_cast<size_t>(call_.places.logits.vocab_size), scratch_);
          visit(target, proposal);
        });
  }

  /// p and q of a draft.
  struct Odds {
    double target;
    double proposal;
  };
  Odds odds_of(size_t number, const TargetRow& target, const ProposalRow& proposal) const {
    if (!proposal.is_id(drafts_[number])) {
      return {0.0, 1.0};
    }
    const auto id = static_cast<size_t>(drafts_[number]);
    return {double{target.at(id)}, double{proposal.at(id)}};
  }

  double uniform_of(size_t number) const {
    const int64_t index = place(number);
    float noise[kLanes];
    fill_exponential({call_.places.seed[index], call_.places.position[index], call_.acceptance}, 0,
                     1, noise);
    return exp_not_positive(-double{noise[0]});
  }

  int64_t replacement(const TargetRow& target, double scale, const ProposalRow& proposal) const {
    const NoiseKey key{call_.places.seed[first_place_], call_.places.position[first_place_],
                       call_.resampling};
    return static_cast<int64_t>(draw_left(target, scale, proposal, key));
  }

  size_t judge_each() {
    for (size_t number = 0; number < drafts_.size(); ++number) {
      bool stays = false;
      with_draft(number, [&](const TargetRow& target, const ProposalRow& proposal) {
        const Odds odds = odds_of(number, target, proposal);
        stays = uniform_of(number) * odds.proposal < odds.target;
        call_.places.selected[place(number)] =
            stays ? drafts_[number] : replacement(target, 1.0, proposal);
      });
      if (!stays) {
        return number;
      }
    }
    return drafts_.size();
  }

  size_t judge_together() {
    size_t accepted = 0;
    double joint = 1.0;
    double joint_of_accepted = 1.0;
    for (size_t number = 0; number < drafts_.size() && joint > 0.0; ++number) {
      with_draft(number, [&](const TargetRow& target, const ProposalRow& proposal) {
        if (number > 0) {
          const double left = sum_left(target, joint, proposal);
          const double whole = left + 1.0 - joint;
          if (uniform_of(number - 1) < (whole > 0.0 ? left / whole : 1.0)) {
            accepted = number;
            joint_of_accepted = joint;
          }
        }
        const Odds odds = odds_of(number, target, proposal);
        const double ratio = odds.target / larger_of(odds.proposal, kTiny);
        joint = joint * ratio > 1.0 ? 1.0 : joint * ratio;
      });
      call_.places.selected[place(number)] = drafts_[number];
    }
    if (!drafts_.empty() && uniform_of(drafts_.size() - 1) < joint) {
      return drafts_.size();
    }
    if (accepted < drafts_.size()) {
      with_draft(accepted, [&](const TargetRow& target, const ProposalRow& proposal) {
        call_.places.selected[place(accepted)] = replacement(target, joint_of_accepted, proposal);
      });
    }
    return accepted;
  }

  static constexpr double kTiny = 0x1p-126;
  static double larger_of(double value, double least) { return value < least ? least : value; }

  const VerifyingCall& call_;
  int64_t first_place_;
  int64_t first_draft_;
  std::span<const int64_t> drafts_;
  Scratch& scratch_;
};

/// Draws the token of a place, after drafts that are not counted yet.
inline int64_t draw_place(const SamplingCall& call, int64_t place, std::span<const int64_t> newer,
                          Scratch& scratch) {
  for_rows(call.logits, {}, place, place + 1, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             call.selected[index] = static_cast<int64_t>(
                 sample_request(row, call, index, newer, nullptr, scratch, work));
           });
  return call.selected[place];
}

/// The tree of a request: each token leads to the first place that follows with it.
inline void verify_tree(const VerifyingCall& call, int64_t request, Scratch& scratch) {
  const int64_t first_place = call.first_place(request);
  const auto places = static_cast<size_t>(call.ends[request] - first_place);
  std::fill_n(call.places.selected + first_place, places, kNoToken);
  std::fill_n(call.places.status + first_place, places, RowStatus::kOk);
  int64_t* const path = call.path + first_place;
  size_t accepted = 0;
  for (int64_t place = 0;;) {
    const int64_t token = draw_place(call.places, first_place + place, {path, accepted}, scratch);
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
                   Scratch& scratch) {
  for (int64_t request = first_request; request < last_request; ++request) {
    if (!call.parents.empty()) {
      verify_tree(call, request, scratch);
      continue;
    }
    const std::span<const int64_t> drafts = call.drafts_of(request);
    const int64_t first_place = call.first_place(request);
    size_t accepted = 0;
    bool is_replaced = false;
    if (call.rule != DraftRule::kMatch) {
      DrawnDrafts drawn(call, request, scratch);
      accepted = drawn.judge();
      is_replaced = accepted < drawn.count();
    }
    while (!is_replaced) {
      const int64_t place = first_place + static_cast<int64_t>(accepted);
      const int64_t token = draw_place(call.places, place, drafts.first(accepted), scratch);
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
                   Scratch& scratch) {
  for_rows(call.logits, {}, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             with_edited(row, call, index, {}, scratch, work, [&](const auto& edited) {
               filter_request(edited, call, index, scratch, work);
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
                     .lead = lead,
                     .find_first = find_first,
                     .weigh_digits = weigh_digits,
                     .sum_chunks = sum_chunks,
                     .add_sums = add_sums,
                     .count_above = count_above,
                     .fill_noise = fill_exponential};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
