// Top-p alone, and perhaps min-p: branch B of docs/semantics.md.
#pragma once

#include <algorithm>
#include <optional>

#include "cpu/filters/kept_list.h"
#include "cpu/filters/quantile.h"
#include "cpu/filters/rank_draw.h"
#include "cpu/filters/top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is kept by the exact sum of the row: where bounds of the sum leave more than one end or
/// draw, and where the nucleus is large.
template <typename Type>
class TopP {
 public:
  /// `groups`, which are groups_for(kMostCandidates, ...), and the sum were scanned; the maximum is
  /// finite.
  TopP(const Row<Type>& row, const Groups& groups, const RowSum& sum, const RowArguments& arguments,
       const Report& report, Workspace& work)
      : row_(row),
        groups_(groups),
        sum_(sum),
        arguments_(arguments),
        report_(report),
        work_(work) {}

  /// The drawn id, and what is kept.
  size_t sample() {
    for (const size_t wanted : {kFewSorted, size_t{256}, kMostCandidates}) {
      candidates_ = first_of_total_order(row_, groups_, wanted, work_);
      if (const size_t count = count_kept(wanted)) {
        return sample_candidates(count);
      }
      if (is_large()) {
        break;
      }
    }
    return sample_large();
  }

 private:
  /// Whether kMostCandidates are not enough, however the row goes on.
  bool is_large() const {
    const double last = work_.exponentials[candidates_.count - 1];
    return !arguments_.uses_min_p() &&
           sum(work_.exponentials, candidates_.count) +
                   last * static_cast<double>(kMostCandidates - candidates_.count) <=
               arguments_.target() * sum_.sum;
  }

  /// The number of kept candidates if they hold all that is kept, else 0. `wanted` were asked for.
  size_t count_kept(size_t wanted) const {
    exp_differences(candidates_.values, candidates_.count, sum_.maximum, work_.exponentials);
    const size_t count =
        count_until_exceeding(work_.exponentials, candidates_.count, sum_.sum, arguments_.target());
    const size_t staying = arguments_.count_staying(candidates_.count, [this](size_t rank) {
      return static_cast<float>(work_.exponentials[rank] / sum_.sum);
    });
    // Where there are no others, even a nucleus that does not reach p is complete.
    const bool are_all = candidates_.count < wanted || staying < candidates_.count;
    return count == 0 ? (are_all ? staying : 0) : std::min(count, staying);
  }

  size_t draw_segmented(const Kept& kept) const {
    const Scale scale{sum_.maximum, 1.0F};  // the row is divided
    return *draw_kept(row_, groups_, scale, {kept}, arguments_.draw.key(), report_, work_);
  }

  size_t sample_candidates(size_t count) const {
    work_.history.note_large(false);
    write_candidates(candidates_, count, report_.kept);
    if (arguments_.draw.is_by_segments()) {
      return draw_segmented(
          {.value = candidates_.values[count - 1], .last_id = candidates_.ids[count - 1]});
    }
    if (!arguments_.is_drawn()) {
      return candidates_.ids[0];
    }
    double total = sum_.sum;
    if (arguments_.rules.softmaxes_again) {
      // The second softmax, of the probabilities.
      for (size_t rank = 0; rank < count; ++rank) {
        work_.scores[rank] = static_cast<float>(work_.exponentials[rank] / sum_.sum);
      }
      total = exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);
    }
    return candidates_.ids[draw(work_.exponentials, count, total, arguments_.draw.noise(),
                                arguments_.eps, work_.scores)];
  }

  /// What is above the last candidate's value: of few large values, no sample of the row tells.
  KnownPrefix prefix_of_candidates() const {
    KnownPrefix prefix{candidates_.values[candidates_.count - 1], 0, 0.0};
    for (; candidates_.values[prefix.count] > prefix.value; ++prefix.count) {
      prefix.weight += work_.exponentials[prefix.count];
    }
    return prefix;
  }

  /// Of more than the candidates.
  size_t sample_large() {
    QuantileSearch<Type> search(row_, sum_.maximum, work_.values, work_);
    const double target = arguments_.target() * sum_.sum;
    Quantile end = search.template find<Weight::kExponential>(kLowest, prefix_of_candidates(),
                                                              target, sum_.sum);
    size_t count = count_until_exceeding<Weight::kExponential>(end, sum_.maximum, target);
    const double least = double{arguments_.min_p} * double{probability_of(sum_.maximum, sum_)};
    const auto stays = [&](float value) { return double{probability_of(value, sum_)} >= least; };
    if (arguments_.uses_min_p() && !stays(end.value)) {
      const float bound = last_before(end.value, sum_.maximum, stays);
      count = hit_above(row_, groups_, bound, work_.hits);
      end = {.value = next_above(bound), .count_above = count};
    }
    work_.history.note_large(count > kMostGathered);
    if (report_.needs_end() || arguments_.draw.is_by_segments()) {
      const Kept kept =
          keep_equals(row_, end.value, count - end.count_above, end.count_equal, groups_);
      if (report_.wants_kept()) {
        write_kept(row_, kept, report_.kept.data());
      }
      if (arguments_.draw.is_by_segments()) {
        return draw_segmented(kept);
      }
    }
    return arguments_.is_drawn() ? draw_ranked(search, end.value, count) : candidates_.ids[0];
  }

  /// Of so many, down to a value.
  size_t draw_ranked(QuantileSearch<Type>& search, float least, size_t count) const {
    const float* q = contiguous(arguments_.draw.noise(), count, work_);
    const KnownPrefix nothing{sum_.maximum, 0, 0.0};
    const auto quantile_of = [&](size_t rank) {
      return search.template find<Weight::kOne>(least, nothing, static_cast<double>(rank),
                                                static_cast<double>(count));
    };
    const auto count_above = [&](float value) {
      return hit_above(row_, groups_, value, work_.hits);
    };
    const auto drawn = draw_by_rank(q, {count, count, least, bound_sum(sum_), sum_.maximum},
                                    quantile_of, count_above, arguments_, work_);
    return drawn.has_value()
               ? find_equal(row_, drawn->at.value, drawn->rank - drawn->at.count_above, groups_)
               : draw_from_sorted(q, least, count);
  }

  /// For noise that leaves the draw open: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, float end, size_t count) const {
    const Candidates sorted = sort_above(row_, groups_, next_below(end), work_);
    double* const exponentials = work_.row_exponentials.reserve(count);
    double total = sum_.sum;
    if (arguments_.rules.softmaxes_again) {
      float* probabilities = sorted.values;
      for (size_t rank = 0; rank < count; ++rank) {
        probabilities[rank] = probability_of(sorted.values[rank], sum_);
      }
      total = exp_differences(probabilities, count, probabilities[0], exponentials);
    } else {
      for (size_t rank = 0; rank < count; ++rank) {
        exponentials[rank] = exp_not_positive(double{sorted.values[rank]} - double{sum_.maximum});
      }
    }
    return sorted.ids[draw(exponentials, count, total, {q, 1}, arguments_.eps, sorted.values)];
  }

  const Row<Type>& row_;
  const Groups& groups_;
  const RowSum& sum_;
  const RowArguments& arguments_;
  const Report& report_;
  Workspace& work_;
  Candidates candidates_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
