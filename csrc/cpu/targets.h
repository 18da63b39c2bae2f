// The instruction sets that the kernel is compiled for, and the kernel of each. One source, so the
// results are the same, bit for bit, for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cpu/calls.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu {

/// Serves the rows [first_row, last_row) of a call on the calling thread.
template <typename Call>
using RowsFunction = void (*)(const Call& call, int64_t first_row, int64_t last_row,
                              Workspace& work);

/// The functions that one instruction set has.
struct Kernel {
  RowsFunction<OperatorCall> sample;
  RowsFunction<SamplingCall> sample_requests;
  RowsFunction<VerifyingCall> verify;
  RowsFunction<FilteringCall> filter;
  RowsFunction<RangesCall> find_ranges;
  RowsFunction<RankingCall> rank;
  RowsFunction<WinnersCall> find_winners;

  /// Writes the exponential noise of `count` lanes of a row from `first_lane`, which is even.
  void (*fill_noise)(const NoiseKey& key, uint64_t first_lane, size_t count, float* out);
};

struct Target {
  std::string_view name;   // "avx512"
  bool (*is_available)();  // whether this machine has the instructions
  const Kernel* kernel;
};

/// Those of this machine's architecture, from the most portable to the widest.
std::span<const Target> targets();

/// The available target of a name, or null.
const Target* find_target(std::string_view name);

/// The widest that is available.
const Target& best_target();

}  // namespace ascend_sample::cpu
