// A row that the fuzzer tries, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "cpu/calls.h"
#include "fuzz_case.h"

namespace ascend_sample::cpu::testing {

using AnyCall = std::variant<OperatorCall, SamplingCall, FilteringCall, RankingCall>;

/// A case in memory, as the call of one row that it is.
class StoredCase {
 public:
  explicit StoredCase(const FuzzCase& fuzz_case);
  StoredCase(const StoredCase&) = delete;
  StoredCase& operator=(const StoredCase&) = delete;

  const AnyCall& call() const { return call_; }

 private:
  OperatorCall operator_call(const FuzzCase& fuzz_case, const Logits& logits);
  Edits edits();
  RankingCall ranking_call(const FuzzCase::Ranking& ranking, const Logits& logits);

  static constexpr int64_t kSlot = 0;
  static constexpr bool kIsWanted = true;

  std::vector<std::byte> logits_;
  std::vector<float> q_;
  int32_t k_;
  uint32_t p_;
  uint32_t min_p_;
  int64_t selected_ = 0;
  std::vector<float> kept_;
  std::vector<float> weights_;
  std::vector<int64_t> ids_;
  FuzzCase::Request request_;
  float near_ = 0;
  float log_prob_ = 0;
  RememberingRows remembering_{&near_, &log_prob_};
  KeptList list_;
  int64_t addend_length_ = 0;
  int64_t penalty_length_ = 0;
  RowStatus status_ = RowStatus::kOk;
  int64_t given_ = 0;
  int64_t rank_ = 0;
  AnyCall call_;
};

}  // namespace ascend_sample::cpu::testing
