// Both operators written once more, naively and in double, from docs/semantics.md and
// docs/semantics_v2.md alone: what the
// kernel is compared with where Python would be too slow. It shares nothing with the kernel but its
// types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/sample_rows.h"

namespace ascend_sample::cpu::testing {

/// One row of a batch as numbers.
struct Row {
  Row(const Batch& batch, int64_t row);

  /// What a value without weight is: -inf, or 0 for probabilities.
  float nothing() const;

  std::vector<float> logits;  // without weight what is not a number, and negative probabilities
  int32_t k;
  float p;
  bool has_q;
  std::vector<float> q;  // empty without has_q
  float eps;
  bool is_second;
  int64_t most_k;
  float min_p;  // 0: none
  bool are_probabilities;
  bool is_need_sample_result;

  // Of the sampling layer.
  bool is_request = false;
  RowStatus status = RowStatus::kOk;
  std::vector<float> order;  // of top-k, where logits are divided by a temperature; else empty

 private:
  void become_request(const Sampling& sampling, int64_t row);
};

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

  /// "C", "A", "B" or "Ap", of the sampling layer with "r:" before it, "g" for its greedy rows and
  /// "t" where logits are divided; with "q" where the draw is on. Of the second operator with "2:"
  /// before it, "1" where p keeps one entry, "m" for min-p, "/dense" and "/prob".
  const std::string& scenario() const { return scenario_; }
  int64_t selected() const { return selected_; }
  /// The kept logits, elsewhere what has no weight.
  std::vector<float> kept() const;
  /// The weights of the kept entries in the order of q, then zeros; their ids, then zeros.
  std::vector<float> dense_weights() const;
  std::vector<int64_t> dense_ids() const;

  /// Judges a result; null is what was not asked for.
  Verdict judge(int64_t selected, const float* kept, const float* dense_weights,
                const int64_t* dense_ids) const;

 private:
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
  bool has_weight(size_t rank) const { return value(rank) != row_.nothing(); }
  float value(size_t rank) const { return row_.logits[static_cast<size_t>(ids_[rank])]; }
  std::vector<size_t> places(size_t count) const;
  std::vector<double> weights(size_t count) const;
  std::vector<Score> scores(size_t count) const;
  Score score(double weight, size_t rank, size_t place) const;
  bool wins(size_t rank, size_t count) const;
  bool wins_by_some_cut(size_t rank, const Cut& cut) const;
  bool is_tie(int64_t selected) const;
  std::string narrow(const float* kept, Cut& cut) const;
  std::string narrow(const float* dense_weights, const int64_t* dense_ids, Cut& cut) const;

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

}  // namespace ascend_sample::cpu::testing
