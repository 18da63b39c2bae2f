// What one thread keeps from row to row and from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ascend_sample::cpu {

/// What worked for the nucleus of the row before is tried first, since rows tend to be alike.
/// Results do not depend on it.
struct History {
  double depth = 0;   // of the nucleus: from the logarithm of the row's sum to its last logit
  uint8_t large = 0;  // rows one after the other whose nucleus was large

  bool is_likely_large() const { return large > 1; }
  void note_large(bool is_large) { large = !is_large ? 0 : large == 0 ? 1 : 2; }
};

/// Memory that one thread reuses from row to row: a few times the size of a row.
class Scratch {
 public:
  History history;

  enum Slot : uint8_t {
    kRow,
    kLogits,
    kNoise,
    kCopy,
    kDivided,
    kEdited,
    kEdits,
    kSort,
    kTarget,
    kRanked,
    kMarks,  // from here on: zeros, wherever a row has been sampled
    kProposal,
    kSlots
  };

  /// At least `bytes`, aligned to 64. What the slot held before is lost when it grows.
  std::byte* reserve(Slot slot, size_t bytes);

  /// Does the same, but with zeros where it grows.
  std::byte* reserve_zeros(Slot slot, size_t bytes);

  /// What the slot holds now.
  std::span<const std::byte> held(Slot slot) const {
    return {blocks_[slot].memory.get(), blocks_[slot].bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    size_t bytes = 0;
  };
  Block blocks_[kSlots];
};

}  // namespace ascend_sample::cpu
