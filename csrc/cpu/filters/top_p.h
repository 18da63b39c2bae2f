// Top-p alone: branch B of docs/semantics.md.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/filters/large_nucleus.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class TopP {
 public:
  TopP(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        p_(arguments.target()),
        scratch_(scratch),
        work_(work),
        groups_(groups_for(kMostCandidates, row.vocab_size(), work)) {}

  /// The drawn id; none for a row with +inf.
  std::optional<size_t> sample(History& history) {
    if (history.first_try != History::kExactSum && !arguments_.segments.has_value()) {
      if (const std::optional<size_t> selected = sample_with_bounds()) {
        return selected;
      }
      if (std::isinf(sum_.maximum)) {
        return sample_infinite();
      }
    }
    sum_ = scan_sum(row_, groups_, work_.chunk_sums);
    if (std::isinf(sum_.maximum)) {
      return sample_infinite();
    }
    const size_t selected = sample_with_sum();
    history.remember(is_small_ ? History::kFew : History::kExactSum);
    return selected;
  }

  /// The drawn id where bounds of the sum decide it; else none, and the maximum is known.
  std::optional<size_t> sample_with_bounds() {
    const ApproximateSum approximate = scan_approximate_sum(row_, groups_, arguments_);
    sum_.maximum = approximate.maximum;
    return is_within_range(approximate) ? try_approximate_sum(approximate) : std::nullopt;
  }

 private:
  /// Bounds of the nucleus' size; `most` is 0 where it may be beyond the candidates.
  struct Sizes {
    size_t least;
    size_t most;
  };

  /// Where the maximum is -inf: nothing has weight; none where it is +inf.
  std::optional<size_t> sample_infinite() {
    if (sum_.maximum == kInfinity) {
      return std::nullopt;
    }
    fill(arguments_.kept, -kInfinity);
    return 0;
  }

  /// Where a few candidates hold the nucleus, bounds of the sum decide most draws; none where they
  /// do not.
  std::optional<size_t> try_few(const ApproximateSum& approximate) {
    sum_.maximum = approximate.maximum;
    candidates_ = first_of_total_order(row_, groups_, kFewCandidates, work_);
    part_ = know_candidates();
    bounds_ = bound_sum(approximate, part_, row_.chunks());
    const Sizes sizes = bound_size(bounds_);
    exceeds_few_ = sizes.most == 0;
    return exceeds_few_ ? std::nullopt : try_candidates(sizes, bounds_);
  }

  std::optional<size_t> try_approximate_sum(const ApproximateSum& approximate) {
    const std::optional<size_t> selected = try_few(approximate);
    if (selected.has_value() || !exceeds_few_) {
      return selected;
    }
    const double each = work_.exponentials[candidates_.count - 1];
    if (!arguments_.uses_min_p() &&
        part_.weight + each * static_cast<double>(kMostCandidates) <= p_ * bounds_.least) {
      return std::nullopt;  // kMostCandidates are not enough either
    }
    const Collected collected = collect_candidates(row_, groups_, kMostCandidates, work_);
    const WeightedSet set{collected.candidates.values, work_.weights, collected.candidates.count};
    const PartialSum part = part_of(set, sum_.maximum);
    SumBounds sum = bound_sum(approximate, part, row_.chunks());
    const double last = exp_not_positive(double{collected.bound} - double{sum_.maximum});
    if (set.size >= kMostCandidates && part.weight < p_ * sum.least &&
        arguments_.stays_surely(last)) {
      return large_nucleus_beyond({collected.bound, set.size, part.weight}, set)
          .try_approximate_sum(approximate, part, sum);
    }
    candidates_ = sort_candidates(row_, groups_, kMostCandidates, collected, work_);
    sum = bound_sum(approximate, know_candidates(), row_.chunks());
    const Sizes sizes = bound_size(sum);
    return sizes.most != 0 ? try_candidates(sizes, sum) : std::nullopt;
  }

  std::optional<size_t> try_candidates(const Sizes& sizes, const SumBounds& sum) {
    if (arguments_.wants_kept() && sizes.least != sizes.most) {
      return std::nullopt;
    }
    const std::optional<size_t> rank = rank_between(sizes, sum);
    if (!rank.has_value()) {
      return std::nullopt;
    }
    write_candidates(candidates_, sizes.least, arguments_.kept);
    return candidates_.ids[*rank];
  }

  SegmentedDraw<Type> segmented_draw() const {
    return {row_, groups_, sum_.maximum, 1.0F, *arguments_.segments, work_};
  }

  /// What the first candidates are of the row.
  Cut cut_of(size_t count) const {
    return {candidates_.values[count - 1], candidates_.ids[count - 1]};
  }

  PartialSum know_candidates() {
    const double weight =
        exp_differences(candidates_.values, candidates_.count, sum_.maximum, work_.exponentials);
    return {weight, sum_approximately(candidates_.values, candidates_.count)};
  }

  Sizes bound_size(const SumBounds& sum) const {
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
      const size_t least = staying(1 + kUnsure);
      const size_t most = staying(1 - kUnsure);
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
  std::optional<size_t> rank_between(const Sizes& sizes, const SumBounds& sum) {
    if (!arguments_.is_drawn()) {
      return 0;
    }
    const Noise& noise = *arguments_.noise;
    const double inverse = (1 / sum.least + 1 / sum.most) / 2;
    const double spread = arguments_.rules.softmaxes_again ? 1 / sum.least - inverse : 0.0;
    noise.need(sizes.most);
    double* scores = work_.second_scores;
    for (size_t rank = 0; rank < sizes.most; ++rank) {
      scores[rank] = arguments_.draw_weight(work_.exponentials[rank], inverse);
    }
    size_t best = 0;
    for (size_t rank = 0; rank < sizes.most; ++rank) {
      scores[rank] /= static_cast<double>(__builtin_fabsf(noise[rank]) + arguments_.eps);
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
    candidates_ = first_of_total_order(row_, groups_, kFewCandidates, work_);
    const double target = p_ * sum_.sum;
    double found = 0;
    if (const size_t count = count_candidates(kFewCandidates, found); count != 0) {
      is_small_ = true;
      return sample_candidates(count);
    }
    const double each = work_.exponentials[candidates_.count - 1];
    const double most = found + each * static_cast<double>(kMostCandidates - candidates_.count);
    if (most <= target) {  // however the row goes on, kMostCandidates are not enough
      return sample_nucleus(prefix_above_smallest(), {work_.values, work_.weights});
    }
    const Collected collected = collect_candidates(row_, groups_, kMostCandidates, work_);
    const WeightedSet set{collected.candidates.values, work_.weights, collected.candidates.count};
    const double collected_weight = weigh_set(set, sum_.maximum);
    if (set.size >= kMostCandidates && collected_weight <= target * (1 - 1e-6)) {
      return sample_nucleus({collected.bound, set.size, collected_weight}, set);
    }
    candidates_ = sort_candidates(row_, groups_, kMostCandidates, collected, work_);
    if (const size_t count = count_candidates(kMostCandidates, found); count != 0) {
      is_small_ = true;
      return sample_candidates(count);
    }
    return sample_nucleus(prefix_above_smallest(), {work_.values, work_.weights});
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

  size_t sample_candidates(size_t count) {
    write_candidates(candidates_, count, arguments_.kept);
    if (!arguments_.is_drawn()) {
      return candidates_.ids[0];
    }
    if (arguments_.segments.has_value()) {
      return draw_listed(segmented_draw(), cut_of(count), arguments_, work_);
    }
    double total = sum_.sum;
    if (arguments_.rules.softmaxes_again) {
      // The second softmax, of the probabilities.
      for (size_t rank = 0; rank < count; ++rank) {
        work_.scores[rank] = static_cast<float>(work_.exponentials[rank] / sum_.sum);
      }
      total = exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);
    }
    return candidates_.ids[draw(work_.exponentials, count, total, *arguments_.noise, arguments_.eps,
                                work_.scores)];
  }

  /// What is above the last candidate's value.
  KnownPrefix prefix_above_smallest() const {
    KnownPrefix prefix{candidates_.values[candidates_.count - 1], 0, 0.0};
    for (; candidates_.values[prefix.count] > prefix.value; ++prefix.count) {
      prefix.weight += work_.exponentials[prefix.count];
    }
    return prefix;
  }

  LargeNucleus<Type> large_nucleus_beyond(const KnownPrefix& prefix, const WeightedSet& values) {
    return {row_, arguments_, groups_, candidates_, sum_.maximum, prefix, values, scratch_, work_};
  }

  size_t sample_nucleus(const KnownPrefix& prefix, const WeightedSet& values) {
    LargeNucleus<Type> nucleus = large_nucleus_beyond(prefix, values);
    const size_t selected = nucleus.sample(sum_);
    is_small_ = nucleus.is_small();
    return selected;
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  const double p_;  // what the sum of probabilities has to exceed
  Scratch& scratch_;
  Workspace& work_;
  const Groups groups_;
  bool is_small_ = false;
  bool exceeds_few_ = false;  // the nucleus may have more than kFewCandidates
  PartialSum part_{};
  SumBounds bounds_{};
  RowSum sum_{};
  Candidates candidates_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
