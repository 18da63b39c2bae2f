// A draw from a nucleus too large to be sorted: only ranks that might win are looked up.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/draw.h"
#include "cpu/draws/segments.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/quantile.h"
#include "cpu/filters/sum_bounds.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/kept.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline PartialSum part_of(const WeightedSet& set, float maximum) {
  return {weigh_set(set, maximum), sum_approximately(set.values, set.size)};
}

/// A nucleus whose end is beyond the sorted candidates.
template <typename Type>
class LargeNucleus {
 public:
  LargeNucleus(const Row<Type>& row, const RowArguments& arguments, const Groups& groups,
               const Candidates& candidates, float maximum, const KnownPrefix& prefix,
               const WeightedSet& prefix_values, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        p_(arguments.target()),
        groups_(groups),
        candidates_(candidates),
        maximum_(maximum),
        prefix_(prefix),
        prefix_values_(prefix_values),
        scratch_(scratch),
        work_(work),
        search_(row, maximum, behind(prefix_values), work) {}

  /// Where few logits are in the nucleus, they are gathered and weighed, so that only what is below
  /// them is between bounds. Draws where that is enough. `known_prefix` is what is above; `guess`
  /// bounds the sum with that alone.
  std::optional<size_t> try_approximate_sum(const ApproximateSum& approximate,
                                            const PartialSum& known_prefix,
                                            const SumBounds& guess) {
    if (arguments_.wants_kept()) {
      return std::nullopt;
    }
    const double middle = p_ * (guess.least + guess.most) / 2;
    const WeightedSet* set = search_.gather_few(lowest_of_nucleus(guess.least), prefix_, middle);
    if (set == nullptr) {
      return std::nullopt;
    }
    PartialSum known = part_of(*set, maximum_);
    known.weight += known_prefix.weight;
    known.approximate += known_prefix.approximate;
    const SumBounds sum = bound_sum(approximate, known, row_.chunks());
    const double least_target = p_ * sum.least;
    const double most_target = p_ * sum.most;
    if (prefix_.weight >= least_target || known.weight * (1 - 1e-5) <= most_target) {
      return std::nullopt;
    }
    nucleus_ = cut<Weight::kExponential>(
        search_.template find_in<Weight::kExponential>(*set, most_target), maximum_, most_target);
    // What the least nucleus lacks has no logit below this one's end.
    double end = exponential_of(nucleus_.end.value);
    const double lacking = std::ceil((most_target - least_target) / end) + 1;
    const auto count = static_cast<double>(nucleus_.count());
    auto least_count = static_cast<size_t>(lacking < count ? count - lacking : 0.0);
    if (!arguments_.stays_surely(end)) {
      // Where every such nucleus reaches beyond min-p, what is kept depends on no sum.
      const float lower = below_share(maximum_, arguments_.min_p * (1 - kUnsure));
      const float upper = below_share(maximum_, arguments_.min_p * (1 + kUnsure));
      const size_t staying = search_.count_above(upper);
      if (staying > least_count || staying != search_.count_above(lower)) {
        return std::nullopt;
      }
      nucleus_ = {{upper, staying, 0.0, 0}, 0};
      least_count = staying;
      end = exponential_of(lower);
    }
    const float* q = contiguous(*arguments_.noise, nucleus_.count(), scratch_);
    size_t found_rank = 0;
    Quantile found;
    const std::optional<size_t> rank = draw_surely(
        q, least_count, nucleus_.count(), sum, end, arguments_, work_.noise_minima,
        [&](size_t rank) {
          found = quantile_of(rank);
          found_rank = rank;
          return exponential_of(found.value);
        },
        [this](size_t rank, double exponential) {
          return is_at_most(rank, value_with(exponential));
        });
    if (!rank.has_value()) {
      return std::nullopt;
    }
    // Mostly the last one that was found.
    return id_of(*rank, *rank == found_rank ? found : quantile_of(*rank));
  }

  /// With the exact sum: a draw, and what is kept.
  size_t sample(const RowSum& sum) {
    const double target = p_ * sum.sum;
    const Quantile end =
        search_.template find<Weight::kExponential>(lowest_of_nucleus(sum.sum), prefix_, target);
    is_small_ = search_.has_gathered_all_above();
    nucleus_ = cut<Weight::kExponential>(end, maximum_, target);
    keep_staying(sum);
    if (arguments_.wants_kept()) {
      write_kept(row_, nucleus_.end.value, nucleus_.equals, arguments_.kept.data());
    }
    if (arguments_.segments.has_value()) {
      return draw_listed(segmented_draw(), cut_of(nucleus_.count()), arguments_, work_);
    }
    return arguments_.is_drawn() ? draw_with(sum) : candidates_.ids[0];
  }

  /// Whether it had few enough logits for try_approximate_sum.
  bool is_small() const { return is_small_; }

 private:
  /// Behind the values and the padding that makes them up to whole lines.
  static float* behind(const WeightedSet& set) {
    return set.values + (set.size + kLine - 1) / kLine * kLine;
  }

  SegmentedDraw<Type> segmented_draw() const {
    return {row_, groups_, maximum_, 1.0F, *arguments_.segments, work_};
  }

  /// What the first ranks are of the row.
  Cut cut_of(size_t count) {
    const Quantile last = quantile_of(count - 1);
    return {last.value, id_of(count - 1, last)};
  }

  double exponential_of(float value) const {
    return exp_not_positive(static_cast<double>(value) - static_cast<double>(maximum_));
  }

  /// All the logits below this together weigh less than the nucleus leaves of a sum.
  float lowest_of_nucleus(double sum) const {
    const double rest = (1.0 - p_) * sum / static_cast<double>(row_.vocab_size());
    return static_cast<float>(static_cast<double>(maximum_) + std::log(rest) - 1e-3);
  }

  /// Leaves what min-p leaves of the nucleus.
  void keep_staying(const RowSum& sum) {
    const double least = double{arguments_.min_p} * double{probability_of(maximum_, sum)};
    const auto stays = [&](float value) { return double{probability_of(value, sum)} >= least; };
    if (!arguments_.uses_min_p() || stays(nucleus_.end.value)) {
      return;
    }
    const float bound = last_before(nucleus_.end.value, maximum_, stays);
    nucleus_ = {{bound, hit_above(row_, groups_, bound, work_.hits), 0.0, 0}, 0};
  }

  /// A draw with the weights of the second softmax, exp(probability), or with the probabilities.
  size_t draw_with(const RowSum& sum) {
    const size_t count = nucleus_.count();
    const float* q = contiguous(*arguments_.noise, count, scratch_);
    const auto weight_of = [&](float value) {
      return arguments_.rules.softmaxes_again
                 ? exp_not_positive(double{probability_of(value, sum)} -
                                    double{probability_of(maximum_, sum)})
                 : exponential_of(value);
    };
    const double ratio = weight_of(maximum_) / weight_of(nucleus_.end.value);
    const Contenders contenders =
        find_contenders(q, count, arguments_.eps, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return draw_from_sorted(q, count, sum);
    }
    if (contenders.count == 1) {
      return id_of(contenders.ranks[0], quantile_of(contenders.ranks[0]));
    }
    size_t best_rank = 0;
    Quantile best_quantile;
    double best_score = -1;
    // From the least noise on, which mostly wins.
    for (size_t i = contenders.count; i-- > 0;) {
      const size_t rank = contenders.ranks[i];
      const double noise{__builtin_fabsf(q[rank]) + arguments_.eps};
      if (best_score > 0) {
        const double weight = best_score * noise * (1 - 1e-5);
        const float bound = value_with(arguments_.exponential_with(weight, 1 / sum.sum));
        if (weight_of(bound) / noise < best_score && is_at_most(rank, bound)) {
          continue;
        }
      }
      const Quantile quantile = quantile_of(rank);
      const double score = weight_of(quantile.value) / noise;
      if (score >= best_score) {
        best_rank = rank;
        best_quantile = quantile;
        best_score = score;
      }
    }
    return id_of(best_rank, best_quantile);
  }

  /// The largest value, but for rounding, that has no larger exponential; -inf where none has.
  float value_with(double exponential) const {
    if (!(exponential > 0)) {
      return -kInfinity;
    }
    const auto value = static_cast<float>(double{maximum_} + std::log(exponential));
    return exponential_of(value) > exponential ? next_below(value) : value;
  }

  /// Whether this rank's value is surely at most the bound: at less cost than by its place.
  bool is_at_most(size_t rank, float bound) const {
    const size_t last = candidates_.count - 1;
    if (rank <= last || candidates_.values[last] <= bound) {
      return candidates_.values[rank < last ? rank : last] <= bound;
    }
    // So it is where no more than this many are above the bound.
    return rank >= (rank < prefix_.count ? count_greater(prefix_values_, bound)
                                         : search_.count_above(bound));
  }

  /// Where a rank is; of the candidates' places, only the value is known.
  Quantile quantile_of(size_t rank) {
    if (rank < candidates_.count) {
      return {candidates_.values[rank]};
    }
    if (rank < prefix_.count) {
      return search_.template find_in<Weight::kOne>(prefix_values_, static_cast<double>(rank));
    }
    if (rank < nucleus_.end.count_above) {
      return search_.template find<Weight::kOne>(nucleus_.end.value, prefix_,
                                                 static_cast<double>(rank));
    }
    return nucleus_.end;
  }

  size_t id_of(size_t rank, const Quantile& quantile) const {
    return rank < candidates_.count ? candidates_.ids[rank]
                                    : find_equal(row_, quantile.value, rank - quantile.count_above);
  }

  /// For noise that leaves the draw open among many ranks: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, size_t count, const RowSum& sum) {
    const float below = next_below(nucleus_.end.value);
    const auto [sorted, exponentials] = sort_above(row_, groups_, below, scratch_, work_);
    double total = sum.sum;
    if (arguments_.rules.softmaxes_again) {
      float* probabilities = sorted.values;
      for (size_t rank = 0; rank < count; ++rank) {
        probabilities[rank] = probability_of(sorted.values[rank], sum);
      }
      total = exp_differences(probabilities, count, probabilities[0], exponentials);
    } else {
      for (size_t rank = 0; rank < count; ++rank) {
        exponentials[rank] = exponential_of(sorted.values[rank]);
      }
    }
    return sorted.ids[draw(exponentials, count, total, {q, 1}, arguments_.eps, sorted.values)];
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  const double p_;  // what the sum of probabilities has to exceed
  const Groups& groups_;
  const Candidates& candidates_;
  const float maximum_;
  const KnownPrefix prefix_;
  const WeightedSet prefix_values_;  // empty where the candidates have them
  Scratch& scratch_;
  Workspace& work_;
  QuantileSearch<Type> search_;
  Nucleus nucleus_{};
  bool is_small_ = false;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
