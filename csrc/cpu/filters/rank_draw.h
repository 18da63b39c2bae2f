// The draw by rank from a nucleus: of a few ranks by bounds of the row's sum, of many by its exact
// sum.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/contenders.h"
#include "cpu/draws/draw.h"
#include "cpu/filters/quantile.h"
#include "cpu/filters/rules.h"
#include "cpu/filters/top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Whether a score is less than another for every inverse of the sum, which is known to `spread`;
/// `difference` is that of the two exponentials.
inline bool is_surely_less(double score, double other, double difference, double spread) {
  constexpr double kMargin = 8e-6;
  return score * (1 + 2 * (std::fabs(difference) * spread + kMargin)) < other;
}

/// The rank that is drawn from the first ranks, so many at least and `most` at most, whose
/// exponentials are in the workspace, for any sum within the bounds; none where that is not one.
inline std::optional<size_t> draw_surely(size_t least, size_t most, const SumBounds& sum,
                                         const RowArguments& arguments, Workspace& work) {
  const Noise& noise = *arguments.noise;
  const double* const exponentials = work.exponentials;
  const double inverse = (1 / sum.least + 1 / sum.most) / 2;
  const double spread = arguments.rules.softmaxes_again ? 1 / sum.least - inverse : 0.0;
  noise.need(most);
  double* const scores = work.second_scores;
  for (size_t rank = 0; rank < most; ++rank) {
    scores[rank] = arguments.draw_weight(exponentials[rank], inverse);
  }
  size_t best = 0;
  for (size_t rank = 0; rank < most; ++rank) {
    scores[rank] /= static_cast<double>(__builtin_fabsf(noise[rank]) + arguments.eps);
    best = scores[rank] > scores[best] ? rank : best;
  }
  // Also not where noise is 0 or NaN, whose scores are not ordinary numbers.
  bool is_certain = best < least && scores[best] < 0x1p120 && scores[best] > 0x1p-120;
  for (size_t rank = 0; rank < most; ++rank) {
    const double difference = exponentials[rank] - exponentials[best];
    is_certain &= rank == best || is_surely_less(scores[rank], scores[best], difference, spread);
  }
  return is_certain ? std::optional<size_t>(best) : std::nullopt;
}

/// The draw from a nucleus that is too large to be sorted: noise alone leaves few of its ranks a
/// chance, and only these are looked up.
template <typename Type>
class RankDraw {
 public:
  RankDraw(const Row<Type>& row, const Groups& groups, const RowSum& sum,
           const RowArguments& arguments, Scratch& scratch, Workspace& work)
      : row_(row),
        groups_(groups),
        sum_(sum),
        arguments_(arguments),
        scratch_(scratch),
        work_(work) {}

  /// The drawn id. `first` are the first ranks, `prefix` is what is above the last of them.
  size_t draw(const Nucleus& nucleus, const Candidates& first, const KnownPrefix& prefix,
              QuantileSearch<Type, Weight::kExponential>& search) const {
    const size_t count = nucleus.count();
    const float* q = contiguous(*arguments_.noise, count, scratch_);
    const double ratio = weight_of(sum_.maximum) / weight_of(nucleus.end.value);
    const Contenders contenders =
        find_contenders(q, count, arguments_.eps, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return draw_from_sorted(q, nucleus);
    }
    // Where a rank is; of the first ones' places, only the value is known.
    const auto quantile_of = [&](size_t rank) {
      return rank < first.count ? Quantile{first.values[rank]}
             : rank < nucleus.end.count_above
                 ? search.template find<Weight::kOne>(nucleus.end.value, prefix,
                                                      static_cast<double>(rank))
                 : nucleus.end;
    };
    size_t best_rank = 0;
    Quantile best;
    double best_score = -1;
    for (size_t i = contenders.count; i-- > 0;) {
      const size_t rank = contenders.ranks[i];
      const Quantile quantile = quantile_of(rank);
      const double score =
          weight_of(quantile.value) / double{__builtin_fabsf(q[rank]) + arguments_.eps};
      if (score >= best_score) {
        best_rank = rank;
        best = quantile;
        best_score = score;
      }
    }
    return best_rank < first.count ? first.ids[best_rank]
                                   : find_equal(row_, best.value, best_rank - best.count_above);
  }

 private:
  double exponential_of(float value) const {
    return exp_not_positive(double{value} - double{sum_.maximum});
  }

  /// In the second softmax, exp(probability), or in the first; but for a common factor.
  double weight_of(float value) const {
    return arguments_.rules.softmaxes_again
               ? exp_not_positive(double{probability_of(value, sum_)} -
                                  double{probability_of(sum_.maximum, sum_)})
               : exponential_of(value);
  }

  /// For noise that leaves the draw open among many ranks: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, const Nucleus& nucleus) const {
    const size_t count = nucleus.count();
    const float below = next_below(nucleus.end.value);
    const auto [sorted, exponentials] = sort_above(row_, groups_, below, scratch_, work_);
    double total = sum_.sum;
    if (arguments_.rules.softmaxes_again) {
      float* probabilities = sorted.values;
      for (size_t rank = 0; rank < count; ++rank) {
        probabilities[rank] = probability_of(sorted.values[rank], sum_);
      }
      total = exp_differences(probabilities, count, probabilities[0], exponentials);
    } else {
      for (size_t rank = 0; rank < count; ++rank) {
        exponentials[rank] = exponential_of(sorted.values[rank]);
      }
    }
    return sorted.ids[ASCEND_SAMPLE_TARGET::draw(exponentials, count, total, {q, 1}, arguments_.eps,
                                                 sorted.values)];
  }

  const Row<Type>& row_;
  const Groups& groups_;
  const RowSum& sum_;
  const RowArguments& arguments_;
  Scratch& scratch_;
  Workspace& work_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
