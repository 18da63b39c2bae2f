// What tensors hold. On the CPU it can be looked at; a kernel on a device would have to wait for
// it.
#pragma once

#include <cstdint>
#include <span>

namespace ascend_sample::cpu {

/// What each of an argument's numbers has to be, and how an error says so.
struct Range {
  int64_t least;
  int64_t end;
  const char* end_name;  // "the batch size of logits"
  const char* remedy;
};

/// Raises a ValueError unless all numbers of an operator's argument are in the range.
void check_values(const char* op, const char* name, std::span<const int64_t> values,
                  const Range& range);

}  // namespace ascend_sample::cpu
