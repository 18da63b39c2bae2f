// What is done to a row before it is sampled: addends and penalties at listed ids, and masks. The
// arithmetic is that of ascend_sample/sampling/edits/processing.py: float32, each operation
// rounded.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "cpu/calls.h"
#include "cpu/rows/formats.h"
#include "cpu/vectors/selection.h"
#include "cpu/workspace.h"

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

  /// The bits of a chunk's lines. Behind those of the vocabulary they are any, where rows have
  /// -inf.
  std::array<uint32_t, kChunkLines> chunk_bits(size_t chunk, size_t lines) const {
    if (!is_there()) {
      std::array<uint32_t, kChunkLines> all;
      all.fill(~uint32_t{0});
      return all;
    }
    const size_t start = chunk * kChunkLines;
    const size_t count = std::min(kChunkLines, lines - start);
    std::array<uint32_t, kChunkLines> result{};
    std::copy_n((first_.empty() ? second_ : first_).data() + start, count, result.begin());
    if (!first_.empty() && !second_.empty()) {
      for (size_t line = 0; line < count; ++line) {
        result[line] &= static_cast<uint32_t>(second_[start + line]);
      }
    }
    return result;
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

/// A line with -inf where no bit is set, as load_raw gives those of `Out`.
template <typename Out, typename Type = Out>
ASCEND_SAMPLE_INLINE auto select_line(const typename Type::Storage* line, uint32_t bits) {
  if constexpr (kHas16Bits<Out>) {
    return select(bits, load<ShortPart>(line), Out::kMinusInfinity);
  } else {
    const Line logits = Type::load(line);
    const Floats lowest = splat(-kInfinity);
    return Line{select(mask_of(bits), logits.first, lowest),
                select(mask_of(bits >> kLanes), logits.second, lowest)};
  }
}

/// Copies a row, perhaps widened, with -inf for what the mask forbids. Lines of nothing else are
/// not read, nor asked for: which those are is hard to foresee.
template <typename Out, typename Type>
void copy_allowed(const Row<Type>& row, const RowMask& mask, typename Out::Storage* out) {
  constexpr size_t kAhead = kLinesAhead<typename Type::Storage> / kChunkLines;
  for (size_t index = 0; index < row.chunks(); ++index) {
    const size_t next = std::min(index + kAhead, row.chunks() - 1);
    const auto* const chunk = row.chunk(index);
    const auto* const next_chunk = row.chunk(next);
    const auto bits = mask.chunk_bits(index, row.lines());
    const auto next_bits = mask.chunk_bits(next, row.lines());
    const size_t lines = std::min(kChunkLines, row.lines() - index * kChunkLines);
    for (size_t line = 0; line < lines; ++line, out += kLine) {
      if (next_bits[line] != 0) {
        prefetch_lines(next_chunk + line * kLine);
      }
      if (bits[line] != 0) {
        store(out, select_line<Out, Type>(chunk + line * kLine, bits[line]));
      } else {
        std::fill_n(out, kLine, Out::kMinusInfinity);
      }
    }
  }
}

/// The row with -inf for what the mask forbids.
template <typename Type>
Row<Type> keep_allowed(const Row<Type>& row, const RowMask& mask, Workspace& work) {
  auto* const logits = work.edited.reserve<typename Type::Storage>(row.padded());
  copy_allowed<Type>(row, mask, logits);
  return {logits, row.vocab_size()};
}

/// What the mask allows goes to work.allowed and work.allowed_ids, by ascending id. Returns its
/// number, or none where a pass over the row takes hardly longer.
template <typename Type>
std::optional<size_t> gather_allowed(const Row<Type>& row, const RowMask& mask, Workspace& work) {
  const size_t most = row.lines();  // one a line
  size_t count = 0;
  for (size_t line = 0; line < row.lines() && count <= most; ++line) {
    count += static_cast<size_t>(__builtin_popcount(mask.bits(line)));
  }
  if (count > most) {
    return std::nullopt;
  }
  auto* const logits = work.allowed.reserve<typename Type::Storage>(most + kChunk);
  uint32_t* const ids = work.allowed_ids.reserve(most);
  size_t gathered = 0;
  for (size_t line = 0; gathered < count; ++line) {
    for (uint32_t bits = mask.bits(line); bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctz(bits));
      ids[gathered++] = static_cast<uint32_t>(line * kLine + place);
    }
  }
  for (size_t i = 0; i < count; ++i) {  // apart, so that one does not wait for another from memory
    const size_t id = ids[i];
    logits[i] = row.line(id / kLine)[id % kLine];
  }
  return count;
}

