// Runs a fuzzed row on every code path, and judges the results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/targets.h"
#include "fuzz_case.h"
#include "oracle.h"

namespace ascend_sample::cpu::testing {

struct Outcome {
  std::string scenario;
  Kind kind;
  std::string finding;  // empty: none
  uint64_t digest = 0;  // of the result
};

/// Goes on with a hash of bytes: FNV-1a.
uint64_t hashed(uint64_t hash, const void* data, size_t bytes);

class Fuzzer {
 public:
  /// A case that takes longer raises SIGALRM.
  explicit Fuzzer(unsigned most_seconds);

  std::string path_names() const;

  /// Runs a case, each path with another workspace.
  Outcome check(const FuzzCase& fuzz_case);

 private:
  struct Path {
    const Target& target;
    int number;
    std::unique_ptr<Workspace> work;
  };

  template <typename Call>
  Outcome check_call(const FuzzCase& fuzz_case, const Call& call);

  unsigned most_seconds_;
  std::vector<Path> paths_;
};

/// The smallest case found that still is a finding.
FuzzCase shrink(Fuzzer& fuzzer, FuzzCase smallest);

}  // namespace ascend_sample::cpu::testing
