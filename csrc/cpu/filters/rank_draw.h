// The draw by rank from a nucleus: noise alone leaves few of its ranks a chance, and only these are
// looked up.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/filters/rules.h"
#include "cpu/filters/weighted_set.h"
#include "cpu/rows/row.h"
#include "cpu/rows/scan.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Ranks that might be drawn from a large nucleus.
struct Contenders {
  static constexpr size_t kMost = 32;
  size_t ranks[kMost];
  size_t count = 0;
  bool is_open = false;  // there are more, or scores so small or large that rounding joins in
};

/// The ranks that might be drawn. Weights fall with the rank, by a factor of `ratio` at most from
/// the first to the last: so a rank is drawn only where its noise is below that of every earlier
/// one, and within that factor of the least.
inline Contenders find_contenders(const float* q, size_t count, float eps, double ratio,
                                  float* minima) {
  const auto noise_of = [eps](float q_value) { return __builtin_fabsf(q_value) + eps; };
  const auto noises_from = [&](size_t rank) {
    return absolute(load_floats(q + rank)) + splat(eps);
  };
  float least = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t size = count - start < kChunk ? count - start : kChunk;
    Floats lanes = splat(kInfinity);
    size_t i = 0;
    for (; i + kLine <= size; i += kLine) {
      prefetch_ahead(q + start + i);
      lanes = smaller(noises_from(start + i), lanes);
      lanes = smaller(noises_from(start + i + kLanes), lanes);
    }
    float minimum = -largest_lane(-lanes);
    for (; i < size; ++i) {
      const float noise = noise_of(q[start + i]);
      minimum = noise < minimum ? noise : minimum;
    }
    minima[start / kChunk] = minimum;
    least = minimum < least ? minimum : least;
  }
  Contenders contenders;
  if (!(least > 0x1p-100F && least < 0x1p100F)) {
    contenders.is_open = true;
    return contenders;
  }
  const double limit = static_cast<double>(least) * ratio * (1.0 + 1e-6);
  float so_far = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const float minimum = minima[start / kChunk];
    if (!(minimum < so_far)) {
      continue;
    }
    if (minimum <= limit) {
      const size_t end = count - start < kChunk ? count : start + kChunk;
      for (size_t vector = start; vector < end; vector += kLanes) {
        const size_t size = end - vector < kLanes ? end - vector : kLanes;
        if (size == kLanes && bits_of(is_greater(splat(so_far), noises_from(vector))) == 0) {
          continue;
        }
        for (size_t rank = vector; rank < vector + size; ++rank) {
          const float noise = noise_of(q[rank]);
          if (noise < so_far) {
            so_far = noise;
            if (noise <= limit && contenders.count < Contenders::kMost) {
              contenders.ranks[contenders.count++] = rank;
            } else {
              contenders.is_open |= noise <= limit;
            }
          }
        }
      }
    }
    so_far = minimum;
  }
  return contenders;
}

/// The first ranks of a row, at least so many and at most so many, and bounds of the row's sum.
struct RankedNucleus {
  size_t least;
  size_t most;
  float end;  // no value is less
  SumBounds sum;
  float maximum;

  double exponential_of(float value) const {
    return exp_not_positive(double{value} - double{maximum});
  }
  /// The largest value, but for rounding, that has no larger exponential; -inf where none has.
  float value_with(double exponential) const {
    if (!(exponential > 0)) {
      return -kInfinity;
    }
    const auto value = static_cast<float>(double{maximum} + std::log(exponential));
    return exponential_of(value) > exponential ? next_below(value) : value;
  }
};

/// A rank, and where it is.
struct FoundRank {
  size_t rank;
  Quantile at;
};

/// Whether a score is less than another for every inverse of the sum, which is known to `spread`;
/// `difference` is that of the two exponentials.
inline bool is_surely_less(double score, double other, double difference, double spread) {
  constexpr double kMargin = 8e-6;
  return score * (1 + 2 * (std::fabs(difference) * spread + kMargin)) < other;
}

/// The rank that is drawn from every such nucleus; none where that is not one rank. `q` is the
/// noise of the ranks; `quantile_of` tells where a rank is, `count_above` how many values of the
/// nucleus are above another one.
template <typename QuantileOf, typename CountAbove>
std::optional<FoundRank> draw_by_rank(const float* q, const RankedNucleus& nucleus,
                                      QuantileOf quantile_of, CountAbove count_above,
                                      const RowArguments& arguments, Workspace& work) {
  const SumBounds& sum = nucleus.sum;
  const bool softmaxes_again = arguments.rules.softmaxes_again;
  const double end = nucleus.exponential_of(nucleus.end);
  // The last weight over the first is at least:
  const double ratio = softmaxes_again ? exp_not_positive(end / sum.most - 1 / sum.least) : end;
  const Contenders contenders =
      find_contenders(q, nucleus.most, arguments.eps, 1.0 / ratio, work.noise_minima);
  if (contenders.is_open) {
    return std::nullopt;
  }
  const double inverse = (1 / sum.least + 1 / sum.most) / 2;
  const double spread = softmaxes_again ? 1 / sum.least - inverse : 0.0;
  double exponentials[Contenders::kMost];
  double scores[Contenders::kMost];
  size_t best = contenders.count - 1;
  Quantile found{};  // of the best one
  // From the least noise on, which mostly wins.
  for (size_t i = contenders.count; i-- > 0;) {
    const size_t rank = contenders.ranks[i];
    const double noise{__builtin_fabsf(q[rank]) + arguments.eps};
    const auto set = [&](double exponential) {
      exponentials[i] = exponential;
      scores[i] = arguments.draw_weight(exponential, inverse) / noise;
    };
    if (i != best) {
      // With the exponential of so much weight it loses, but for a little.
      set(arguments.exponential_with(scores[best] * noise * (1 - 4e-5), inverse));
      const double difference = exponentials[i] - exponentials[best];
      if (is_surely_less(scores[i], scores[best], difference, spread) &&
          rank >= count_above(nucleus.value_with(exponentials[i]))) {
        continue;  // its value is no larger
      }
    }
    const Quantile at = quantile_of(rank);
    set(nucleus.exponential_of(at.value));
    if (i == best || scores[i] > scores[best]) {
      best = i;
      found = at;
    }
  }
  bool is_certain = contenders.ranks[best] < nucleus.least;
  for (size_t i = 0; i < contenders.count; ++i) {
    const double difference = exponentials[i] - exponentials[best];
    is_certain &= i == best || is_surely_less(scores[i], scores[best], difference, spread);
  }
  return is_certain ? std::optional<FoundRank>({contenders.ranks[best], found}) : std::nullopt;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
