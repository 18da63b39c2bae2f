// One row that the fuzzer tries: made from a seed, cut down on a finding, printed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/calls.h"
#include "cpu/workspace.h"
#include "fuzz_edits.h"

namespace ascend_sample::cpu::testing {

inline size_t size_of(LogitsType type) { return type == LogitsType::kFloat32 ? 4 : 2; }

/// A value in the bits of a type, rounded to nearest, ties to even.
uint32_t encode(LogitsType type, float value);

/// Where a block of memory lies. AddressSanitizer guards both ends of a heap block, but sees no
/// masked or gathering vector instruction; a guard page sees every instruction, on every machine.
enum class Placement : uint8_t { kHeap, kBeforeGuard, kBehindGuard };

/// A row with all that the kernel is told about it. Logits and p are the bits of their type.
struct FuzzCase {
  LogitsType type;
  std::vector<uint32_t> logits;
  int32_t k;
  uint32_t p;
  std::optional<std::vector<float>> q;
  float eps;
  int64_t logits_stride;
  int64_t q_stride;
  bool is_need_logits;  // also where they become a distribution
  Placement placement;
  bool has_used_workspace;  // else it is new, and not a byte larger than the kernel asks for
  History history;          // of the first code path; the others have another one

  // Of the second operator alone.
  bool is_second = false;
  int32_t most_k = kMaxTopK;
  std::optional<uint32_t> min_p;

  // Of the sampling layer alone, whose rows have the rest of the second operator.
  struct Request {
    float temperature;
    float p;
    float min_p;
    int64_t seed;
    int64_t position;
    uint32_t purpose;
    bool keeps_ties;
    bool wants_distribution;  // instead of a token
    bool wants_list;          // what is kept is listed as well
    FuzzEdits edits;
  };
  std::optional<Request> request;

  // Of the best tokens alone.
  struct Ranking {
    int64_t count;
    float temperature;
    bool is_normalised;
    int64_t given;  // one of the ids; -1: none
  };
  std::optional<Ranking> ranking;

  bool wants_distribution() const { return request.has_value() && request->wants_distribution; }

  void of_request(auto change) {
    if (request.has_value()) {
      change(*request);
    }
  }
  /// Forgets so many ids from one on.
  void cut(size_t start, size_t length);
  std::string describe() const;
};

/// The case of a seed: sizes around the boundaries of vectors and chunks, families of values laid
/// over one another, every kind of k, p, q and eps, and in each eighth row a mask. Every other one
/// is of the second operator, or a row of the sampling layer, of which every third wants the
/// distribution. A few of the others want their best tokens.
FuzzCase make_case(uint64_t seed);

}  // namespace ascend_sample::cpu::testing
