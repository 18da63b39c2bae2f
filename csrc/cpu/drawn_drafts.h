// The drafts of one request, judged by what they were drawn from, and what replaces a rejected one:
// docs/drafts.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/calls.h"
#include "cpu/draws/noise.h"
#include "cpu/filters/distribution.h"
#include "cpu/vectors/exponential.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What one draft was drawn from, by ids. Lists of ids lie in memory that is 0 otherwise.
class ProposalRow {
 public:
  ProposalRow(const Proposals& proposals, int64_t number, int64_t draft, size_t vocab_size,
              Workspace& work)
      : vocab_size_(vocab_size) {
    if (proposals.is_dense()) {
      probabilities_ = proposals.probabilities.row(number);
      return;
    }
    marked_ = work.proposal.reserve(vocab_size);
    probabilities_ = marked_;
    if (proposals.columns == 0) {  // drafts were not drawn
      certain_ = draft;
      ids_ = {&certain_, 1};
    } else {
      ids_ = {proposals.candidates.row(number), static_cast<size_t>(proposals.columns)};
    }
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (is_id(ids_[i])) {
        marked_[ids_[i]] += proposals.columns == 0 ? 1.0F : proposals.probabilities.row(number)[i];
      }
    }
  }

  ProposalRow(const ProposalRow&) = delete;
  ProposalRow& operator=(const ProposalRow&) = delete;

  ~ProposalRow() {
    for (const int64_t id : ids_) {
      if (is_id(id)) {
        marked_[id] = 0.0F;
      }
    }
  }

  bool is_id(int64_t id) const { return static_cast<uint64_t>(id) < vocab_size_; }
  float at(size_t id) const { return probabilities_[id]; }

 private:
  size_t vocab_size_;
  const float* probabilities_;
  float* marked_ = nullptr;
  int64_t certain_ = kNoToken;
  std::span<const int64_t> ids_;
};

/// What a proposal leaves of a target that is scaled down: max(scale p - q, 0).
inline double left_of(double scale, double target, float proposal) {
  const double left = scale * target - double{proposal};
  return left > 0.0 ? left : 0.0;  // also for NaN
}

/// How much is left of the whole target.
inline double sum_left(const TargetRow& target, double scale, const ProposalRow& proposal) {
  double sum = 0;
  target.for_each(
      [&](size_t id, float probability) { sum += left_of(scale, probability, proposal.at(id)); });
  return sum;
}

/// The id that wins among weights by id; the lowest of equals. 0 where none has a weight.
class RaceById {
 public:
  explicit RaceById(const NoiseKey& key) : philox_(key) {}

  ASCEND_SAMPLE_INLINE void add(size_t id, double weight) {
    if (!(weight > 0.0)) {
      return;
    }
    if (id / kLanes != block_) {
      block_ = id / kLanes;
      store(noise_, exponential_of(philox_.bits_from(block_ * kLanes)));
    }
    const double score = weight / double{noise_[id % kLanes]};
    if (score > best_ || (score == best_ && id < winner_)) {
      best_ = score;
      winner_ = id;
    }
  }

  bool is_won() const { return best_ >= 0.0; }
  size_t winner() const { return winner_; }

 private:
  Philox philox_;
  float noise_[kLanes];
  size_t block_ = ~size_t{0};
  double best_ = -1.0;
  size_t winner_ = 0;
};

/// Draws from what is left of a target; from the target where rounding leaves nothing.
inline size_t draw_left(const TargetRow& target, double scale, const ProposalRow& proposal,
                        const NoiseKey& key) {
  RaceById left(key);
  target.for_each([&](size_t id, float probability) {
    left.add(id, left_of(scale, probability, proposal.at(id)));
  });
  if (left.is_won()) {
    return left.winner();
  }
  RaceById all(key);
  target.for_each([&](size_t id, float probability) { all.add(id, double{probability}); });
  return all.winner();
}

/// `with_target` calls a function with the target of a place, given the drafts before it.
template <typename WithTarget>
class DrawnDrafts {
 public:
  DrawnDrafts(const VerifyingCall& call, int64_t request, WithTarget with_target, Workspace& work)
      : call_(call),
        with_target_(with_target),
        first_place_(call.first_place(request)),
        first_draft_(first_place_ - request),
        drafts_(call.drafts_of(request)),
        work_(work) {
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
    with_target_(place(number), drafts_.first(number), [&](const TargetRow& target) {
      const ProposalRow proposal(call_.proposals, first_draft_ + static_cast<int64_t>(number),
                                 drafts_[number],
                                 static_cast<size_t>(call_.places.logits.vocab_size), work_);
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
    const bool is_block = call_.rule == DraftRule::kBlock;
    const int64_t index = is_block ? first_place_ : place(number);
    const int64_t apart = is_block ? static_cast<int64_t>(number) * kBlockApart : 0;
    const int64_t position = call_.places.keys.position[index] + apart;
    float noise[kLanes];
    fill_exponential({call_.places.keys.seed[index], position, call_.acceptance}, 0, 1, noise);
    return exp_not_positive(-double{noise[0]});
  }

  int64_t replacement(const TargetRow& target, double scale, const ProposalRow& proposal) const {
    const NoiseKey key{call_.places.keys.seed[first_place_],
                       call_.places.keys.position[first_place_], call_.resampling};
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
        const double ratio = odds.target / odds.proposal;  // NaN, which nothing is below, for 0 / 0
        joint = joint * ratio > 1.0 ? 1.0 : joint * ratio;
      });
      call_.places.selected[place(number)] = drafts_[number];
    }
    if (drafts_.empty() || uniform_of(drafts_.size() - 1) < joint) {
      return drafts_.size();
    }
    with_draft(accepted, [&](const TargetRow& target, const ProposalRow& proposal) {
      call_.places.selected[place(accepted)] = replacement(target, joint_of_accepted, proposal);
    });
    return accepted;
  }

  const VerifyingCall& call_;
  WithTarget with_target_;
  int64_t first_place_;
  int64_t first_draft_;
  std::span<const int64_t> drafts_;
  Workspace& work_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
