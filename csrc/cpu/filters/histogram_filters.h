// Top-k, and top-p alone, where the candidates are many: logits of 16 bits are counted, not sorted.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/contenders.h"
#include "cpu/draws/draw.h"
#include "cpu/draws/segments.h"
#include "cpu/filters/histogram.h"
#include "cpu/filters/kept_list.h"
#include "cpu/filters/sum_bounds.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What min-p, which does not keep the best one alone, leaves, by the weights.
inline Prefix staying_of(const Bins& bins, const Prefix& first, const RowArguments& arguments) {
  const size_t size =
      arguments.count_staying(first.bin + 1, [&](size_t bin) { return bins.weights[bin]; });
  return size <= first.bin ? whole_prefix(bins, size) : first;
}

/// The lowest rank with the largest score, the weights being exponential / total; `scores` has room
/// for them, up to whole lines.
inline size_t draw_from_all(const Bins& bins, double total, const float* q, float eps,
                            float* scores) {
  size_t rank = 0;
  for (size_t bin = 0; bin < bins.size; ++bin) {
    const auto weight = static_cast<float>(bins.exponentials[bin] / total);
    for (const size_t end = rank + bins.counts[bin]; rank < end; ++rank) {
      scores[rank] = weight;
    }
  }
  for (size_t i = 0; i < rank; ++i) {
    scores[i] = score_of(scores[i], q[i], eps);
  }
  return first_largest(scores, rank);
}

template <typename Type>
class HistogramFilters {
  using Table = typename Histogram<Type>::Table;

 public:
  HistogramFilters(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch,
                   Workspace& work)
      : row_(row),
        arguments_(arguments),
        scratch_(scratch),
        work_(work),
        histogram_(
            *reinterpret_cast<Table*>(scratch.reserve_zeros(Scratch::kHistogram, sizeof(Table)))),
        bins_{work.bin_values, work.bin_counts, work.bin_exponentials, work.bin_masses,
              work.bin_weights} {}

  /// Top-k. k is more than a few, and at most kMaxTopK.
  size_t sample_top_k(size_t k, bool use_p) {
    size_t count = count_first(k);
    if (count == 0) {
      return select_nothing();
    }
    weigh();
    double total = sum_exponentials(bins_);
    if (use_p || arguments_.uses_min_p()) {
      set_probabilities(bins_, total);
      count =
          keep(use_p ? nucleus_of(bins_, arguments_.target()) : whole_prefix(bins_, bins_.size));
    }
    write_kept();
    if (arguments_.list != nullptr) {
      list_kept(row_, {1, nullptr}, cut_of(count), {bins_.values[0], arguments_.temperature},
                *arguments_.list, work_);
    }
    if (!arguments_.is_drawn()) {
      return id_of(0);
    }
    total = arguments_.rules.softmaxes_again ? sum_exponentials(bins_) : total;
    return id_of(draw(total, noise_of(count)));
  }

  /// Top-p alone, whatever the row. For a draw by segments, groups were scanned.
  size_t sample_top_p(const Groups& groups, History& history) {
    histogram_.add(row_);
    histogram_.take(work_.bin_patterns, bins_);
    if (bins_.size == 0) {
      return select_nothing();
    }
    weigh();
    const double sum = sum_exponentials(bins_);
    set_probabilities(bins_, sum);
    const Prefix nucleus = nucleus_of(bins_, arguments_.target());
    remember(nucleus, std::log(sum) + double{bins_.values[0]}, history);
    const size_t count = keep(nucleus);
    write_kept();
    if (!arguments_.is_drawn()) {
      return id_of(0);
    }
    if (arguments_.segments.has_value()) {
      return draw_listed(segmented_draw(groups, bins_.values[0]), cut_of(count, groups), arguments_,
                         work_);
    }
    const float* q = noise_of(count);
    if (count > kMostCandidates) {
      if (const std::optional<size_t> rank = draw_contender(q, count)) {
        return id_of(*rank);
      }
    }
    if (!arguments_.rules.softmaxes_again) {
      return id_of(draw(sum, q));
    }
    for (size_t bin = 0; bin < bins_.size; ++bin) {
      bins_.exponentials[bin] = second_weight(bin);
    }
    return id_of(draw(sum_exponentials(bins_), q));
  }

