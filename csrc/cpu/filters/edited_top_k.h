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
            Workspace& work)
      : marks_(work.marks.reserve(row.chunks() * kChunkLines)),
        logits_(work.edited.reserve<float>(row.vocab_size())) {
    if (const auto slot = slot_of(edits.addends, index)) {
      lists_[0] = edits.addends->lists.of(*slot);
    }
    if (const auto slot = slot_of(edits.penalties, index)) {
      lists_[1] = edits.penalties->lists.of(*slot);
    }
    for_each([&](size_t id, float& logit) {
      const bool is_allowed = (mask.bits(id / kLine) >> (id % kLine) & 1U) != 0;
      logit = is_allowed ? Type::value_of(row.line(id / kLine)[id % kLine]) : -kInfinity;
      marks_[id / kLine] |= uint32_t{1} << (id % kLine);
    });
    edit_listed(edits, index, {}, logits_, work);
  }

  EditedIds(const EditedIds&) = delete;
  EditedIds& operator=(const EditedIds&) = delete;

  ~EditedIds() {
    for_each([&](size_t id, float&) { marks_[id / kLine] = 0; });
  }

  /// Whether no edited logit is NaN or +inf.
  bool are_ordinary() const {
    bool result = true;
    for_each([&](size_t, const float& logit) { result &= logit < kInfinity; });  // nor NaN
    return result;
  }

  /// Bit i: id i of a line is edited.
  uint32_t bits(size_t line) const { return marks_[line]; }

  /// Puts those of at least `bound` among the candidates, by ascending id. Returns false where that
  /// would take long.
  bool join(float bound, Candidates& candidates) const {
    constexpr size_t kMostJoined = 64;
    size_t joined = 0;
    for_each([&](size_t id, const float& logit) {
      if (logit >= bound && joined <= kMostJoined) {
        joined += insert(static_cast<uint32_t>(id), logit, candidates);
      }
    });
    return joined <= kMostJoined;
  }

 private:
  template <typename Function>
  void for_each(Function function) const {
    for (const std::span<const int64_t>& list : lists_) {
      for (const int64_t id : list) {
        function(static_cast<size_t>(id), logits_[id]);
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
  float* logits_;  // of the ids that are edited, each in its place
  std::span<const int64_t> lists_[2];
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
                                          const Report& report, Workspace& work) {
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
  const EditedIds edited(row, edits, index, mask, work);
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
    const size_t count = hit_above(row, groups, next_below(bound), work.hits, bits_left);
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
    report.note(RowStatus::kOk);
    return sample_sorted(sorted, sorted.values[0], arguments, report, work);
  }
  return std::nullopt;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
