// What a rejected draft is replaced by, and how much of a target a proposal leaves.
#pragma once

#include "cpu/calls.h"
#include "cpu/draws/noise.h"
#include "cpu/filters/target.h"
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

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
