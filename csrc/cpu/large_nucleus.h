// A draw from a nucleus too large to be sorted: only ranks that might win are looked up.
#pragma once

#include <cmath>
#include <optional>

#include "nucleus.h"
#include "rough.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline Known know_bag(const Bag& bag, float maximum) {
  return {weigh_bag(bag, maximum), sum_rough(bag.values, bag.size)};
}

/// A nucleus whose end is beyond the sorted candidates. Entries of Weight::kValue are their own
/// weights: what is said of exponentials and of probabilities holds for the entries then.
template <typename Type, Weight kWeight = Weight::kExponential>
class LargeNucleus {
 public:
  LargeNucleus(const Row<Type>& row, const RowArguments& arguments, const Groups& groups,
               const Candidates& candidates, float maximum, const Beyond& beyond,
               const Bag& beyond_values, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        p_(arguments.target()),
        groups_(groups),
        candidates_(candidates),
        maximum_(maximum),
        beyond_(beyond),
        beyond_values_(beyond_values),
        scratch_(scratch),
        work_(work),
        searcher_(row, maximum, end_of(beyond_values), work) {}

  /// Where few logits are in the nucleus, they are gathered and weighed, so that only what is below
  /// them is between bounds. Draws where that is enough. `known_beyond` is what is beyond; `guess`
  /// bounds the sum with that alone.
  std::optional<size_t> try_rough_sum(const RoughSum& rough, const Known& known_beyond,
                                      const Bounds& guess) {
    if (arguments_.kept != nullptr) {
      return std::nullopt;
    }
    const double middle = p_ * (guess.least + guess.most) / 2;
    const Bag* bag = searcher_.gather_few(lowest_of_nucleus(guess.least), beyond_, middle);
    if (bag == nullptr) {
      return std::nullopt;
    }
    Known known = know_bag(*bag, maximum_);
    known.weight += known_beyond.weight;
    known.rough += known_beyond.rough;
    const Bounds sum = bound_sum(rough, known, row_.chunks());
    const double least_target = p_ * sum.least;
    const double most_target = p_ * sum.most;
    if (beyond_.weight >= least_target || known.weight * (1 - 1e-5) <= most_target) {
      return std::nullopt;
    }
    nucleus_ =
        cut<kWeight>(searcher_.template find_in<kWeight>(*bag, most_target), maximum_, most_target);
    // What the least nucleus lacks has no logit below this one's end.
    double end = exponential_of(nucleus_.place.value);
    const double lacking = std::ceil((most_target - least_target) / end) + 1;
    const auto count = static_cast<double>(nucleus_.count());
    auto least_count = static_cast<size_t>(lacking < count ? count - lacking : 0.0);
    if (!arguments_.stays_surely(end)) {
      // Where every such nucleus reaches beyond min-p, what is kept depends on no sum.
      const float lower = below_share(maximum_, arguments_.min_p * (1 - kUnsure));
      const float upper = below_share(maximum_, arguments_.min_p * (1 + kUnsure));
      const size_t staying = searcher_.count_above(upper);
      if (staying > least_count || staying != searcher_.count_above(lower)) {
        return std::nullopt;
      }
      nucleus_ = {{upper, staying, 0.0, 0}, 0};
      least_count = staying;
      end = exponential_of(lower);
    }
    const float* q = contiguous(arguments_.noise, nucleus_.count(), scratch_);
    size_t found_rank = 0;
    Place found;
    const std::optional<size_t> rank = draw_surely(
        q, least_count, nucleus_.count(), sum, end, arguments_, work_.noise_minima,
        [&](size_t rank) {
          found = find_place(rank);
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
    return id_of(*rank, *rank == found_rank ? found : find_place(*rank));
  }

  /// With the exact sum: a draw, and what is kept.
  size_t sample(const RowSum& sum) {
    const double target = p_ * sum.sum;
    const Place end = searcher_.template find<kWeight>(lowest_of_nucleus(sum.sum), beyond_, target);
    is_small_ = searcher_.has_gathered_all_above();
    nucleus_ = cut<kWeight>(end, maximum_, target);
    keep_staying(sum);
    if (arguments_.kept != nullptr) {
      write_kept(row_, nucleus_.place.value, nucleus_.equals, arguments_.kept,
                 kWeight == Weight::kValue ? 0.0F : -kInfinity);
    }
    return arguments_.is_drawn() ? draw_with(sum) : candidates_.ids[0];
  }

  /// Whether it had few enough logits for try_rough_sum.
  bool is_small() const { return is_small_; }

 private:
  /// Behind the values and the padding that makes them up to whole lines.
  static float* end_of(const Bag& bag) {
    return bag.values + (bag.size + kLine - 1) / kLine * kLine;
  }

  double exponential_of(float value) const {
    return kWeight == Weight::kValue
               ? double{value}
               : exp_not_positive(static_cast<double>(value) - static_cast<double>(maximum_));
  }

  /// The weight, rounded as the reference does.
  float weight_in(float value, const RowSum& sum) const {
    return kWeight == Weight::kValue ? value : probability_of(value, sum);
  }

  /// All the logits below this together weigh less than the nucleus leaves of a sum.
  float lowest_of_nucleus(double sum) const {
    if constexpr (kWeight == Weight::kValue) {
      return next_above(0.0F);
    }
    const double rest = (1.0 - p_) * sum / static_cast<double>(row_.vocab_size());
    return static_cast<float>(static_cast<double>(maximum_) + std::log(rest) - 1e-3);
  }

  /// Leaves what min-p leaves of the nucleus.
  void keep_staying(const RowSum& sum) {
    const double least = double{arguments_.min_p} * double{weight_in(maximum_, sum)};
    const auto stays = [&](float value) { return double{weight_in(value, sum)} >= least; };
    if (!arguments_.uses_min_p() || stays(nucleus_.place.value)) {
      return;
    }
    const float bound = last_before(nucleus_.place.value, maximum_, stays);
    nucleus_ = {{bound, hit_above(row_, groups_, bound, work_.hits), 0.0, 0}, 0};
  }

  /// A draw with the weights of the second softmax, exp(probability), or with the probabilities.
  size_t draw_with(const RowSum& sum) {
    const size_t count = nucleus_.count();
    const float* q = contiguous(arguments_.noise, count, scratch_);
    const auto weight_of = [&](float value) {
      return arguments_.is_second ? exponential_of(value)
                                  : exp_not_positive(double{probability_of(value, sum)} -
                                                     double{probability_of(maximum_, sum)});
    };
    const double ratio = weight_of(maximum_) / weight_of(nucleus_.place.value);
    const Contenders contenders =
        find_contenders(q, count, arguments_.eps, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return draw_from_sorted(q, count, sum);
    }
    if (contenders.count == 1) {
      return id_of(contenders.ranks[0], find_place(contenders.ranks[0]));
    }
    size_t best_rank = 0;
    Place best_place;
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
      const Place place = find_place(rank);
      const double score = weight_of(place.value) / noise;
      if (score >= best_score) {
        best_rank = rank;
        best_place = place;
        best_score = score;
      }
    }
    return id_of(best_rank, best_place);
  }

  /// The largest value, but for rounding, that has no larger exponential; -inf where none has.
  float value_with(double exponential) const {
    if (!(exponential > 0)) {
      return -kInfinity;
    }
    const auto value = static_cast<float>(
        kWeight == Weight::kValue ? exponential : double{maximum_} + std::log(exponential));
    return exponential_of(value) > exponential ? next_below(value) : value;
  }

  /// Whether this rank's value is surely at most the bound: at less cost than by its place.
  bool is_at_most(size_t rank, float bound) const {
    const size_t last = candidates_.count - 1;
    if (rank <= last || candidates_.values[last] <= bound) {
      return candidates_.values[rank < last ? rank : last] <= bound;
    }
    // So it is where no more than this many are above the bound.
    return rank >= (rank < beyond_.count ? count_greater(beyond_values_, bound)
                                         : searcher_.count_above(bound));
  }

  /// Where a rank is; of the candidates' places, only the value is known.
  Place find_place(size_t rank) {
    if (rank < candidates_.count) {
      return {candidates_.values[rank]};
    }
    if (rank < beyond_.count) {
      return searcher_.template find_in<Weight::kOne>(beyond_values_, static_cast<double>(rank));
    }
    if (rank < nucleus_.place.count_above) {
      return searcher_.template find<Weight::kOne>(nucleus_.place.value, beyond_,
                                                   static_cast<double>(rank));
    }
    return nucleus_.place;
  }

  size_t id_of(size_t rank, const Place& place) const {
    return rank < candidates_.count ? candidates_.ids[rank]
                                    : find_equal(row_, place.value, rank - place.count_above);
  }

  /// For noise that leaves the draw open among many ranks: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, size_t count, const RowSum& sum) {
    const float below = next_below(nucleus_.place.value);
    const auto [sorted, exponentials] = sort_above(row_, groups_, below, scratch_, work_);
    double total = sum.sum;
    if (arguments_.is_second) {
      for (size_t rank = 0; rank < count; ++rank) {
        exponentials[rank] = exponential_of(sorted.values[rank]);
      }
    } else {
      float* probabilities = sorted.values;
      for (size_t rank = 0; rank < count; ++rank) {
        probabilities[rank] = probability_of(sorted.values[rank], sum);
      }
      total = exp_differences(probabilities, count, probabilities[0], exponentials);
    }
    return sorted.ids[draw(exponentials, count, total, {q, 1}, arguments_.eps, sorted.values)];
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  const double p_;  // what the sum of probabilities has to exceed
  const Groups& groups_;
  const Candidates& candidates_;
  const float maximum_;
  const Beyond beyond_;
  const Bag beyond_values_;  // empty where the candidates have them
  Scratch& scratch_;
  Workspace& work_;
  Searcher<Type, kWeight> searcher_;
  Nucleus nucleus_{};
  bool is_small_ = false;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
