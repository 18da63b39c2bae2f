// What is done to a row before it is sampled: addends and penalties at listed ids, and masks. The
// arithmetic is that of ascend_sample/sampling/processing.py: float32, each operation rounded.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "cpu/calls.h"
#include "cpu/rows/formats.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/selection.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Where a row's edits of one kind are; none where it has none.
template <typename Kind>
std::optional<int64_t> slot_of(const std::optional<Kind>& kind, int64_t index) {
  return kind.has_value() && kind->slots[index] >= 0 ? std::optional(kind->slots[index])
                                                     : std::nullopt;
}

/// Which ids of a row may be drawn: those that each of its masks allows. A line has one word.
class RowMask {
 public:
  RowMask(const Edits& edits, int64_t index, size_t vocab_size)
      : first_(words_of(edits.masks, index, vocab_size)),
        second_(words_of(edits.bitmask, index, vocab_size)) {}

  /// Whether there is any.
  bool is_there() const { return !first_.empty() || !second_.empty(); }

  /// Bit i: that of id i of a line. Beyond the vocabulary it is any, where rows have -inf.
  uint32_t bits(size_t line) const {
    const uint32_t first = first_.empty() ? ~uint32_t{0} : static_cast<uint32_t>(first_[line]);
    const uint32_t second = second_.empty() ? ~uint32_t{0} : static_cast<uint32_t>(second_[line]);
    return first & second;
  }

 private:
  static std::span<const int32_t> words_of(const std::optional<Masks>& masks, int64_t index,
                                           size_t vocab_size) {
    const std::optional<int64_t> slot = slot_of(masks, index);
    return slot.has_value() ? std::span(masks->words.row(*slot), (vocab_size + kLine - 1) / kLine)
                            : std::span<const int32_t>();
  }

  std::span<const int32_t> first_;
  std::span<const int32_t> second_;
};

/// Copies a row, perhaps widened, with -inf for what the mask forbids. Lines of nothing else are
/// not read.
template <typename Out, typename Type>
void copy_allowed(const Row<Type>& row, const RowMask& mask, typename Out::Storage* out) {
  constexpr size_t kAhead = 16;  // lines: which of them are read is hard to foresee
  for (size_t line = 0; line < row.lines(); ++line, out += kLine) {
    const size_t next = std::min(line + kAhead, row.lines() - 1);
    __builtin_prefetch(mask.bits(next) != 0 ? static_cast<const void*>(row.line(next)) : out);
    const uint32_t bits = mask.bits(line);
    if (bits == 0) {
      std::fill_n(out, kLine, Out::kMinusInfinity);
      continue;
    }
    if constexpr (kHasFewValues<Out>) {
      store(out, select(bits, load<ShortPart>(row.line(line)), Out::kMinusInfinity));
    } else {
      const Line logits = Type::load(row.line(line));
      const Floats lowest = splat(-kInfinity);
      store(out, select(mask_of(bits), logits.first, lowest));
      store(out + kLanes, select(mask_of(bits >> kLanes), logits.second, lowest));
    }
  }
}

/// The row with -inf for what the mask forbids. The row itself is not to be read any more.
template <typename Type>
Row<Type> keep_allowed(const Row<Type>& row, const RowMask& mask, Scratch& scratch,
                       Workspace& work) {
  using Storage = typename Type::Storage;
  auto* const logits = reinterpret_cast<Storage*>(
      scratch.reserve(Scratch::kEdited, row.lines() * kLine * sizeof(Storage)));
  copy_allowed<Type>(row, mask, logits);
  return {logits, row.vocab_size(), reinterpret_cast<Storage*>(work.last_chunk)};
}

/// What the mask allows goes to work.compacted and work.compacted_ids, by ascending id. Returns its
/// number, or none where a pass over the row takes hardly longer.
template <typename Type>
std::optional<size_t> gather_allowed(const Row<Type>& row, const RowMask& mask, Workspace& work) {
  const size_t most = row.lines();  // one a line, where what is compacted has room for four
  size_t count = 0;
  for (size_t line = 0; line < row.lines() && count <= most; ++line) {
    count += static_cast<size_t>(__builtin_popcount(mask.bits(line)));
  }
  if (count > most) {
    return std::nullopt;
  }
  auto* const logits = reinterpret_cast<typename Type::Storage*>(work.compacted);
  size_t gathered = 0;
  for (size_t line = 0; gathered < count; ++line) {
    for (uint32_t bits = mask.bits(line); bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctz(bits));
      work.compacted_ids[gathered++] = static_cast<uint32_t>(line * kLine + place);
    }
  }
  for (size_t i = 0; i < count; ++i) {  // apart, so that one does not wait for another from memory
    const size_t id = work.compacted_ids[i];
    logits[i] = row.line(id / kLine)[id % kLine];
  }
  return count;
}

