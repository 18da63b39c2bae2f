// The draw by rank from a nucleus: noise alone leaves few of its ranks a chance, and only these are
// looked up.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/contenders.h"
#include "cpu/filters/rules.h"
#include "cpu/filters/weighted_set.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The first ranks of a row, at least so many and at most so many, and bounds of the row's sum.
struct RankedNucleus {
  size_t least;
  size_t most;
  SumBounds sum;
  float maximum;
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
/// noise of the ranks, `quantile_of` finds one.
template <typename QuantileOf>
std::optional<FoundRank> draw_by_rank(const float* q, const RankedNucleus& nucleus,
                                      const RowArguments& arguments, Workspace& work,
                                      QuantileOf quantile_of) {
  const SumBounds& sum = nucleus.sum;
  const bool softmaxes_again = arguments.rules.softmaxes_again;
  const auto exponential_of = [&](const Quantile& at) {
    return exp_not_positive(double{at.value} - double{nucleus.maximum});
  };
  const double end = exponential_of(quantile_of(nucleus.most - 1));
  // The last weight over the first is at least:
  const double ratio = softmaxes_again ? exp_not_positive(end / sum.most - 1 / sum.least) : end;
  const Contenders contenders =
      find_contenders(q, nucleus.most, arguments.eps, 1.0 / ratio, work.noise_minima);
  if (contenders.is_open) {
    return std::nullopt;
  }
  const double inverse = (1 / sum.least + 1 / sum.most) / 2;
  const double spread = softmaxes_again ? 1 / sum.least - inverse : 0.0;
  FoundRank found[Contenders::kMost];
  double exponentials[Contenders::kMost];
  double scores[Contenders::kMost];
  size_t best = 0;
  for (size_t i = 0; i < contenders.count; ++i) {
    found[i] = {contenders.ranks[i], quantile_of(contenders.ranks[i])};
    exponentials[i] = exponential_of(found[i].at);
    scores[i] = arguments.draw_weight(exponentials[i], inverse) /
                double{__builtin_fabsf(q[found[i].rank]) + arguments.eps};
    best = scores[i] > scores[best] ? i : best;
  }
  bool is_certain = found[best].rank < nucleus.least;
  for (size_t i = 0; i < contenders.count; ++i) {
    const double difference = exponentials[i] - exponentials[best];
    is_certain &= i == best || is_surely_less(scores[i], scores[best], difference, spread);
  }
  return is_certain ? std::optional<FoundRank>(found[best]) : std::nullopt;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
