// Top-k where the candidates are many: logits of 16 bits are counted, not sorted.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/draw.h"
#include "cpu/filters/histogram.h"
#include "cpu/filters/kept_list.h"
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

 private:
  /// Where the guess for top-k has that many times k, they are mostly ties, which need not be
  /// counted.
  static constexpr size_t kMostTies = 8;

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

  /// What the first ranks are of the row.
  Cut cut_of(size_t count) const {
    return {bins_.values[prefix_to(bins_, count - 1).bin], id_of(count - 1)};
  }

  /// The id of a rank.
  size_t id_of(size_t rank) const {
    const Prefix first = prefix_to(bins_, rank);
    return find_equal(row_, bins_.values[first.bin], first.of_bin - 1);
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