  /// Below the likely end of the row's nucleus, if it is like that of the row before.
  static float lowest_of_nucleus(const ApproximateSum& approximate, const History& history) {
    constexpr double kSlack = 0.25;
    return static_cast<float>(std::log(approximate.sum) - history.depth - kSlack);
  }

  /// Branch B, where the nucleus is above `low`, that is not much of the row, and bounds of the sum
  /// decide the draw; else none.
  std::optional<size_t> try_top_p(const ApproximateSum& approximate, const Groups& groups,
                                  float low, History& history) {
    const size_t found = hit_above(row_, groups, low, work_.hits);
    if (found == 0 || (found > row_.vocab_size() / kFewerThan && found > kMostSorted)) {
      return std::nullopt;
    }
    histogram_.add(row_, work_.hits);
    histogram_.take(work_.bin_patterns, bins_);
    const float maximum = bins_.values[0];
    weigh();
    const double known = sum_exponentials(bins_);
    const SumBounds sum =
        bound_sum({maximum, approximate.sum}, {known, sum_approximately(bins_)}, row_.chunks());
    const auto exponential_of = [this](size_t bin) { return bins_.exponentials[bin]; };
    const auto end_by = [&](double total) {
      return prefix_exceeding(bins_, arguments_.target() * total, exponential_of);
    };
    std::optional<Prefix> least = end_by(sum.least);
    std::optional<Prefix> most = end_by(sum.most);
    if (!most.has_value()) {
      return std::nullopt;
    }
    remember(*most, std::log(approximate.sum), history);
    if (arguments_.uses_min_p()) {
      // With some room, since probabilities are rounded before they are compared.
      for (size_t bin = 0; bin < bins_.size; ++bin) {
        bins_.weights[bin] = static_cast<float>(exponential_of(bin));
      }
      least = staying_of(bins_, *least, arguments_.with_min_p_times(1 + kUnsure));
      most = staying_of(bins_, *most, arguments_.with_min_p_times(1 - kUnsure));
    }
    if (arguments_.wants_kept() && least->ranks != most->ranks) {
      return std::nullopt;
    }
    bins_.keep(*most);
    std::optional<size_t> rank = 0;
    if (arguments_.is_drawn()) {
      const auto exponential_of_rank = [&](size_t rank) {
        return exponential_of(prefix_to(bins_, rank).bin);
      };
      rank = draw_surely(noise_of(most->ranks), least->ranks, most->ranks, sum,
                         exponential_of(most->bin), arguments_, work_.noise_minima,
                         exponential_of_rank, [&](size_t rank, double exponential) {
                           return exponential_of_rank(rank) <= exponential;
                         });
    }
    if (!rank.has_value()) {
      return std::nullopt;
    }
    write_kept();
    return id_of(*rank);
  }

 private:
  /// The part of a row up to which counting some of it is better than counting all; so are few.
  static constexpr size_t kFewerThan = 4;

  /// Where the guess for top-k has that many times k, they are mostly ties, which need not be
  /// counted.
  static constexpr size_t kMostTies = 8;

  void remember(const Prefix& nucleus, double log_sum, History& history) const {
    const size_t many = row_.vocab_size() / (2 * kFewerThan);
    history.depth = log_sum - double{bins_.values[nucleus.bin]};
    history.remember(nucleus.ranks <= kMostCandidates ? History::kFew
                     : nucleus.ranks <= many          ? History::kSumBounds
                                                      : History::kExactSum);
  }

  /// Keeps what min-p leaves of the first ranks. Returns their number.
  size_t keep(const Prefix& first) {
    const Prefix kept = arguments_.uses_min_p() ? staying_of(bins_, first, arguments_) : first;
    bins_.keep(kept);
    return kept.ranks;
  }

  size_t select_nothing() {
    fill(arguments_.kept, -kInfinity);
    return 0;
  }

  const float* noise_of(size_t count) { return contiguous(*arguments_.noise, count, scratch_); }

  /// The weight of a bin's ranks in the second softmax, of the probabilities in bins_.weights, but
  /// for its sum.
  double second_weight(size_t bin) const {
    return exp_not_positive(double{bins_.weights[bin]} - double{bins_.weights[0]});
  }

  /// The weight of a bin's ranks in the draw from a nucleus, but for a common factor.
  double draw_weight(size_t bin) const {
    return arguments_.rules.softmaxes_again ? second_weight(bin) : bins_.exponentials[bin];
  }

