// What is done to the logits of a fuzzed row before it is sampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "fuzz_values.h"

namespace ascend_sample::cpu::testing {

/// Adds text by printf's rules.
template <typename... Arguments>
void append(std::string& text, const char* format, Arguments... arguments) {
  char line[200];
  std::snprintf(line, sizeof(line), format, arguments...);
  text += line;
}

/// What is done to a row first. Lists hold ids of the vocabulary, masks a word for each 32 of them.
struct FuzzEdits {
  struct Addends {
    std::vector<int64_t> ids;  // each once
    std::vector<float> addends;
  };
  struct Penalties {
    std::vector<int64_t> ids;
    std::vector<int32_t> occurrences;  // of every id, listed or not
    float repetition;
    float presence;
    float frequency;
  };
  std::optional<Addends> addends;
  std::optional<Penalties> penalties;
  std::optional<std::vector<int32_t>> mask;
  std::optional<std::vector<int32_t>> bitmask;
  std::optional<std::vector<float>> ranges;  // a number for each RangeFilter

  /// Forgets what is of no vocabulary so small.
  void cut(size_t vocab_size);
  std::string describe() const;
};

/// Edits of one kind at least, for a vocabulary of this size.
FuzzEdits make_edits(Dice& dice, int64_t size);

}  // namespace ascend_sample::cpu::testing
