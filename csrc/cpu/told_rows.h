// What is told of rows beside their tokens, where that is wanted: what was kept of them, and how
// probable the tokens of those were that remember their draws.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/calls.h"
#include "cpu/filters/rules.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Of the rows that one thread draws, one after the other.
class ToldRows {
 public:
  explicit ToldRows(const SamplingCall& call) : call_(call) {}

  /// Lets the arguments of a row say what is wanted.
  void ask(int64_t index, const NoiseKey& key, RowArguments& arguments) {
    arguments.list = call_.kept_of(index);
    if (asks_for_chance(index)) {
      const RememberingRows& remembering = *call_.remembering;
      chance_ = TokenChance{.key = key,
                            .near = std::min(remembering.near[index], 1.0F),
                            .status = call_.status + index,
                            .list = &list_,
                            .log_prob = remembering.log_probs + index};
      arguments.chance = &chance_;
    }
  }

  /// What is kept of a greedy row is what it takes; of one with a bad status, nothing.
  void complete(int64_t index, size_t selected) const {
    KeptList* const list = call_.kept_of(index);
    if (list == nullptr) {
      return;
    }
    if (call_.status[index] != RowStatus::kOk) {
      list->clear();
    } else if (!(call_.requests.temperature[index] > 0.0F) || call_.requests.k[index] == 1) {
      list->resize(1);
      list->ids()[0] = static_cast<int32_t>(selected);
      list->log_probs()[0] = 0.0F;
    }
  }

 private:
  bool asks_for_chance(int64_t index) const {
    return call_.remembering != nullptr && !std::isnan(call_.remembering->near[index]);
  }

  const SamplingCall& call_;
  KeptList list_;
  TokenChance chance_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
