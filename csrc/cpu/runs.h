// A row's order as runs of equal values: what depends on the value alone is computed once for each.
#pragma once

#include "nucleus.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The first ranks: everything before a run, and some of that.
struct First {
  size_t run;
  size_t of_run;  // at least 1
  size_t ranks;   // in all
};

/// Distinct values in descending order, and how many ranks of the total order each has.
struct Runs {
  float* values;
  uint32_t* counts;
  double* exponentials;  // of value - maximum
  double* masses;        // scratch: of a run, its count times something
  float* weights;        // scratch: a number a run
  size_t size = 0;

  void append(float value, size_t count) {
    values[size] = value;
    counts[size] = static_cast<uint32_t>(count);
    ++size;
  }

  /// Drops all ranks but the first.
  void keep(const First& first) {
    size = first.run + 1;
    counts[first.run] = static_cast<uint32_t>(first.of_run);
  }
};

/// Blocks of so many runs are skipped at once where possible.
inline constexpr size_t kBlock = 32;

inline size_t count_ranks(const Runs& runs, size_t first_run, size_t last_run) {
  size_t total = 0;
  for (size_t run = first_run; run < last_run; ++run) {
    total += runs.counts[run];
  }
  return total;
}

/// The first ranks up to this one, of which there is one.
inline First first_to(const Runs& runs, size_t rank) {
  size_t run = 0;
  size_t before = 0;
  for (; run + kBlock < runs.size; run += kBlock) {
    const size_t with_block = before + count_ranks(runs, run, run + kBlock);
    if (with_block > rank) {
      break;
    }
    before = with_block;
  }
  for (; before + runs.counts[run] <= rank; ++run) {
    before += runs.counts[run];
  }
  return {run, rank - before + 1, rank + 1};
}

/// The least number of first ranks whose weights, of which runs.masses has those of whole runs,
/// together exceed the target; none where even all do not.
template <typename WeightOf>
std::optional<First> first_exceeding(const Runs& runs, double target, WeightOf weight_of) {
  size_t run = 0;
  double before = 0;
  for (; run + kBlock < runs.size; run += kBlock) {
    const double with_block = before + sum(runs.masses + run, kBlock);
    if (with_block > target) {
      break;
    }
    before = with_block;
  }
  for (; !(before + runs.masses[run] > target); ++run) {
    if (run + 1 == runs.size) {
      return std::nullopt;
    }
    before += runs.masses[run];
  }
  size_t low = 0;  // of the run: so many do not exceed it
  size_t high = runs.counts[run];
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const bool exceeds = before + static_cast<double>(middle) * weight_of(run) > target;
    (exceeds ? high : low) = middle;
  }
  return First{run, high, count_ranks(runs, 0, run) + high};
}

/// Fills in the masses of the exponentials. Returns their sum.
inline double sum_exponentials(const Runs& runs) {
  for (size_t run = 0; run < runs.size; ++run) {
    runs.masses[run] = static_cast<double>(runs.counts[run]) * runs.exponentials[run];
  }
  return sum(runs.masses, runs.size);
}

/// All ranks of the first runs.
inline First all_of(const Runs& runs, size_t size) {
  return {size - 1, runs.counts[size - 1], count_ranks(runs, 0, size)};
}

/// Fills in the probabilities, exponential / sum rounded to float32, as weights.
inline void set_probabilities(const Runs& runs, double sum) {
  for (size_t run = 0; run < runs.size; ++run) {
    runs.weights[run] = static_cast<float>(runs.exponentials[run] / sum);
  }
}

/// The nucleus: the least first ranks whose probabilities, which are the weights, together exceed
/// the target; all where even those do not.
inline First nucleus_of(const Runs& runs, double target) {
  for (size_t run = 0; run < runs.size; ++run) {
    runs.masses[run] = static_cast<double>(runs.counts[run]) * double{runs.weights[run]};
  }
  return first_exceeding(runs, target, [&](size_t run) { return double{runs.weights[run]}; })
      .value_or(all_of(runs, runs.size));
}

/// What min-p leaves, by the weights.
inline First staying_of(const Runs& runs, const First& first, const RowArguments& arguments) {
  if (arguments.min_p >= 1.0F) {
    return {0, 1, 1};
  }
  const size_t size =
      arguments.count_staying(first.run + 1, [&](size_t run) { return runs.weights[run]; });
  return size <= first.run ? all_of(runs, size) : first;
}

/// The lowest rank with the largest score, the weights being exponential / total; `scores` has room
/// for them, up to whole lines.
inline size_t draw_from_all(const Runs& runs, double total, const float* q, float eps,
                            float* scores) {
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

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
