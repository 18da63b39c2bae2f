// A row's order as bins of equal values: what depends on the value alone is computed once for each.
#pragma once

#include <optional>

#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The first ranks: everything before a bin, and some of that.
struct Prefix {
  size_t bin;
  size_t of_bin;  // at least 1
  size_t ranks;   // in all
};

/// Distinct values in descending order, and how many ranks of the total order each has.
struct Bins {
  float* values;
  uint32_t* counts;
  double* exponentials;  // of value - maximum
  double* masses;        // scratch: of a bin, its count times something
  float* weights;        // scratch: a number a bin
  size_t size = 0;

  void append(float value, size_t count) {
    values[size] = value;
    counts[size] = static_cast<uint32_t>(count);
    ++size;
  }

  /// Drops all ranks but the first.
  void keep(const Prefix& prefix) {
    size = prefix.bin + 1;
    counts[prefix.bin] = static_cast<uint32_t>(prefix.of_bin);
  }
};

/// Blocks of so many bins are skipped at once where possible.
inline constexpr size_t kBlock = 32;

inline size_t count_ranks(const Bins& bins, size_t first_bin, size_t last_bin) {
  size_t total = 0;
  for (size_t bin = first_bin; bin < last_bin; ++bin) {
    total += bins.counts[bin];
  }
  return total;
}

/// The first ranks up to this one, of which there is one.
inline Prefix prefix_to(const Bins& bins, size_t rank) {
  size_t bin = 0;
  size_t before = 0;
  for (; bin + kBlock < bins.size; bin += kBlock) {
    const size_t with_block = before + count_ranks(bins, bin, bin + kBlock);
    if (with_block > rank) {
      break;
    }
    before = with_block;
  }
  for (; before + bins.counts[bin] <= rank; ++bin) {
    before += bins.counts[bin];
  }
  return {bin, rank - before + 1, rank + 1};
}

/// The least number of first ranks whose weights, of which bins.masses has those of whole bins,
/// together exceed the target; none where even all do not.
template <typename WeightOf>
std::optional<Prefix> prefix_exceeding(const Bins& bins, double target, WeightOf weight_of) {
  size_t bin = 0;
  double before = 0;
  for (; bin + kBlock < bins.size; bin += kBlock) {
    const double with_block = before + sum(bins.masses + bin, kBlock);
    if (with_block > target) {
      break;
    }
    before = with_block;
  }
  for (; !(before + bins.masses[bin] > target); ++bin) {
    if (bin + 1 == bins.size) {
      return std::nullopt;
    }
    before += bins.masses[bin];
  }
  size_t low = 0;  // of the bin: so many do not exceed it
  size_t high = bins.counts[bin];
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const bool exceeds = before + static_cast<double>(middle) * weight_of(bin) > target;
    (exceeds ? high : low) = middle;
  }
  return Prefix{bin, high, count_ranks(bins, 0, bin) + high};
}

/// Fills in the masses of the exponentials. Returns their sum.
inline double sum_exponentials(const Bins& bins) {
  for (size_t bin = 0; bin < bins.size; ++bin) {
    bins.masses[bin] = static_cast<double>(bins.counts[bin]) * bins.exponentials[bin];
  }
  return sum(bins.masses, bins.size);
}

/// All ranks of the first bins.
inline Prefix whole_prefix(const Bins& bins, size_t size) {
  return {size - 1, bins.counts[size - 1], count_ranks(bins, 0, size)};
}

/// Fills in the probabilities, exponential / sum rounded to float32, as weights.
inline void set_probabilities(const Bins& bins, double sum) {
  for (size_t bin = 0; bin < bins.size; ++bin) {
    bins.weights[bin] = static_cast<float>(bins.exponentials[bin] / sum);
  }
}

/// The nucleus: the least first ranks whose probabilities, which are the weights, together exceed
/// the target; all where even those do not.
inline Prefix nucleus_of(const Bins& bins, double target) {
  for (size_t bin = 0; bin < bins.size; ++bin) {
    bins.masses[bin] = static_cast<double>(bins.counts[bin]) * double{bins.weights[bin]};
  }
  return prefix_exceeding(bins, target, [&](size_t bin) { return double{bins.weights[bin]}; })
      .value_or(whole_prefix(bins, bins.size));
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
