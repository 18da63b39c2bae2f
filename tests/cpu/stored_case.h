// A row that the fuzzer tries, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "cpu/calls.h"
#include "fuzz_case.h"

namespace ascend_sample::cpu::testing {

using AnyCall = std::variant<OperatorCall, SamplingCall, FilteringCall>;

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

  static constexpr int64_t kSlot = 0;

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
  int64_t addend_length_ = 0;
  int64_t penalty_length_ = 0;
  RowStatus status_ = RowStatus::kOk;
  AnyCall call_;
};

}  // namespace ascend_sample::cpu::testing