/// What penalties make of a logit. Without a branch, which would wait for the logit to be there.
inline float penalized(float logit, int32_t occurrences, float repetition, float presence,
                       float frequency) {
  const int32_t count = occurrences >> 1;
  const float divided = logit / repetition;
  const float multiplied = logit * repetition;
  const float repeated = logit > 0.0F ? divided : multiplied;
  const bool has_occurred = ((occurrences & 1) != 0) | (count > 0);
  logit = has_occurred ? repeated : logit;
  logit -= frequency * static_cast<float>(count);
  return logit - presence * (count > 0 ? 1.0F : 0.0F);
}

/// Adds addends to the logits of the ids that they list.
inline void add_listed(const Addends& edits, int64_t slot, float* logits) {
  const float* const addends = edits.addends.row(slot);
  for (size_t i = 0; i < edits.lists.of(slot).size(); ++i) {
    logits[i] = addends[i] == -kInfinity ? -kInfinity : logits[i] + addends[i];
  }
}

/// Applies a row's penalties to the logits of the ids that they list, and then of the tokens
/// `newer`, at the end of its output, which nothing has counted yet.
inline void penalize_listed(const Penalties& penalties, int64_t slot, int64_t index,
                            std::span<const int64_t> newer, float* logits) {
  const int32_t* const occurrences = penalties.occurrences.row(slot);
  const float repetition = penalties.repetition[index];
  const float presence = penalties.presence[index];
  const float frequency = penalties.frequency[index];
  const auto penalize = [&](std::span<const int64_t> ids, auto newer_of) {
    constexpr size_t kTogether = 64;  // apart, so that one does not wait for another from memory
    int32_t seen[kTogether];
    while (!ids.empty()) {
      const size_t count = std::min(ids.size(), kTogether);
      for (size_t i = 0; i < count; ++i) {
        seen[i] = occurrences[ids[i]] + 2 * newer_of(ids[i]);
      }
      for (size_t i = 0; i < count; ++i) {
        logits[i] = penalized(logits[i], seen[i], repetition, presence, frequency);
      }
      logits += count;
      ids = ids.subspan(count);
    }
  };
  if (newer.empty()) {
    penalize(penalties.lists.of(slot), [](int64_t) { return 0; });
    return;
  }
  const auto newer_of = [newer](int64_t id) {
    return static_cast<int32_t>(std::count(newer.begin(), newer.end(), id));
  };
  penalize(penalties.lists.of(slot), newer_of);
  penalize(newer, newer_of);
}

/// Does the addends and the penalties of a row to a float32 one, of which no other logit is looked
/// at. What a mask has made -inf stays that. `newer` are the tokens at the end of the output that
/// nothing has counted yet.
inline void edit_listed(const Edits& edits, int64_t index, std::span<const int64_t> newer,
                        float* logits, Workspace& work) {
  // Reads all logits of both lists before it writes any: an id may be listed several times.
  const auto edit = [&](std::span<const int64_t> ids, std::span<const int64_t> more,
                        auto edit_gathered) {
    float* const gathered = work.listed.reserve(ids.size() + more.size());
    const auto for_each = [&](auto move) {
      for (size_t i = 0; i < ids.size(); ++i) {
        move(gathered[i], logits[ids[i]]);
      }
      for (size_t i = 0; i < more.size(); ++i) {
        move(gathered[ids.size() + i], logits[more[i]]);
      }
    };
    for_each([](float& there, float logit) { there = logit; });
    edit_gathered(gathered);
    for_each([](float there, float& logit) { logit = there; });
  };
  if (const auto slot = slot_of(edits.addends, index)) {
    edit(edits.addends->lists.of(*slot), {},
         [&](float* gathered) { add_listed(*edits.addends, *slot, gathered); });
  }
  if (const auto slot = slot_of(edits.penalties, index)) {
    edit(edits.penalties->lists.of(*slot), newer, [&](float* gathered) {
      penalize_listed(*edits.penalties, *slot, index, newer, gathered);
    });
  }
}

/// The row as float32 with its addends, its penalties and its mask. `newer` as above.
template <typename Type>
Row<Float32> edit(const Row<Type>& row, const Edits& edits, int64_t index, const RowMask& mask,
                  std::span<const int64_t> newer, Workspace& work) {
  auto* const logits = work.edited.reserve<float>(row.padded());
  copy_allowed<Float32>(row, mask, logits);
  edit_listed(edits, index, newer, logits, work);
  return {logits, row.vocab_size()};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
