// Branches A and B where their candidates are many: logits of 16 bits are counted, not sorted.
#pragma once

#include "rough.h"
#include "tally.h"
#include "top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class Counted {
 public:
  Counted(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        scratch_(scratch),
        work_(work),
        tally_(reinterpret_cast<uint32_t*>(scratch.reserve_zeros(
            Scratch::kTally, Tally<Type>::kPatterns * sizeof(uint32_t)))),
        runs_{work.run_values, work.run_counts, work.run_exponentials, work.run_masses,
              work.run_weights} {}

  /// Branch A. k is more than a few, and at most kMaxTopK.
  size_t sample_top_k(size_t k, bool use_p) {
    count_first(k);
    if (runs_.size == 0) {
      return select_nothing();
    }
    weigh();
    if (use_p) {
      runs_.truncate(count_until_exceeding(runs_, sum_exponentials(runs_), arguments_.p));
    }
    write_kept();
    if (!is_drawn()) {
      return id_of(0);
    }
    const float* q = contiguous(arguments_.noise, runs_.ranks(), scratch_);
    return id_of(draw_from_all(runs_, q, arguments_.eps, work_.scores));
  }

  /// Branch B, whatever the row.
  size_t sample_top_p(History& history) {
    tally_.add(row_);
    tally_.take(work_.run_patterns, runs_);
    if (runs_.size == 0) {
      return select_nothing();
    }
    const float maximum = runs_.values[0];
    if (maximum == kInfinity) {
      runs_.size = 1;  // shares the whole mass
    }
    weigh();
    const double sum = sum_exponentials(runs_);
    const size_t count = count_until_exceeding(runs_, sum, arguments_.p);
    runs_.truncate(count);
    remember(count, std::log(sum) + static_cast<double>(maximum), history);
    write_kept();
    if (!is_drawn()) {
      return id_of(0);
    }
    // The second softmax, of the probabilities, which are in runs_.weights.
    exp_differences(runs_.weights, runs_.size, runs_.weights[0], runs_.exponentials);
    const float* q = contiguous(arguments_.noise, count, scratch_);
    return id_of(count <= kMostCandidates
                     ? draw_from_all(runs_, q, arguments_.eps, work_.scores)
                     : draw_from_many(runs_, q, count, arguments_.eps, work_.noise_minima,
                                      work_.values));
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
    if (found == 0 || found > row_.vocab_size() / kFewerThan) {
      return std::nullopt;
    }
    tally_.add(row_, work_.hits, found);
    tally_.take(work_.run_patterns, runs_);
    weigh();
    const Bounds sum =
        bound_sum(rough, {sum_exponentials(runs_), sum_rough(runs_)}, row_.chunks());
    const size_t least = count_until_above(runs_, static_cast<double>(arguments_.p) * sum.least);
    const size_t most = count_until_above(runs_, static_cast<double>(arguments_.p) * sum.most);
    if (most == 0 || (arguments_.kept != nullptr && least != most)) {
      return std::nullopt;
    }
    runs_.truncate(most);
    remember(most, std::log(rough.sum), history);
    std::optional<size_t> rank = 0;
    if (is_drawn()) {
      const float* q = contiguous(arguments_.noise, most, scratch_);
      rank = draw_surely(
          q, static_cast<double>(least), most, sum, runs_.exponentials[runs_.size - 1],
          arguments_.eps, work_.noise_minima,
          [this](size_t rank) { return runs_.exponentials[locate(runs_, rank).run]; });
    }
    if (!rank.has_value()) {
      return std::nullopt;
    }
    write_kept();
    return id_of(*rank);
  }

 private:
  /// The part of a row up to which counting some of it is better than counting all.
  static constexpr size_t kFewerThan = 4;

  void remember(size_t count, double log_sum, History& history) const {
    history.depth = log_sum - static_cast<double>(runs_.values[runs_.size - 1]);
    history.first_try = count <= kMostCandidates                          ? History::kFew
                        : count <= row_.vocab_size() / (2 * kFewerThan) ? History::kRoughSum
                                                                          : History::kExactSum;
  }

  bool is_drawn() const { return arguments_.noise.data != nullptr; }

  size_t select_nothing() {
    if (arguments_.kept != nullptr) {
      fill(arguments_.kept, row_.vocab_size(), -kInfinity);
    }
    return 0;
  }

  /// Runs of the first k of the total order, or of fewer where the row has fewer above -inf.
  void count_first(size_t k) {
    const Groups no_groups{1, nullptr};
    float bound = -kInfinity;
    size_t count = 0;
    if (const std::optional<float> guess = guess_bound(row_, k, work_)) {
      count = hit_above(row_, no_groups, *guess, work_.hits);
    }
    if (count < k) {
      const Groups groups = groups_for(k, row_.vocab_size(), work_);
      scan_maxima(row_, groups);
      bound = find_bound(row_, groups, k, work_);
      count = hit_above(row_, groups, bound, work_.hits);
    }
    tally_.add(row_, work_.hits, count);
    tally_.take(work_.run_patterns, runs_);
    if (count < k && bound > -kInfinity) {
      runs_.append(bound, k - count);  // ties, which follow everything above the bound
    } else if (count > k) {
      runs_.truncate(k);
    }
  }

  void weigh() {
    exp_differences(runs_.values, runs_.size, runs_.values[0], runs_.exponentials);
  }

  /// The id of a rank.
  size_t id_of(size_t rank) const {
    const Located located = locate(runs_, rank);
    return find_equal(row_, runs_.values[located.run], located.equal);
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
