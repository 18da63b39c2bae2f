// Probabilities instead of logits, and the kept weights as a result: docs/semantics_v2.md. What is
// kept is sorted, and weighed in float64.
#pragma once

#include <cstring>
#include <optional>

#include "cpu/draws/race.h"
#include "cpu/filters/large_nucleus.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class ResultSampler {
 public:
  ResultSampler(const Row<Type>& row, const RowArguments& arguments, bool are_probabilities,
                const std::optional<SampleResult>& result, Scratch& scratch, Workspace& work)
      : row_(row),
        arguments_(arguments),
        result_(result),
        scratch_(scratch),
        work_(work),
        uses_k_(arguments.keeps_one() || arguments.uses_k(row.vocab_size())),
        most_(arguments.keeps_one() ? 1
              : uses_k_             ? static_cast<size_t>(arguments.k)
                                    : row.vocab_size()),
        keeps_best_(arguments.keeps_best()),
        floor_(are_probabilities ? 0.0F : -kInfinity),
        groups_(groups_for(uses_k_              ? most_
                           : arguments.uses_p() ? kMostCandidates
                                                : 1,
                           row.vocab_size(), work)),
        maximum_(scan_maxima(row, groups_)),
        are_weights_(are_probabilities && maximum_ < kInfinity) {}

  /// The drawn id. What is wanted besides is written.
  size_t sample() {
    if (!(maximum_ > floor_)) {
      return write_nothing();
    }
    if (uses_k_) {
      rank(most_);
      total_ = are_weights_ ? 1.0 : sum_;
    } else {
      total_ = are_weights_ ? 1.0 : sum_exactly(row_, maximum_, work_);
      if (keeps_best_) {
        rank(1);
      } else if (arguments_.uses_p()) {
        return are_weights_ ? sample_top_p<Weight::kValue>() : sample_top_p<Weight::kExponential>();
      } else {
        return arguments_.uses_min_p() ? sample_listed() : sample_all();
      }
    }
    return sample_ranked();
  }

 private:
  /// The weight of a value, which is not NaN.
  float weight_of(float value) const {
    if (are_weights_) {
      return value;
    }
    if (maximum_ == kInfinity) {  // entries of +inf share the whole mass
      return value == kInfinity ? static_cast<float>(1.0 / total_) : 0.0F;
    }
    return probability_of(value, {maximum_, total_});
  }

  /// Takes these, whose weights are exponentials / total_.
  void take(const Candidates& candidates, double* exponentials) {
    candidates_ = candidates;
    exponentials_ = exponentials;
    if (!are_weights_) {
      sum_ = exp_differences(candidates.values, candidates.count, maximum_, exponentials);
      return;
    }
    for (size_t i = 0; i < candidates.count; ++i) {
      exponentials[i] = double{candidates.values[i]};
    }
  }

  /// Takes the first of the total order, as far as they can be drawn.
  void rank(size_t count) {
    Candidates first = first_of_total_order(row_, groups_, count, work_);
    while (!(first.values[first.count - 1] > floor_)) {
      --first.count;
    }
    take(first, work_.exponentials);
  }

  /// The size of the nucleus; 0 where the candidates do not hold it.
  size_t count_nucleus() const {
    return count_until_exceeding(exponentials_, candidates_.count, total_, arguments_.target());
  }

  /// Top-p alone.
  template <Weight kWeight>
  size_t sample_top_p() {
    rank(kFewCandidates);
    if (candidates_.count < kFewCandidates || count_nucleus() != 0) {
      return sample_ranked();
    }
    if (maximum_ == kInfinity) {
      return sample_sorted(next_below(maximum_));
    }
    const Collected collected = collect_candidates(row_, groups_, kMostCandidates, work_);
    if (!(collected.bound > floor_)) {
      return sample_sorted(floor_);
    }
    const WeightedSet best{collected.candidates.values, work_.weights, collected.candidates.count};
    const KnownPrefix prefix{collected.bound, best.size, weigh_set<kWeight>(best, maximum_)};
    const double target = arguments_.target() * total_;
    if (prefix.weight > target * (1 - 1e-6)) {
      return sample_sorted(prefix.value);
    }
    if constexpr (kWeight == Weight::kValue) {
      const bool is_order_wanted = result_.has_value();
      if (!is_order_wanted && weigh_row<kWeight>(row_, maximum_) > target * (1 + 1e-5)) {
        return LargeNucleus<Type, kWeight>(row_, arguments_, groups_, candidates_, maximum_, prefix,
                                           best, scratch_, work_)
            .sample({maximum_, total_});
      }
    }
    return sample_sorted(likely_bound<kWeight>(prefix, target));
  }

  /// A value that is likely below the nucleus, and not far.
  template <Weight kWeight>
  float likely_bound(const KnownPrefix& prefix, double target) const {
    constexpr double kDeviations = 3.0;
    const Sample sample =
        take_sample<kWeight>(row_, maximum_, {work_.sample_values, work_.sample_weights});
    const WeightedSet rooms[2] = {{work_.room_values[0], work_.room_weights[0]},
                                  {work_.room_values[1], work_.room_weights[1]}};
    const Bracket bracket = narrow<kWeight, false>(
        sample, {next_above(floor_), prefix.value}, maximum_, target - prefix.weight, kDeviations,
        {work_.inside_values, work_.inside_weights}, rooms);
    return next_below(bracket.low);
  }

  /// Top-p alone, where everything above the bound likely holds the nucleus.
  size_t sample_sorted(float bound) {
    for (;; bound = floor_) {
      const SortedRow sorted = sort_above(row_, groups_, bound, scratch_, work_);
      take(sorted.candidates, sorted.room);
      if (count_nucleus() != 0 || bound == floor_) {
        return sample_ranked();
      }
    }
  }

  /// Samples the candidates in order, and what can never be drawn and follows them by ascending id.
  size_t sample_ranked() {
    size_t count = most_;
    if (keeps_best_) {
      count = 1;
    } else {
      if (arguments_.uses_p()) {
        const size_t n = count_nucleus();
        count = n == 0 ? count : n;
      }
      count = arguments_.count_staying(count, [this](size_t rank) {
        return rank < candidates_.count ? static_cast<float>(exponentials_[rank] / total_) : 0.0F;
      });
    }
    const size_t best = candidates_.ids[0];
    write(count);
    return arguments_.is_drawn() ? draw_kept() : best;
  }

  /// min-p below 1, and nothing else.
  size_t sample_listed() {
    const double least = double{arguments_.min_p} * double{weight_of(maximum_)};
    const float bound = last_before(floor_, maximum_,
                                    [&](float value) { return double{weight_of(value)} >= least; });
    hit_above(row_, groups_, bound, work_.hits);
    Candidates staying{work_.values, work_.ids};
    append_hits(row_, work_.hits, staying);
    take(staying, work_.bin_exponentials);
    write(staying.count);
    return arguments_.is_drawn() ? draw_kept() : find_equal(row_, maximum_, 0);
  }

  /// No filter.
  size_t sample_all() {
    const size_t count = row_.vocab_size();
    if (arguments_.wants_kept()) {
      copy_above(row_, floor_, arguments_.kept.data());
    }
    float* weights = result_.has_value() ? result_->weights : work_.weights;
    copy_above(row_, floor_, weights);
    for (size_t start = 0; !are_weights_ && start < count; start += kChunk) {
      const size_t size = count - start < kChunk ? count - start : kChunk;
      exp_differences(weights + start, size, maximum_, work_.exponentials);
      for (size_t i = 0; i < size; ++i) {
        weights[start + i] = static_cast<float>(work_.exponentials[i] / total_);
      }
    }
    for (size_t id = 0; result_.has_value() && id < count; ++id) {
      result_->ids[id] = static_cast<int64_t>(id);
    }
    return arguments_.is_drawn() ? draw_from_all(weights) : find_equal(row_, maximum_, 0);
  }

  size_t draw_from_all(const float* weights) {
    const size_t count = row_.vocab_size();
    const float* q = contiguous(*arguments_.noise, count, scratch_);
    float* scores = work_.values;
    for (size_t id = 0; id < count; ++id) {
      scores[id] = score_of(weights[id], q[id], arguments_.eps);
    }
    size_t best = first_largest(scores, count);
    if (!(scores[best] > 0.0F)) {  // what can never be drawn has 0 too
      for (size_t id = 0; id < count; ++id) {
        scores[id] = row_.value(id) > floor_ ? scores[id] : -kInfinity;
      }
      best = first_largest(scores, count);
    }
    return best;
  }

  /// The candidates' values make room for their scores.
  size_t draw_kept() {
    return candidates_.ids[draw(exponentials_, candidates_.count, total_, *arguments_.noise,
                                arguments_.eps, candidates_.values)];
  }

  /// Nothing can be drawn: all weights are 0.
  size_t write_nothing() {
    write(keeps_best_ ? 1 : most_);
    return 0;
  }

  /// Keeps the first candidates, and what can never be drawn where that makes up the number.
  void write(size_t count) {
    const size_t rest = count > candidates_.count ? count - candidates_.count : 0;
    candidates_.count = count - rest;
    write_candidates(candidates_, candidates_.count, arguments_.kept, floor_);
    if (result_.has_value()) {
      for (size_t i = 0; i < candidates_.count; ++i) {
        result_->weights[i] = static_cast<float>(exponentials_[i] / total_);
      }
      fill({result_->weights + candidates_.count, row_.vocab_size() - candidates_.count}, 0.0F);
    }
    if (result_.has_value()) {
      for (size_t i = 0; i < candidates_.count; ++i) {
        result_->ids[i] = int64_t{candidates_.ids[i]};
      }
      list_others(result_->ids + candidates_.count, rest);
      std::memset(result_->ids + count, 0, (row_.vocab_size() - count) * sizeof(int64_t));
    }
  }

  /// The first ids of what can never be drawn; there are as many.
  void list_others(int64_t* ids, size_t count) const {
    const typename Type::Above above(floor_);
    above.test([&](auto bits_of_pair) {
      for (size_t line = 0; count != 0; line += 2) {
        for (uint64_t bits = ~bits_of_pair(row_.line(line)); bits != 0 && count != 0;
             bits &= bits - 1, --count) {
          *ids++ = static_cast<int64_t>(line * kLine) + __builtin_ctzll(bits);
        }
      }
    });
  }

  const Row<Type>& row_;
  const RowArguments& arguments_;
  const std::optional<SampleResult>& result_;  // none: not wanted
  Scratch& scratch_;
  Workspace& work_;
  const bool uses_k_;      // or a p that leaves one candidate
  const size_t most_;      // that are candidates then
  const bool keeps_best_;  // and nothing else
  const float floor_;      // what is not above it can never be drawn: so is NaN
  const Groups groups_;
  const float maximum_;
  const bool are_weights_;  // the entries themselves
  double sum_ = 0;          // of the candidates' exponentials, but for entries that are weights
  double total_ = 0;
  Candidates candidates_{};
  double* exponentials_ = nullptr;
};

/// The drawn id. What a wanted output does not hold is filled in.
template <typename Type>
size_t sample_with_result(const Row<Type>& row, const RowArguments& arguments,
                          bool are_probabilities, const std::optional<SampleResult>& result,
                          Scratch& scratch, Workspace& work) {
  return ResultSampler<Type>(row, arguments, are_probabilities, result, scratch, work).sample();
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
