// Top-k of an edited row that is not copied: the pass over it leaves out what is edited, which is
// edited apart and joins the candidates.
#pragma once

#include <algorithm>
#include <optional>

#include "cpu/filters/sorted.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/edits.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The ids of a row that addends and penalties list, and the logits that those make of theirs.
class EditedIds {
 public:
  template <typename Type>
  EditedIds(const Row<Type>& row, const Edits& edits, int64_t index, const RowMask& mask,
            Scratch& scratch)
      : marks_(reinterpret_cast<uint32_t*>(scratch.reserve_zeros(
            Scratch::kMarks, row.chunks() * kChunkLines * sizeof(uint32_t)))) {
    const std::optional<int64_t> addends = slot_of(edits.addends, index);
    const std::optional<int64_t> penalties = slot_of(edits.penalties, index);
    if (addends.has_value()) {
      lists_[0] = edits.addends->lists.of(*addends);
    }
    if (penalties.has_value()) {
      lists_[1] = edits.penalties->lists.of(*penalties);
    }
    logits_[0] = reinterpret_cast<float*>(
        scratch.reserve(Scratch::kListed, (lists_[0].size() + lists_[1].size()) * sizeof(float)));
    logits_[1] = logits_[0] + lists_[0].size();
    const auto logit_of = [&](int64_t id) {
      const auto place = static_cast<size_t>(id);
      const bool is_allowed = (mask.bits(place / kLine) >> (place % kLine) & 1U) != 0;
      const float logit = Type::value_of(row.line(place / kLine)[place % kLine]);
      return is_allowed ? logit : -kInfinity;
    };
    if (addends.has_value()) {  // what they make of an id may be penalised, and of several the last
                                // one counts: by their ids
      auto* const by_id = reinterpret_cast<float*>(
          scratch.reserve(Scratch::kEdited, row.vocab_size() * sizeof(float)));
      for_each([&](int64_t id, float&) { by_id[id] = logit_of(id); });
      edit_listed(edits, index, {}, by_id, scratch);
      for_each([&](int64_t id, float& logit) { logit = by_id[id]; });
    } else if (penalties.has_value()) {
      for_each([&](int64_t id, float& logit) { logit = logit_of(id); });
      penalize_listed(*edits.penalties, *penalties, index, {}, logits_[1]);
    }
    for_each([&](int64_t id, const float& logit) {
      are_ordinary_ &= logit < kInfinity;  // nor NaN
      marks_[static_cast<size_t>(id) / kLine] |= uint32_t{1} << (static_cast<size_t>(id) % kLine);
    });
  }

  EditedIds(const EditedIds&) = delete;
  EditedIds& operator=(const EditedIds&) = delete;

  ~EditedIds() {  // the memory is all 0 where nobody uses it
    for_each([&](int64_t id, float&) { marks_[static_cast<size_t>(id) / kLine] = 0; });
  }

  /// Whether no edited logit is NaN or +inf.
  bool are_ordinary() const { return are_ordinary_; }

  /// Bit i: id i of a line is edited.
  uint32_t bits(size_t line) const { return marks_[line]; }

  /// Puts those of at least `bound` among the candidates, by ascending id. Returns false where that
  /// would take long.
  bool join(float bound, Candidates& candidates) const {
    constexpr size_t kMostJoined = 64;
    size_t joined = 0;
    for_each([&](int64_t id, const float& logit) {
      if (logit >= bound && joined <= kMostJoined) {
        joined += insert(static_cast<uint32_t>(id), logit, candidates);
      }
    });
    return joined <= kMostJoined;
  }

 private:
  template <typename Function>
  void for_each(Function function) const {
    for (const size_t list : {0, 1}) {
      for (size_t i = 0; i < lists_[list].size(); ++i) {
        function(lists_[list][i], logits_[list][i]);
      }
    }
  }

  /// Returns false where the id is there already: it was listed several times.
  static bool insert(uint32_t id, float logit, Candidates& candidates) {
    size_t place = candidates.count;
    while (place > 0 && candidates.ids[place - 1] > id) {
      --place;
    }
    if (place > 0 && candidates.ids[place - 1] == id) {
      return false;
    }
    for (size_t i = candidates.count; i > place; --i) {
      candidates.ids[i] = candidates.ids[i - 1];
      candidates.values[i] = candidates.values[i - 1];
    }
    candidates.ids[place] = id;
    candidates.values[place] = logit;
    ++candidates.count;
    return true;
  }