  /// The rank that is drawn from a large nucleus, where noise alone excludes most; none where it
  /// does not.
  std::optional<size_t> draw_contender(const float* q, size_t count) const {
    const double ratio = 1.0 / draw_weight(bins_.size - 1);
    const Contenders contenders =
        find_contenders(q, count, arguments_.eps, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return std::nullopt;
    }
    size_t best = contenders.ranks[0];
    double best_score = -1;
    for (size_t i = 0; i < contenders.count; ++i) {
      const size_t rank = contenders.ranks[i];
      const double score = draw_weight(prefix_to(bins_, rank).bin) /
                           double{__builtin_fabsf(q[rank]) + arguments_.eps};
      if (score > best_score) {
        best = rank;
        best_score = score;
      }
    }
    return best;
  }

  size_t draw(double total, const float* q) const {
    return draw_from_all(bins_, total, q, arguments_.eps, work_.values);
  }

  /// Makes bins of the first k of the total order, or of fewer where the row has fewer above -inf.
  /// Returns their number.
  size_t count_first(size_t k) {
    const Groups no_groups{1, nullptr};
    float bound = -kInfinity;
    size_t count = 0;
    if (const std::optional<float> guess = guess_bound(row_, k, work_)) {
      count = hit_first(next_below(*guess));
      if (count > kMostTies * k) {
        // Where those above it are less than k, all the others are ties at the guess.
        return take_first(k, hit_above(row_, no_groups, *guess, work_.hits), *guess);
      }
    }
    if (count < k) {
      const Groups groups = groups_for(k, row_.vocab_size(), work_);
      scan_first(row_, groups, arguments_);
      bound = find_bound(row_, groups, k, work_);
      count = hit_above(row_, groups, bound, work_.hits);
    }
    return take_first(k, count, bound);
  }

  /// Finds the logits above `bound` in the pass that is the first to read the row.
  size_t hit_first(float bound) {
    const Groups no_groups{1, nullptr};
    if (arguments_.status.empty()) {
      return hit_above(row_, no_groups, bound, work_.hits);
    }
    HalfStatus<Type> seen;
    const size_t count = hit_above(row_, no_groups, bound, work_.hits, seen);
    arguments_.status.front() = seen.status();
    return count;
  }

  /// Makes bins of the hits, `count` logits above `bound`, and of ties at it where those are less
  /// than k. Returns the number of ranks.
  size_t take_first(size_t k, size_t count, float bound) {
    histogram_.add(row_, work_.hits);
    histogram_.take(work_.bin_patterns, bins_);
    if (count < k && bound > -kInfinity) {
      bins_.append(bound, k - count);  // ties, which follow everything above the bound
      count = k;
    } else if (count > k) {
      bins_.keep(prefix_to(bins_, k - 1));
      count = k;
    }
    return count;
  }

  void weigh() {
    const float* values = bins_.values;
    float maximum = values[0];
    if (arguments_.temperature != 1.0F) {
      maximum = divide(values, bins_.size, maximum, arguments_.temperature, work_.values);
      values = work_.values;
    }
    exp_differences(values, bins_.size, maximum, bins_.exponentials);
  }

  SegmentedDraw<Type> segmented_draw(const Groups& groups, float maximum) const {
    return {row_, groups, maximum, 1.0F, *arguments_.segments, work_};
  }

  /// What the first ranks are of the row.
  Cut cut_of(size_t count, const Groups& groups = {1, nullptr}) const {
    return {bins_.values[prefix_to(bins_, count - 1).bin], id_of(count - 1, groups)};
  }

  /// The id of a rank.
  size_t id_of(size_t rank, const Groups& groups = {1, nullptr}) const {
    const Prefix first = prefix_to(bins_, rank);
    return find_equal(row_, bins_.values[first.bin], first.of_bin - 1, groups);
  }

  void write_kept() const {
    if (arguments_.wants_kept()) {
      const size_t last = bins_.size - 1;
      ASCEND_SAMPLE_TARGET::write_kept(row_, bins_.values[last], bins_.counts[last],
                                       arguments_.kept.data());
    }
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  Scratch& scratch_;
  Workspace& work_;
  Histogram<Type> histogram_;
  Bins bins_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
