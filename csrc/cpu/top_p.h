// Top-p alone: branch B of docs/semantics.md.
#pragma once

#include <cmath>
#include <optional>

#include "counted.h"
#include "nucleus.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class TopP {
 public:
  TopP(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        p_(arguments.target()),
        noise_(arguments.noise),
        eps_(arguments.eps),
        kept_(arguments.kept),
        scratch_(scratch),
        work_(work),
        groups_(groups_for(kMostCandidates, row.vocab_size(), work)) {}

  /// The drawn id; none for a row with +inf that was not counted.
  std::optional<size_t> sample(History& history) {
    if constexpr (kHasFewValues<Type>) {
      return sample_counted(history);
    }
    if (history.first_try != History::kExactSum) {
      const RoughSum rough = scan_rough_sum(row_, groups_);
      if (rough.maximum == kInfinity) {
        return std::nullopt;
      }
      if (rough.maximum == -kInfinity) {
        return sample_nothing();
      }
      if (is_within_range(rough)) {
        if (const std::optional<size_t> selected = try_rough_sum(rough)) {
          return selected;
        }
      }
    }
    sum_ = scan_sum(row_, groups_, work_.chunk_sums);
    if (sum_.maximum == kInfinity) {
      return std::nullopt;
    }
    if (sum_.maximum == -kInfinity) {
      return sample_nothing();
    }
    const size_t selected = sample_with_sum();
    history.first_try = is_small_ ? History::kFew : History::kExactSum;
    return selected;
  }

 private:
  static constexpr size_t kFew = 48;  // candidates tried first: most nuclei are smaller

  /// Bounds of the nucleus' size; `most` is 0 where it may be beyond the candidates.
  struct Sizes {
    size_t least;
    size_t most;
  };

  struct Ranked {
    size_t id;
    float value;
  };

  size_t sample_counted(History& history) {
    Counted<Type> counted(row_, arguments_, scratch_, work_);
    if (history.first_try == History::kExactSum) {
      return counted.sample_top_p(history);
    }
    const RoughSum rough = scan_rough_sum(row_, groups_);
    if (is_within_range(rough)) {
      float low = counted.lowest_of_nucleus(rough, history);
      if (history.first_try == History::kFew) {
        const std::optional<size_t> selected = try_few(rough);
        if (selected.has_value()) {
          return *selected;
        }
        low = find_bound(row_, groups_, kMostCandidates, work_);
      }
      if (const std::optional<size_t> selected = counted.try_top_p(rough, groups_, low, history)) {
        return *selected;
      }
    }
    return counted.sample_top_p(history);
  }

  size_t sample_nothing() {
    if (kept_ != nullptr) {
      fill(kept_, row_.vocab_size(), -kInfinity);
    }
    return 0;
  }

  /// Where a few candidates hold the nucleus, bounds of the sum decide most draws; none where they
  /// do not.
  std::optional<size_t> try_few(const RoughSum& rough) {
    sum_.maximum = rough.maximum;
    candidates_ = first_of_total_order(row_, groups_, kFew, work_);
    known_ = know_candidates();
    bounds_ = bound_sum(rough, known_, row_.chunks());
    const Sizes sizes = bound_size(bounds_);
    is_beyond_few_ = sizes.most == 0;
    return is_beyond_few_ ? std::nullopt : try_candidates(sizes, bounds_);
  }

  std::optional<size_t> try_rough_sum(const RoughSum& rough) {
    const std::optional<size_t> selected = try_few(rough);
    if (selected.has_value() || !is_beyond_few_) {
      return selected;
    }
    const double each = work_.exponentials[candidates_.count - 1];
    if (known_.weight + each * static_cast<double>(kMostCandidates) <= p_ * bounds_.least) {
      return std::nullopt;  // kMostCandidates are not enough either
    }
    const Collected collected = collect_candidates(row_, groups_, kMostCandidates, work_);
    const Bag bag{collected.candidates.values, work_.weights, collected.candidates.count};
    const Known known = know_bag(bag);
    Bounds sum = bound_sum(rough, known, row_.chunks());
    if (bag.size >= kMostCandidates && known.weight < p_ * sum.least) {
      return try_rough_nucleus(rough, {collected.bound, bag.size, known.weight}, known, sum);
    }
    candidates_ = sort_candidates(row_, groups_, kMostCandidates, collected, work_);
    sum = bound_sum(rough, know_candidates(), row_.chunks());
    const Sizes sizes = bound_size(sum);
    return sizes.most != 0 ? try_candidates(sizes, sum) : std::nullopt;
  }

  std::optional<size_t> try_candidates(const Sizes& sizes, const Bounds& sum) {
    if (kept_ != nullptr && sizes.least != sizes.most) {
      return std::nullopt;
    }
    const std::optional<size_t> rank = draw_between(sizes, sum);
    if (!rank.has_value()) {
      return std::nullopt;
    }
    write_candidates(sizes.least);
    return candidates_.ids[*rank];
  }

  /// A nucleus beyond the candidates, where few logits are: they are gathered and weighed, so that
  /// only what is below them is between bounds. Draws where that is enough.
  std::optional<size_t> try_rough_nucleus(const RoughSum& rough, const Beyond& beyond,
                                          const Known& known_beyond, const Bounds& guess) {
    if (kept_ != nullptr || arguments_.uses_min_p()) {
      return std::nullopt;
    }
    beyond_ = beyond;
    searcher_.emplace(row_, sum_.maximum, work_);
    const double middle = p_ * (guess.least + guess.most) / 2;
    const Bag* bag = searcher_->gather_few(lowest_of_nucleus(guess.least), beyond, middle);
    if (bag == nullptr) {
      return std::nullopt;
    }
    Known known = know_bag(*bag);
    known.weight += known_beyond.weight;
    known.rough += known_beyond.rough;
    const Bounds sum = bound_sum(rough, known, row_.chunks());
    const double least_target = p_ * sum.least;
    const double most_target = p_ * sum.most;
    if (beyond.weight >= least_target || known.weight * (1 - 1e-5) <= most_target) {
      return std::nullopt;
    }
    nucleus_ = cut(searcher_->find_among_gathered(most_target), sum_.maximum, most_target);
    // What the least nucleus lacks has no logit below this one's end.
    const double end = exponential_of(nucleus_.place.value);
    const double lacking = std::ceil((most_target - least_target) / end) + 1;
    const auto count = static_cast<double>(nucleus_.count());
    const auto least_count = static_cast<size_t>(lacking < count ? count - lacking : 0.0);
    const float* q = contiguous(noise_, nucleus_.count(), scratch_);
    // No rank beyond the candidates weighs more than the last of those.
    const std::optional<size_t> rank = draw_surely(
        q, least_count, nucleus_.count(), sum, end, arguments_, work_.noise_minima,
        [this](size_t rank) { return exponential_of(find_rank(rank).value); },
        [this](size_t rank) {
          const size_t last = candidates_.count - 1;
          return exponential_of(candidates_.values[rank < last ? rank : last]);
        });
    return rank.has_value() ? std::optional<size_t>(find_rank(*rank).id) : std::nullopt;
  }

  double exponential_of(float value) const {
    return exp_not_positive(static_cast<double>(value) - static_cast<double>(sum_.maximum));
  }

  /// All the logits below this together weigh less than the nucleus leaves of a sum.
  float lowest_of_nucleus(double sum) const {
    const double rest = (1.0 - p_) * sum / static_cast<double>(row_.vocab_size());
    return static_cast<float>(static_cast<double>(sum_.maximum) + std::log(rest) - 1e-3);
  }

  Known know_candidates() {
    const double weight =
        exp_differences(candidates_.values, candidates_.count, sum_.maximum, work_.exponentials);
    return {weight, sum_rough(candidates_.values, candidates_.count)};
  }

  Known know_bag(const Bag& bag) const {
    return {weigh_bag(bag, sum_.maximum), sum_rough(bag.values, bag.size)};
  }

  Sizes bound_size(const Bounds& sum) const {
    Sizes sizes{0, 0};
    double cumulated = 0;
    for (size_t n = 0; n < candidates_.count; ++n) {
      cumulated += work_.exponentials[n];
      if (sizes.least == 0 && cumulated > p_ * sum.least) {
        sizes.least = n + 1;
      }
      if (cumulated > p_ * sum.most) {
        sizes.most = n + 1;
        break;
      }
    }
    if (arguments_.uses_min_p()) {
      // With some room, since probabilities are rounded before they are compared.
      const auto staying = [this](double factor) {
        return arguments_.with_min_p_times(factor).count_staying(
            candidates_.count,
            [this](size_t rank) { return static_cast<float>(work_.exponentials[rank]); });
      };
      const size_t least = staying(1 + 1e-6);
      const size_t most = staying(1 - 1e-6);
      if (least < candidates_.count) {
        sizes.least = sizes.least != 0 && sizes.least < least ? sizes.least : least;
      }
      if (most < candidates_.count) {
        sizes.most = sizes.most != 0 && sizes.most < most ? sizes.most : most;
      }
    }
    return sizes;
  }

  /// The rank that every size and every sum between these draws; none where they differ.
  std::optional<size_t> draw_between(const Sizes& sizes, const Bounds& sum) {
    if (noise_.data == nullptr) {
      return 0;
    }
    const double inverse = (1 / sum.least + 1 / sum.most) / 2;
    const double spread = arguments_.is_second ? 0.0 : 1 / sum.least - inverse;
    noise_.need(sizes.most);
    double* scores = work_.second_scores;
    for (size_t rank = 0; rank < sizes.most; ++rank) {
      scores[rank] = arguments_.draw_weight(work_.exponentials[rank], inverse);
    }
    size_t best = 0;
    for (size_t rank = 0; rank < sizes.most; ++rank) {
      scores[rank] /= static_cast<double>(__builtin_fabsf(noise_[rank]) + eps_);
      best = scores[rank] > scores[best] ? rank : best;
    }
    // Also not where noise is 0 or NaN, whose scores are not ordinary numbers.
    bool is_certain = best < sizes.least && scores[best] < 0x1p120 && scores[best] > 0x1p-120;
    for (size_t rank = 0; rank < sizes.most; ++rank) {
      const double difference = work_.exponentials[rank] - work_.exponentials[best];
      is_certain &= rank == best || is_surely_less(scores[rank], scores[best], difference, spread);
    }
    return is_certain ? std::optional<size_t>(best) : std::nullopt;
  }

  size_t sample_with_sum() {
    candidates_ = first_of_total_order(row_, groups_, kFew, work_);
    const double target = p_ * sum_.sum;
    double found = 0;
    if (const size_t count = count_candidates(kFew, found); count != 0) {
      is_small_ = true;
      return sample_candidates(count);
    }
    const double each = work_.exponentials[candidates_.count - 1];
    const double most = found + each * static_cast<double>(kMostCandidates - candidates_.count);
    if (most <= target) {  // however the row goes on, kMostCandidates are not enough
      return sample_nucleus(target);
    }
    const Collected collected = collect_candidates(row_, groups_, kMostCandidates, work_);
    const Bag bag{collected.candidates.values, work_.weights, collected.candidates.count};
    const double collected_weight = weigh_bag(bag, sum_.maximum);
    if (bag.size >= kMostCandidates && collected_weight <= target * (1 - 1e-6)) {
      return sample_nucleus(target, {collected.bound, bag.size, collected_weight});
    }
    candidates_ = sort_candidates(row_, groups_, kMostCandidates, collected, work_);
    if (const size_t count = count_candidates(kMostCandidates, found); count != 0) {
      is_small_ = true;
      return sample_candidates(count);
    }
    return sample_nucleus(target);
  }

  /// The number of kept candidates if they hold all that is kept, else 0. `wanted` were asked for.
  /// `found` is the sum of their exponentials.
  size_t count_candidates(size_t wanted, double& found) {
    found =
        exp_differences(candidates_.values, candidates_.count, sum_.maximum, work_.exponentials);
    const size_t count = count_until_exceeding(work_.exponentials, candidates_.count, sum_.sum, p_);
    const size_t staying = arguments_.count_staying(candidates_.count, [this](size_t rank) {
      return static_cast<float>(work_.exponentials[rank] / sum_.sum);
    });
    // Where there are no others, even a nucleus that does not reach p is complete.
    const bool are_all = candidates_.count < wanted || staying < candidates_.count;
    return count == 0 ? (are_all ? staying : 0) : (count < staying ? count : staying);
  }

  void write_candidates(size_t count) {
    if (kept_ != nullptr) {
      fill(kept_, row_.vocab_size(), -kInfinity);
      for (size_t rank = 0; rank < count; ++rank) {
        kept_[candidates_.ids[rank]] = candidates_.values[rank];
      }
    }
  }

  size_t sample_candidates(size_t count) {
    write_candidates(count);
    if (noise_.data == nullptr) {
      return candidates_.ids[0];
    }
    double total = sum_.sum;
    if (!arguments_.is_second) {
      // The second softmax, of the probabilities.
      for (size_t rank = 0; rank < count; ++rank) {
        work_.scores[rank] = static_cast<float>(work_.exponentials[rank] / sum_.sum);
      }
      total = exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);
    }
    return candidates_.ids[draw(work_.exponentials, count, total, noise_, eps_, work_.scores)];
  }

  /// A large nucleus, whose end is beyond the candidates.
  size_t sample_nucleus(double target) {
    beyond_ = {candidates_.values[candidates_.count - 1], 0, 0.0};
    for (; candidates_.values[beyond_.count] > beyond_.value; ++beyond_.count) {
      beyond_.weight += work_.exponentials[beyond_.count];
    }
    return sample_nucleus(target, beyond_);
  }

  size_t sample_nucleus(double target, const Beyond& beyond) {
    beyond_ = beyond;
    searcher_.emplace(row_, sum_.maximum, work_);
    const Place end =
        searcher_->template find<Weight::kExponential>(lowest_of_nucleus(sum_.sum), beyond, target);
    is_small_ = searcher_->has_gathered_all_above();
    nucleus_ = cut(end, sum_.maximum, target);
    keep_staying();
    if (kept_ != nullptr) {
      write_kept(row_, nucleus_.place.value, nucleus_.equals, kept_);
    }
    return noise_.data == nullptr ? candidates_.ids[0] : draw_from_nucleus();
  }

  /// Leaves what min-p leaves of the nucleus.
  void keep_staying() {
    const double least = double{arguments_.min_p} * double{probability_of(sum_.maximum, sum_)};
    const auto stays = [&](float value) { return double{probability_of(value, sum_)} >= least; };
    if (!arguments_.uses_min_p() || stays(nucleus_.place.value)) {
      return;
    }
    // The largest value that does not stay, by bisection.
    int32_t low = ordinal_of(nucleus_.place.value);
    int32_t high = ordinal_of(sum_.maximum);
    while (int64_t{high} - low > 1) {
      const auto middle = static_cast<int32_t>(low + (int64_t{high} - low) / 2);
      (stays(value_of_ordinal(middle)) ? high : low) = middle;
    }
    const float bound = value_of_ordinal(low);
    nucleus_ = {{bound, hit_above(row_, groups_, bound, work_.hits), 0.0, 0}, 0};
  }

  /// A draw with the weights of the second softmax, exp(probability), or with the probabilities.
  size_t draw_from_nucleus() {
    const size_t count = nucleus_.count();
    const float* q = contiguous(noise_, count, scratch_);
    const double ratio = 1.0 / draw_weight(nucleus_.place.value);
    const Contenders contenders = find_contenders(q, count, eps_, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return draw_from_sorted(q, count);
    }
    if (contenders.count == 1) {
      return find_rank(contenders.ranks[0]).id;
    }
    const auto noise_of = [&](size_t rank) { return double{__builtin_fabsf(q[rank]) + eps_}; };
    // From the least noise on. No rank beyond the candidates weighs more than the last of those.
    const double most = draw_weight(candidates_.values[candidates_.count - 1]);
    size_t best = 0;
    double best_score = -1;
    for (size_t i = contenders.count; i-- > 0;) {
      const size_t rank = contenders.ranks[i];
      if (rank >= candidates_.count && most / noise_of(rank) < best_score) {
        continue;
      }
      const Ranked ranked = find_rank(rank);
      const double score = draw_weight(ranked.value) / noise_of(rank);
      if (score >= best_score) {
        best = ranked.id;
        best_score = score;
      }
    }
    return best;
  }

  /// A value's weight in the draw, but for a common factor; 1 for the largest value.
  double draw_weight(float value) const {
    if (arguments_.is_second) {
      return exponential_of(value);
    }
    return exp_not_positive(double{probability_of(value, sum_)} -
                            double{probability_of(sum_.maximum, sum_)});
  }

  Ranked find_rank(size_t rank) {
    if (rank < candidates_.count) {
      return {candidates_.ids[rank], candidates_.values[rank]};
    }
    Place place = nucleus_.place;
    if (rank < beyond_.count) {
      place = searcher_->template find<Weight::kOne>(beyond_.value, {sum_.maximum, 0, 0.0},
                                                     static_cast<double>(rank));
    } else if (rank < place.count_above) {
      place =
          searcher_->template find<Weight::kOne>(place.value, beyond_, static_cast<double>(rank));
    }
    return {find_equal(row_, place.value, rank - place.count_above), place.value};
  }

  /// For noise that leaves the draw open among many ranks: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, size_t count) {
    const float below = next_below(nucleus_.place.value);
    const auto [sorted, exponentials] = sort_above(row_, groups_, below, scratch_, work_);
    double total = sum_.sum;
    if (arguments_.is_second) {
      exp_differences(sorted.values, count, sum_.maximum, exponentials);
    } else {
      float* probabilities = sorted.values;
      for (size_t rank = 0; rank < count; ++rank) {
        probabilities[rank] = probability_of(sorted.values[rank], sum_);
      }
      total = exp_differences(probabilities, count, probabilities[0], exponentials);
    }
    return sorted.ids[draw(exponentials, count, total, {q, 1}, eps_, sorted.values)];
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  const double p_;  // what the sum of probabilities has to exceed
  const Noise noise_;
  const float eps_;
  float* const kept_;
  Scratch& scratch_;
  Workspace& work_;
  const Groups groups_;
  bool is_small_ = false;
  bool is_beyond_few_ = false;  // the nucleus may have more than kFew
  Known known_{};
  Bounds bounds_{};
  RowSum sum_{};
  Candidates candidates_{};
  Beyond beyond_{};
  std::optional<Searcher<Type>> searcher_;
  Nucleus nucleus_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
