// The operator written once more, naively and in double, from docs/semantics.md alone: what the
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

  std::vector<float> logits;  // NaN as -inf
  int32_t k;
  float p;
  bool has_q;
  std::vector<float> q;  // empty without has_q
  float eps;
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

  /// "C", "A", "B" or "Ap", with "q" where the draw is on.
  const std::string& scenario() const { return scenario_; }
  int64_t selected() const { return selected_; }
  /// The kept logits, -inf elsewhere.
  std::vector<float> kept() const;

  /// Judges a result; `kept` is null where it was not asked for.
  Verdict judge(int64_t selected, const float* kept) const;

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
  void cut_at_p();
  std::vector<double> weights(size_t count) const;
  std::vector<Score> scores(size_t count) const;
  Score score(double weight, size_t place) const;
  bool wins(size_t place, size_t count) const;
  std::string narrow(const float* kept, Cut& cut) const;

  const Row& row_;
  std::string scenario_;
  char branch_;
  bool uses_p_;
  float maximum_;
  std::vector<int64_t> ids_;  // the candidates, in the order of section 2 (A, B) or by id (C)
  std::vector<double> probabilities_;  // of the candidates, by the first softmax
  Cut cut_;
  int64_t selected_;
};

}  // namespace ascend_sample::cpu::testing
