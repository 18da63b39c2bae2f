// The first k of a row's total order.
#pragma once

#include <span>

#include "cpu/filters/rules.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/status.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// How many maxima a search for the k-th largest logit wants.
inline size_t maxima_for(size_t k) { return 4 * k + 256; }

/// Groups so small that there are several for each of k candidates: then the k-th largest of their
/// maxima lies just below the k-th largest logit.
inline Groups groups_for(size_t k, size_t vocab_size, const Workspace& work) {
  constexpr size_t kMostLines = 16;
  Groups groups{kMostLines, work.maxima};
  while (groups.lines > 1 && vocab_size / groups.lines < maxima_for(k)) {
    groups.lines /= 2;
  }
  return groups;
}

/// As many maxima as the search for k of them needs, from those of all groups: fewer, larger groups
/// for a small k. Returns their number.
inline size_t fold_maxima(const float*& maxima, size_t size, size_t k, float* folded) {
  const size_t fold = size / maxima_for(k);
  if (fold < 2) {
    return size;
  }
  size_t count = 0;
  for (size_t i = 0; i < size; count += kLine) {
    Floats first = load_floats(maxima + i);
    Floats second = load_floats(maxima + i + kLanes);
    i += kLine;
    for (size_t j = 1; j < fold && i < size; ++j, i += kLine) {
      first = larger(load_floats(maxima + i), first);
      second = larger(load_floats(maxima + i + kLanes), second);
    }
    store(folded + count, first);
    store(folded + count + kLanes, second);
  }
  maxima = folded;
  return count;
}

/// A search for a bound ends when no more than these are above it.
inline size_t enough_for(size_t k) { return k + k / 8; }

/// A bound that k logits reach, from the maxima of groups. -inf where the row has no more.
template <typename Type>
float find_bound(const Row<Type>& row, const Groups& groups, size_t k, Workspace& work) {
  if (row.vocab_size() <= k) {
    return -kInfinity;
  }
  const float* maxima = groups.maxima;
  size_t size = row.chunks() * groups.blocks_in_chunk() * kLine;
  size = fold_maxima(maxima, size, k, work.folded_maxima);
  return find_threshold(maxima, size, k, enough_for(k));
}

/// The logits above some bound, by ascending id: k or a few more; and the bound. Fewer where only
/// ties at the bound are missing, or where the row has fewer above -inf.
struct Collected {
  Candidates candidates;
  float bound;
};

template <typename Type>
Collected collect_candidates(const Row<Type>& row, const Groups& groups, size_t k,
                             Workspace& work) {
  float bound = find_bound(row, groups, k, work);
  size_t count = hit_above(row, groups, bound, work.hits);
  if (count > 2 * k + kFewSorted) {
    // Many of a group's logits are above: a sorted row has its largest side by side. They are few
    // enough to be searched themselves.
    float* values = work.room_values[0];
    count = copy_hit_values(row, work.hits, values);
    bound = find_threshold(values, (count + kLine - 1) / kLine * kLine, k, enough_for(k));
    hit_above(row, groups, bound, work.hits);
  }
  Collected result{{work.values, work.ids}, bound};
  append_hits(row, work.hits, result.candidates);
  return result;
}

/// The row's maximum and the maxima of its groups, and its status where that is wanted.
template <typename Type>
float scan_first(const Row<Type>& row, const Groups& groups, RowStatus* status) {
  if (status == nullptr) {
    return scan_maxima(row, groups);
  }
  StatusOf<Type> seen;
  const float maximum = scan_maxima(row, groups, seen);
  *status = seen.status();
  return maximum;
}

/// The first k of the total order of some candidates, or all where they are fewer.
inline Candidates sort_first(Candidates& candidates, size_t k, Workspace& work) {
  if (candidates.count > kMostSorted || (candidates.count > kFewSorted && k <= kFewSorted)) {
    keep_largest(candidates, k);
  }
  Candidates sorted{work.sorted_values, work.sorted_ids};
  sort(candidates, work.keys, work.other_keys, sorted);
  sorted.count = sorted.count < k ? sorted.count : k;
  return sorted;
}

/// The first k of the total order, or fewer where the row has fewer above -inf.
template <typename Type>
Candidates sort_candidates(const Row<Type>& row, const Groups& groups, size_t k,
                           Collected collected, Workspace& work) {
  Candidates& candidates = collected.candidates;
  if (candidates.count < k && collected.bound > -kInfinity) {
    // Ties at the bound: as many as are missing, which follow everything above it.
    collect_equal(row, groups, collected.bound, k - candidates.count, candidates);
  }
  return sort_first(candidates, k, work);
}

/// Everything above `bound` in the total order, for what nothing faster serves. The values have
/// room up to a whole line, for scores in their place.
template <typename Type>
Candidates sort_above(const Row<Type>& row, const Groups& groups, float bound, Workspace& work) {
  Candidates found{work.values, work.ids};
  hit_above(row, groups, bound, work.hits);
  append_hits(row, work.hits, found);
  const size_t size = found.count;
  uint64_t* const keys = work.row_keys.reserve(2 * size);
  Candidates sorted{work.row_values.reserve(size + kLine), work.row_ids.reserve(size)};
  if (size != 0) {
    sort_many(found, keys, keys + size, sorted);
  }
  return sorted;
}

/// groups_for(k or more, ...) was scanned.
template <typename Type>
Candidates first_of_total_order(const Row<Type>& row, const Groups& groups, size_t k,
                                Workspace& work) {
  return sort_candidates(row, groups, k, collect_candidates(row, groups, k, work), work);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