/// What penalties make of a logit.
inline float penalized(float logit, int32_t occurrences, float repetition, float presence,
                       float frequency) {
  const int32_t count = occurrences >> 1;
  const bool is_in_prompt = (occurrences & 1) != 0;
  const bool is_in_output = count > 0;
  if (is_in_prompt || is_in_output) {
    logit = logit > 0.0F ? logit / repetition : logit * repetition;
  }
  logit -= frequency * static_cast<float>(count);
  return logit - presence * (is_in_output ? 1.0F : 0.0F);
}

/// A float32 row whose edits are being done. What a mask has made -inf stays that.
class EditedRow {
 public:
  EditedRow(float* logits, Scratch& scratch) : logits_(logits), scratch_(scratch) {}

  void add(const Addends& edits, int64_t slot) {
    const float* const addends = edits.addends.row(slot);
    edit(edits.lists.of(slot), {}, [=](size_t i, float logit) {
      return addends[i] == -kInfinity ? -kInfinity : logit + addends[i];
    });
  }

  /// As if the output ended with the tokens `newer`, which nothing has counted yet.
  void penalize(const Penalties& penalties, int64_t slot, int64_t index,
                std::span<const int64_t> newer) {
    const std::span<const int64_t> ids = penalties.lists.of(slot);
    const int32_t* const occurrences = penalties.occurrences.row(slot);
    edit(ids, newer, [&](size_t i, float logit) {
      const int64_t id = i < ids.size() ? ids[i] : newer[i - ids.size()];
      const auto more = static_cast<int32_t>(std::count(newer.begin(), newer.end(), id));
      return penalized(logit, occurrences[id] + 2 * more, penalties.repetition[index],
                       penalties.presence[index], penalties.frequency[index]);
    });
  }

 private:
  /// Reads all logits of both lists before it writes any: an id may be listed several times.
  template <typename Edited>
  void edit(std::span<const int64_t> ids, std::span<const int64_t> newer, Edited edited_one) {
    auto* const edited = reinterpret_cast<float*>(
        scratch_.reserve(Scratch::kEdits, (ids.size() + newer.size()) * sizeof(float)));
    float* const edited_newer = edited + ids.size();
    for (size_t i = 0; i < ids.size(); ++i) {
      edited[i] = edited_one(i, logits_[ids[i]]);
    }
    for (size_t i = 0; i < newer.size(); ++i) {
      edited_newer[i] = edited_one(ids.size() + i, logits_[newer[i]]);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      logits_[ids[i]] = edited[i];
    }
    for (size_t i = 0; i < newer.size(); ++i) {
      logits_[newer[i]] = edited_newer[i];
    }
  }

  float* logits_;
  Scratch& scratch_;
};

/// The row as float32 with its addends, its penalties and its mask, or none where it has no more
/// than a mask. `newer` are the tokens at the end of its output that nothing has counted yet. The
/// row itself is not to be read any more.
template <typename Type>
std::optional<Row<Float32>> edit(const Row<Type>& row, const Edits& edits, int64_t index,
                                 const RowMask& mask, std::span<const int64_t> newer,
                                 Scratch& scratch, Workspace& work) {
  const std::optional<int64_t> addends = slot_of(edits.addends, index);
  const std::optional<int64_t> penalties = slot_of(edits.penalties, index);
  if (!addends.has_value() && !penalties.has_value()) {
    return std::nullopt;
  }
  auto* const logits = reinterpret_cast<float*>(
      scratch.reserve(Scratch::kEdited, row.lines() * kLine * sizeof(float)));
  copy_allowed<Float32>(row, mask, logits);
  EditedRow edited(logits, scratch);
  if (addends.has_value()) {
    edited.add(*edits.addends, *addends);
  }
  if (penalties.has_value()) {
    edited.penalize(*edits.penalties, *penalties, index, newer);
  }
  return Row<Float32>(logits, row.vocab_size(), work.last_chunk);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
