// A row's order as runs of equal values: what depends on the value alone is computed once for each.
#pragma once

#include "nucleus.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Distinct values in descending order, and how many ranks of the total order each has.
struct Runs {
  float* values;
  uint32_t* counts;
  double* exponentials;  // of value - maximum, or of the probabilities' differences
  double* masses;        // of a run: its count times its exponential
  float* weights;        // scratch: a number a run
  size_t size = 0;

  void append(float value, size_t count) {
    values[size] = value;
    counts[size] = static_cast<uint32_t>(count);
    ++size;
  }

  /// Keeps the first `count` ranks; there are as many.
  void truncate(size_t count) {
    for (size = 0; count != 0; ++size) {
      counts[size] = counts[size] < count ? counts[size] : static_cast<uint32_t>(count);
      count -= counts[size];
    }
  }

  size_t ranks() const {
    size_t total = 0;
    for (size_t run = 0; run < size; ++run) {
      total += counts[run];
    }
    return total;
  }
};

/// The sum of every rank's exponential.
inline double sum_exponentials(const Runs& runs) {
  for (size_t run = 0; run < runs.size; ++run) {
    runs.masses[run] = static_cast<double>(runs.counts[run]) * runs.exponentials[run];
  }
  return sum(runs.masses, runs.size);
}

/// The least n with which the probabilities of the first n ranks, exponential / sum rounded to
/// float32, exceed p; all ranks where even those do not.
inline size_t count_until_exceeding(const Runs& runs, double sum, float p) {
  const auto target = static_cast<double>(p);
  for (size_t run = 0; run < runs.size; ++run) {
    runs.weights[run] = static_cast<float>(runs.exponentials[run] / sum);
  }
  double cumulated = 0;
  size_t ranks = 0;
  for (size_t run = 0; run < runs.size; ++run) {
    const auto probability = static_cast<double>(runs.weights[run]);
    const double with_run = cumulated + static_cast<double>(runs.counts[run]) * probability;
    if (with_run > target) {
      size_t low = 0;  // ranks of the run with which the target is not exceeded
      size_t high = runs.counts[run];
      while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        const double with_middle = cumulated + static_cast<double>(middle) * probability;
        (with_middle > target ? high : low) = middle;
      }
      return ranks + high;
    }
    cumulated = with_run;
    ranks += runs.counts[run];
  }
  return ranks;
}

/// The least number of ranks whose exponentials exceed the target; 0 where even all do not.
/// sum_exponentials() filled in the masses.
inline size_t count_until_above(const Runs& runs, double target) {
  double cumulated = 0;
  size_t ranks = 0;
  for (size_t run = 0; run < runs.size; ++run) {
    if (cumulated + runs.masses[run] > target) {
      const double missing = (target - cumulated) / runs.exponentials[run];
      const size_t most = runs.counts[run];
      const auto count = static_cast<size_t>(missing) + 1;
      return ranks + (count < most ? count : most);
    }
    cumulated += runs.masses[run];
    ranks += runs.counts[run];
  }
  return 0;
}

/// A rank's value, and its place among the logits that are equal to it.
struct Located {
  size_t run;
  size_t equal;
};

inline Located locate(const Runs& runs, size_t rank) {
  size_t run = 0;
  for (; rank >= runs.counts[run]; ++run) {
    rank -= runs.counts[run];
  }
  return {run, rank};
}

/// The lowest rank with the largest score; `scores` has room for them, up to whole lines.
inline size_t draw_from_all(const Runs& runs, const float* q, float eps, float* scores) {
  const double total = sum_exponentials(runs);
  size_t rank = 0;
  for (size_t run = 0; run < runs.size; ++run) {
    const auto weight = static_cast<float>(runs.exponentials[run] / total);
    for (const size_t end = rank + runs.counts[run]; rank < end; ++rank) {
      scores[rank] = weight;
    }
  }
  for (size_t i = 0; i < rank; ++i) {
    scores[i] = score_of(scores[i], q[i], eps);
  }
  return first_largest(scores, rank);
}

/// The same for many ranks, most of which their noise alone excludes.
inline size_t draw_from_many(const Runs& runs, const float* q, size_t count, float eps,
                             float* minima, float* scores) {
  const double ratio = runs.exponentials[0] / runs.exponentials[runs.size - 1];
  const Contenders contenders = find_contenders(q, count, eps, ratio, minima);
  if (contenders.is_open) {
    return draw_from_all(runs, q, eps, scores);
  }
  size_t best = contenders.ranks[0];
  double best_score = -1;
  for (size_t i = 0; i < contenders.count; ++i) {
    const size_t rank = contenders.ranks[i];
    const double score = runs.exponentials[locate(runs, rank).run] /
                         static_cast<double>(__builtin_fabsf(q[rank]) + eps);
    if (score > best_score) {
      best = rank;
      best_score = score;
    }
  }
  return best;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
