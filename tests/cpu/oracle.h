// Both operators and the sampling layer's rows written once more, naively and in double, from
// docs/semantics.md, docs/semantics_v2.md, docs/sampling.md and docs/filters.md alone: what the
// kernel is compared with where Python would be too slow. It shares nothing with the kernel but its
// types.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle_row.h"

namespace ascend_sample::cpu::testing {

/// How a result relates to the oracle's: section 7.
enum class Kind : uint8_t { kExact, kTie, kNearDraw, kNearBoundary, kFailed };
inline constexpr const char* kKindNames[] = {"exact", "tie", "near draw", "near boundary",
                                             "failed"};

struct Verdict {
  Kind kind;
  std::string reason;
};

class Oracle {
 public:
  explicit Oracle(const Row& row);

  /// "C", "A", "B" or "Ap"; with "q" where the draw is on. Of the second operator with "2:" before
  /// it, "1" where p keeps one entry, and "m" for min-p. Of the sampling layer with "r:" before it,
  /// or "f:" where the distribution is wanted, "g" for greedy rows, "t" where logits are divided
  /// and "/edits".
  const std::string& scenario() const { return scenario_; }

  /// Judges a result; null is what was not asked for.
  Verdict judge(int64_t selected, const float* kept) const;
  Verdict judge_distribution(const float* distribution) const;

 private:
  /// A probability of the distribution, and how far the kernel's may be off.
  struct Share {
    double probability = 0;
    double off = 0;
  };
  /// The score of a candidate, and how far section 7 lets it be off.
  struct Score {
    float nominal;
    double low;
    double high;
  };
  /// How many entries may be kept.
  struct Cut {
    size_t least;
    size_t strict;  // when sums are added without error
    size_t most;
  };

  void order_candidates();
  void weigh();
  void cut_at_p();
  void cut_at_min_p();
  bool has_weight(size_t rank) const { return value(rank) != -INFINITY; }
  /// What section 5 gives no mass beside +inf has none.
  bool has_mass(size_t rank) const {
    return has_weight(rank) && (std::isfinite(maximum_) || value(rank) == maximum_);
  }
  float value(size_t rank) const { return row_.logits[static_cast<size_t>(ids_[rank])]; }
  std::vector<size_t> places(size_t count) const;
  std::vector<double> weights(size_t count) const;
  std::vector<Share> shares(size_t count) const;
  std::vector<Score> scores(size_t count) const;
  Score score(double weight, size_t rank, size_t place) const;
  bool wins(size_t rank, size_t count) const;
  bool wins_by_segments(size_t rank, size_t count) const;
  std::vector<double> segment_weights(size_t count) const;
  int64_t draw(size_t count) const;
  int64_t draw_by_segments(size_t count) const;
  template <typename Holds>
  bool holds_for_some_cut(size_t rank, const Cut& cut, Holds holds) const;
  bool wins_by_some_cut(size_t rank, const Cut& cut) const;
  bool is_tie(int64_t selected) const;
  std::string narrow(const float* kept, Cut& cut) const;

  const Row& row_;
  std::string scenario_;
  char branch_;
  bool uses_p_;
  bool keeps_one_;
  float maximum_;
  bool has_exact_sums_ = false;
  std::vector<int64_t> ids_;           // the candidates, in the order of section 2
  std::vector<double> probabilities_;  // of the candidates, by the first softmax; all 0: none has
  Cut cut_;
  int64_t selected_;
};

/// What is reported of a row: first of a token that is given, if one is, then of the best.
class RankingOracle {
 public:
  RankingOracle(const Row& row, const RankingCall& call);

  /// "l:", with "t" where logits are divided, "+" where a token is given, and "raw" for logits.
  const std::string& scenario() const { return scenario_; }

  /// What is wrong with results; empty: nothing.
  std::string judge(const std::vector<float>& found_numbers, const std::vector<int64_t>& found_ids,
                    int64_t rank) const;

 private:
  std::string scenario_;
  std::vector<double> numbers_;
  std::vector<int64_t> ids_;
  int64_t least_rank_ = 0;  // of the given token, where no number is as near as rounding is
  int64_t most_rank_ = 0;   // and where all those are equal
};

}  // namespace ascend_sample::cpu::testing
