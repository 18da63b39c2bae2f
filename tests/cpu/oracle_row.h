// One row of a call as numbers, read by no code of the kernel's.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/calls.h"

namespace ascend_sample::cpu::testing {

/// A row of a call.
struct Row {
  Row(const OperatorCall& call, int64_t row);
  Row(const SamplingCall& call, int64_t row);
  Row(const FilteringCall& call, int64_t row);
  Row(const RankingCall& call, int64_t row);

  /// Whether top-k is on.
  bool uses_k() const;

  std::vector<float> logits;  // -inf for what is not a number
  int32_t k = 0;
  float p = 0;
  bool has_q = false;
  std::vector<float> q;  // empty without has_q
  float eps = 0;
  bool is_second = true;
  int64_t most_k = 1024;
  float min_p = 0;  // 0: none

  // Of the sampling layer.
  bool is_request = false;
  bool wants_distribution = false;  // instead of a token
  bool is_greedy = false;
  bool is_edited = false;             // or masked
  bool is_divided = false;            // by a temperature
  bool is_segmented = false;          // q is that of 256 places, then that of segments
  RowStatus status = RowStatus::kOk;  // of a token
  std::vector<float> order;           // of top-k and of the best, where not the logits'; else empty

 private:
  void load(const Logits& rows, int64_t row);
  void edit(const Edits& edits, int64_t row);
  void settle();
  void keep_range(const Requests& requests, int64_t row);
  void read(const Requests& requests, int64_t row);
  void cut_at_k(bool keeps_ties);
  void divide(float temperature);
};

}  // namespace ascend_sample::cpu::testing
