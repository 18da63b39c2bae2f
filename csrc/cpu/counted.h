// Top-k, and top-p alone, where the candidates are many: logits of 16 bits are counted, not sorted.
#pragma once

#include "rough.h"
#include "tally.h"
#include "temperature.h"
#include "top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class Counted {
  using Table = typename Tally<Type>::Table;

 public:
  Counted(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        scratch_(scratch),
        work_(work),
        tally_(*reinterpret_cast<Table*>(scratch.reserve_zeros(Scratch::kTally, sizeof(Table)))),
        runs_{work.run_values, work.run_counts, work.run_exponentials, work.run_masses,
              work.run_weights} {}

  /// Top-k. k is more than a few, and at most kMaxTopK.
  size_t sample_top_k(size_t k, bool use_p) {
    size_t count = count_first(k);
    if (count == 0) {
      return select_nothing();
    }
    weigh();
    double total = sum_exponentials(runs_);
    if (use_p || arguments_.uses_min_p()) {
      set_probabilities(runs_, total);
      count = keep(use_p ? nucleus_of(runs_, arguments_.target()) : all_of(runs_, runs_.size));
    }
    write_kept();
    if (!arguments_.is_drawn()) {
      return id_of(0);
    }
    total = arguments_.is_second ? total : sum_exponentials(runs_);
    return id_of(draw(total, noise_of(count)));
  }

  /// Top-p alone, whatever the row.
  size_t sample_top_p(History& history) {
    tally_.add(row_);
    tally_.take(work_.run_patterns, runs_);
    if (runs_.size == 0) {
      return select_nothing();
    }
    weigh();
    const double sum = sum_exponentials(runs_);
    set_probabilities(runs_, sum);
    const First nucleus = nucleus_of(runs_, arguments_.target());
    remember(nucleus, std::log(sum) + double{runs_.values[0]}, history);
    const size_t count = keep(nucleus);
    write_kept();
    if (!arguments_.is_drawn()) {
      return id_of(0);
    }
    const float* q = noise_of(count);
    if (count > kMostCandidates) {
      if (const std::optional<size_t> rank = draw_contender(q, count)) {
        return id_of(*rank);
      }
    }
    if (arguments_.is_second) {
      return id_of(draw(sum, q));
    }
    for (size_t run = 0; run < runs_.size; ++run) {
      runs_.exponentials[run] = second_weight(run);
    }
    return id_of(draw(sum_exponentials(runs_), q));
  }

  /// Below the likely end of the row's nucleus, if it is like that of the row before.
  static float lowest_of_nucleus(const RoughSum& rough, const History& history) {
    constexpr double kSlack = 0.25;
    return static_cast<float>(std::log(rough.sum) - history.depth - kSlack);
  }

  /// Branch B, where the nucleus is above `low`, that is not much of the row, and bounds of the sum
  /// decide the draw; else none.
  std::optional<size_t> try_top_p(const RoughSum& rough, const Groups& groups, float low,
                                  History& history) {
    const size_t found = hit_above(row_, groups, low, work_.hits);
    if (found == 0 || (found > row_.vocab_size() / kFewerThan && found > kMostSorted)) {
      return std::nullopt;
    }
    tally_.add(row_, work_.hits);
    tally_.take(work_.run_patterns, runs_);
    weigh();
    const Bounds sum = bound_sum(rough, {sum_exponentials(runs_), sum_rough(runs_)}, row_.chunks());
    const auto exponential_of = [this](size_t run) { return runs_.exponentials[run]; };
    const double p = arguments_.target();
    std::optional<First> least = first_exceeding(runs_, p * sum.least, exponential_of);
    std::optional<First> most = first_exceeding(runs_, p * sum.most, exponential_of);
    if (!most.has_value()) {
      return std::nullopt;
    }
    remember(*most, std::log(rough.sum), history);
    if (arguments_.uses_min_p()) {
      // With some room, since probabilities are rounded before they are compared.
      for (size_t run = 0; run < runs_.size; ++run) {
        runs_.weights[run] = static_cast<float>(exponential_of(run));
      }
      least = staying_of(runs_, *least, arguments_.with_min_p_times(1 + kUnsure));
      most = staying_of(runs_, *most, arguments_.with_min_p_times(1 - kUnsure));
    }
    if (arguments_.kept != nullptr && least->ranks != most->ranks) {
      return std::nullopt;
    }
    runs_.keep(*most);
    std::optional<size_t> rank = 0;
    if (arguments_.is_drawn()) {
      const auto exponential_of_rank = [&](size_t rank) {
        return exponential_of(first_to(runs_, rank).run);
      };
      rank = draw_surely(noise_of(most->ranks), least->ranks, most->ranks, sum,
                         exponential_of(most->run), arguments_, work_.noise_minima,
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

  void remember(const First& nucleus, double log_sum, History& history) const {
    const size_t many = row_.vocab_size() / (2 * kFewerThan);
    history.depth = log_sum - double{runs_.values[nucleus.run]};
    history.first_try = nucleus.ranks <= kMostCandidates ? History::kFew
                        : nucleus.ranks <= many          ? History::kRoughSum
                                                         : History::kExactSum;
  }

  /// Keeps what min-p leaves of the first ranks. Returns their number.
  size_t keep(const First& first) {
    const First kept = arguments_.uses_min_p() ? staying_of(runs_, first, arguments_) : first;
    runs_.keep(kept);
    return kept.ranks;
  }

  size_t select_nothing() {
    if (arguments_.kept != nullptr) {
      fill(arguments_.kept, row_.vocab_size(), -kInfinity);
    }
    return 0;
  }

  const float* noise_of(size_t count) { return contiguous(arguments_.noise, count, scratch_); }

  /// The weight of a run's ranks in the second softmax, of the probabilities in runs_.weights, but
  /// for its sum.
  double second_weight(size_t run) const {
    return exp_not_positive(double{runs_.weights[run]} - double{runs_.weights[0]});
  }

  /// The weight of a run's ranks in the draw from a nucleus, but for a common factor.
  double draw_weight(size_t run) const {
    return arguments_.is_second ? runs_.exponentials[run] : second_weight(run);
  }

  /// The rank that is drawn from a large nucleus, where noise alone excludes most; none where it
  /// does not.
  std::optional<size_t> draw_contender(const float* q, size_t count) const {
    const double ratio = 1.0 / draw_weight(runs_.size - 1);
    const Contenders contenders =
        find_contenders(q, count, arguments_.eps, ratio, work_.noise_minima);
    if (contenders.is_open) {
      return std::nullopt;
    }
    size_t best = contenders.ranks[0];
    double best_score = -1;
    for (size_t i = 0; i < contenders.count; ++i) {
      const size_t rank = contenders.ranks[i];
      const double score = draw_weight(first_to(runs_, rank).run) /
                           double{__builtin_fabsf(q[rank]) + arguments_.eps};
      if (score > best_score) {
        best = rank;
        best_score = score;
      }
    }
    return best;
  }

  size_t draw(double total, const float* q) const {
    return draw_from_all(runs_, total, q, arguments_.eps, work_.values);
  }

  /// Runs of the first k of the total order, or of fewer where the row has fewer above -inf.
  /// Returns their number.
  size_t count_first(size_t k) {
    const Groups no_groups{1, nullptr};
    float bound = -kInfinity;
    size_t count = 0;
    if (const std::optional<float> guess = guess_bound(row_, k, work_)) {
      count = hit_first(next_below(*guess));
      if (count > kMostTies * k) {
        count = hit_above(row_, no_groups, *guess, work_.hits);
        if (count < k) {  // all the others are ties at the guess
          return take_first(k, count, *guess);
        }
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
    if (arguments_.status == nullptr) {
      return hit_above(row_, no_groups, bound, work_.hits);
    }
    HalfCensus<Type> census;
    const size_t count = hit_above(row_, no_groups, bound, work_.hits, census);
    *arguments_.status = census.status();
    return count;
  }

  /// Makes runs of the hits, `count` logits above `bound`, and of ties at it where those are less
  /// than k. Returns the number of ranks.
  size_t take_first(size_t k, size_t count, float bound) {
    tally_.add(row_, work_.hits);
    tally_.take(work_.run_patterns, runs_);
    if (count < k && bound > -kInfinity) {
      runs_.append(bound, k - count);  // ties, which follow everything above the bound
      count = k;
    } else if (count > k) {
      runs_.keep(first_to(runs_, k - 1));
      count = k;
    }
    return count;
  }

  void weigh() {
    const float* values = runs_.values;
    float maximum = values[0];
    if (arguments_.temperature != 1.0F) {
      maximum = divide(values, runs_.size, maximum, arguments_.temperature, work_.values);
      values = work_.values;
    }
    exp_differences(values, runs_.size, maximum, runs_.exponentials);
  }

  /// The id of a rank.
  size_t id_of(size_t rank) const {
    const First first = first_to(runs_, rank);
    return find_equal(row_, runs_.values[first.run], first.of_run - 1);
  }

  void write_kept() const {
    if (arguments_.kept != nullptr) {
      const size_t last = runs_.size - 1;
      ASCEND_SAMPLE_TARGET::write_kept(row_, runs_.values[last], runs_.counts[last],
                                       arguments_.kept);
    }
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  Scratch& scratch_;
  Workspace& work_;
  Tally<Type> tally_;
  Runs runs_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