  uint32_t* marks_;
  std::span<const int64_t> lists_[2];
  float* logits_[2];
  bool are_ordinary_ = true;
};

/// Does what scan_maxima does, with -inf for what the mask forbids.
template <typename Type, typename Status>
float scan_allowed_maxima(const Row<Type>& row, const RowMask& mask, const Groups& groups,
                          Status& seen) {
  if (!mask.is_there()) {
    return scan_maxima(row, groups, seen);
  }
  return scan_maxima(row, groups, seen, [&row, &mask](size_t index) {
    return [chunk = row.chunk(index), bits = mask.chunk_bits(index, row.lines())](size_t line) {
      prefetch_ahead(chunk + line * kLine);
      return select_line<Type>(chunk + line * kLine, bits[line]);
    };
  });
}

/// How many ids are edited at most.
inline size_t count_listed(const Edits& edits, int64_t index) {
  const auto addends = slot_of(edits.addends, index);
  const auto penalties = slot_of(edits.penalties, index);
  return (addends.has_value() ? edits.addends->lists.of(*addends).size() : 0) +
         (penalties.has_value() ? edits.penalties->lists.of(*penalties).size() : 0);
}

/// Asks for what penalties will read of a table that has a number for each id of each slot.
inline void prefetch_occurrences(const Edits& edits, int64_t index) {
  if (const auto slot = slot_of(edits.penalties, index)) {
    const int32_t* const occurrences = edits.penalties->occurrences.row(*slot);
    for (const int64_t id : edits.penalties->lists.of(*slot)) {
      __builtin_prefetch(occurrences + id);
    }
  }
}

/// The drawn id of an edited row of which ranks decide; none for other rows, and for those that are
/// no ordinary ones.
template <typename Type>
std::optional<size_t> sample_edited_top_k(const Row<Type>& row, const Edits& edits, int64_t index,
                                          const RowMask& mask, RowArguments arguments,
                                          Scratch& scratch, Workspace& work) {
  if (!arguments.use_ranks()) {
    return std::nullopt;
  }
  const auto k = static_cast<size_t>(arguments.k);
  if (k > kFewSorted) {
    return std::nullopt;
  }
  if (row.vocab_size() <= kMostCandidates) {
    return std::nullopt;
  }
  const size_t most_wanted = k + count_listed(edits, index);  // where all of these were the best
  const Groups groups = groups_for(std::min(most_wanted, kMostCandidates), row.vocab_size(), work);
  prefetch_occurrences(edits, index);  // meanwhile the row is read
  StatusOf<Type> seen;
  scan_allowed_maxima(row, mask, groups, seen);
  if (seen.status() != RowStatus::kOk) {
    return std::nullopt;
  }
  const EditedIds edited(row, edits, index, mask, scratch);
  if (!edited.are_ordinary()) {
    return std::nullopt;
  }
  const auto bits_left = [&](size_t line) {
    const auto bits_of_line = [&](size_t line) {
      return line < row.lines() ? uint64_t{mask.bits(line) & ~edited.bits(line)} : 0;
    };
    return bits_of_line(line) | bits_of_line(line + 1) << kLine;
  };
  const size_t likely_wanted = std::min(most_wanted, 2 * k + 16);
  for (const size_t wanted : {likely_wanted, most_wanted}) {
    if (wanted > kMostCandidates) {
      return std::nullopt;
    }
    const float bound = find_bound(row, groups, wanted, work);
    if (bound == -kInfinity) {
      return std::nullopt;
    }
    NoStatus noticed_above;
    const size_t count =
        hit_above(row, groups, next_below(bound), work.hits, noticed_above, bits_left);
    if (count < k && wanted < most_wanted) {
      continue;
    }
    if (count < k || count > kMostSorted) {
      return std::nullopt;
    }
    Candidates candidates{work.values, work.ids};
    append_hits(row, work.hits, candidates);
    if (!edited.join(bound, candidates)) {
      return std::nullopt;
    }
    const Candidates sorted = sort_first(candidates, k, work);
    arguments.status.front() = RowStatus::kOk;
    return sample_sorted(sorted, sorted.values[0], arguments.uses_p(), arguments, work);
  }
  return std::nullopt;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
