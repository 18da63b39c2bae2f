// The best tokens of a row, and the rank of one that is given: naively, in double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle_row.h"

namespace ascend_sample::cpu::testing {

/// What is reported of a row: first of a token that is given, if one is, then of the best.
class RankingOracle {
 public:
  RankingOracle(const Row& row, const RankingCall& call);

  /// "l:", with "t" where logits are divided, "+" where a token is given, and "raw" for logits.
  const std::string& scenario() const { return scenario_; }

  /// What is wrong with results; empty: nothing.
  std::string judge(const std::vector<float>& found_numbers, const std::vector<int64_t>& found_ids,
                    int64_t rank) const;
  const std::vector<double>& numbers() const { return numbers_; }
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t rank() const { return least_rank_; }

 private:
  std::string scenario_;
  std::vector<double> numbers_;
  std::vector<int64_t> ids_;
  int64_t least_rank_ = 0;  // of the given token, where no number is as near as rounding is
  int64_t most_rank_ = 0;   // and where all those are equal
};

}  // namespace ascend_sample::cpu::testing
