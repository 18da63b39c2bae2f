// The draw of rows whose kept logits are not ranked: docs/seeds.md, "Lanes". First a segment of the
// vocabulary is drawn by the sums of its weights, then a place in it.
//
// Of most segments only the largest logit is looked at: noise alone leaves few of them a chance.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "cpu/draws/draw.h"
#include "cpu/draws/noise.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/row.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Who leads a race among segments, or among the places of one: by how much, and where.
struct Lead {
  size_t index = 0;
  double score = 0;  // with the lesser cut
  double most = 0;   // with the larger one
};

template <typename Type>
class SegmentedDraw {
 public:
  /// `groups` were scanned; the row's maximum is finite, and its logits are to be divided by the
  /// temperature. What is above `most` is left out: that is the maximum then.
  SegmentedDraw(const Row<Type>& row, const Groups& groups, float maximum, float temperature,
                const NoiseKey& key, Workspace& work, size_t first_segment = 0,
                float most = kInfinity)
      : row_(row),
        groups_(groups),
        maximum_(maximum),
        temperature_(temperature),
        most_(most),
        key_(key),
        noise_(work.segment_noise),
        scores_(work.segment_scores) {
    if (first_segment % 2 == 0) {
      fill_exponential(key, kSegment + first_segment, padded_segments(), noise_);
    } else {  // two lanes share a counter
      float pair[2];
      fill_exponential(key, kSegment + first_segment - 1, 2, pair);
      noise_[0] = pair[1];
      fill_exponential(key, kSegment + first_segment + 1, padded_segments() - 1, noise_ + 1);
    }
  }

  const Row<Type>& row() const { return row_; }
  const Groups& groups() const { return groups_; }
  Scale scale() const { return {maximum_, temperature_}; }

  size_t segments() const { return (row_.vocab_size() + kSegment - 1) / kSegment; }
  Line line(size_t index) const { return Type::load(row_.line(index)); }

  Floats divided(const Floats& logits) const {
    const Floats difference = logits - splat(maximum_);
    return temperature_ == 1.0F ? difference : difference / splat(temperature_);
  }

  /// Writes the largest logit of each segment.
  void find_largest(float* largest_of) const {
    const size_t blocks = kSegmentLines / groups_.lines;  // 0: two segments are of one block
    for (size_t segment = 0; segment < segments(); ++segment) {
      const float* maxima = groups_.maxima + segment * kSegmentLines / groups_.lines * kLine;
      Floats largest = larger(load_floats(maxima), load_floats(maxima + kLanes));
      for (size_t block = 1; block < blocks; ++block) {
        maxima += kLine;
        largest = larger(largest, larger(load_floats(maxima), load_floats(maxima + kLanes)));
      }
      largest_of[segment] = largest_lane(smaller(largest, splat(most_)));
    }
  }

  /// Fills `values` with a segment's logits, -inf where the cut does not keep one.
  void fill_kept(size_t segment, const Cut& cut, float* values) const {
    const size_t start = segment * kSegment;
    // Whether equals are kept is the same in a whole segment, but for one.
    const bool has_last = cut.last_id >= start && cut.last_id < start + kSegment;
    const bool keeps_equals = cut.last_id >= start;
    const Floats bounds = splat(keeps_equals ? cut.value : next_above(cut.value));
    for (size_t i = 0; i < kSegmentLines; ++i) {
      const Line line = this->line(segment * kSegmentLines + i);
      const auto kept = [&](const Floats& logits) {
        const Mask is_kept = is_at_least(logits, bounds) & is_at_least(splat(most_), logits);
        return select(is_kept, logits, splat(-kInfinity));
      };
      store(values + i * kLine, kept(line.first));
      store(values + i * kLine + kLanes, kept(line.second));
    }
    for (size_t i = has_last ? cut.last_id - start + 1 : kSegment; i < kSegment; ++i) {
      values[i] = values[i] == cut.value ? -kInfinity : values[i];
    }
  }

  /// The id that leads in a segment, by what the larger cut keeps; a score of 0 where the other
  /// does not keep it.
  Lead leading_place(size_t segment, const Cut& least, const Cut& most) const {
    double weights[kSegment];
    float noise[kSegment];
    weigh(segment, most, weights);
    fill_exponential(key_, 0, kSegment, noise);
    Lead lead;
    for (size_t i = 0; i < kSegment; ++i) {
      const double score = weights[i] / noise[i];
      if (score > lead.most) {
        lead.index = i;
        lead.most = score;
      }
    }
    lead.index += segment * kSegment;
    const float value = row_.value(lead.index);
    const bool is_kept =
        value > least.value || (value == least.value && lead.index <= least.last_id);
    lead.score = is_kept ? lead.most : 0;
    return lead;
  }

  /// The drawn id.
  size_t draw(const Cut& cut) { return *draw_between(cut, cut); }

  /// The id that is drawn whatever lies between what the two cuts keep; none where that matters.
  std::optional<size_t> draw_between(const Cut& least, const Cut& most) {
    const std::optional<Scored> winner = draw_segment(least, most);
    return winner.has_value() ? draw_place(winner->segment, least, most) : std::nullopt;
  }

  /// A segment, and its score with the cut that keeps least.
  struct Scored {
    size_t segment;
    double score;
  };

  /// The segment that is drawn with both cuts and any between them; none where it is not one.
  std::optional<Scored> draw_segment(const Cut& least, const Cut& most) {
    double weights[kSegment];
    bound_scores(most);
    const auto score_of = [&](size_t segment, const Cut& cut) {
      return weigh(segment, cut, weights) / noise_[segment];
    };
    auto [best, best_score] = tighten_bounds(
        most, [&](size_t segment) { return Scored{segment, score_of(segment, least)}; });
    double best_most = least == most ? best_score : score_of(best, most);
    double highest_other = 0;
    for (size_t segment = 0, first = best; segment < segments(); ++segment) {
      if (segment == first || scores_[segment] < best_score) {
        continue;
      }
      const double score = score_of(segment, least);
      const double score_with_most = least == most ? score : score_of(segment, most);
      const bool is_better = score > best_score || (score == best_score && segment < best);
      const double loser = is_better ? best_most : score_with_most;
      highest_other = loser > highest_other ? loser : highest_other;
      if (is_better) {
        best = segment;
        best_score = score;
        best_most = score_with_most;
      }
    }
    const bool is_certain = least == most || highest_other < best_score;
    return is_certain ? std::optional<Scored>({best, best_score}) : std::nullopt;
  }

 private:
  size_t padded_segments() const { return (segments() + kLanes - 1) / kLanes * kLanes; }

  /// Fills scores_ with what a segment's score cannot exceed: 0 where nothing of it is kept.
  void bound_scores(const Cut& most) {
    find_largest(scores_);
    const Floats factor = splat(static_cast<float>(kSegment * kBeyond));
    for (size_t segment = 0; segment < segments(); segment += kLanes) {
      const Floats weight = weigh_approximately(load_floats(scores_ + segment), most);
      store(scores_ + segment, weight * factor / load_floats(noise_ + segment));
    }
  }

  /// What a segment's weights do not exceed together.
  double bound_sum(size_t segment, const Cut& most) const {
    Floats sum{};
    for (size_t i = 0; i < kSegmentLines; ++i) {
      const Line line = Type::load(row_.line(segment * kSegmentLines + i));
      sum = sum + weigh_approximately(line.first, most);
      sum = sum + weigh_approximately(line.second, most);
    }
    return double{sum_lanes(sum)} * kBeyond;
  }

  Floats weigh_approximately(const Floats& logits, const Cut& most) const {
    const Mask is_kept = is_at_least(logits, splat(most.value)) & is_at_least(splat(most_), logits);
    return select(is_kept, approximate_exp(divided(logits)), Floats{});
  }

  /// Fills `weights` with a segment's, which are 0 where the cut does not keep a logit. Returns
  /// their sum, always added in the same order.
  double weigh(size_t segment, const Cut& cut, double* weights) const {
    float values[kSegment];
    fill_kept(segment, cut, values);
    if (temperature_ == 1.0F) {
      return exp_differences(values, kSegment, maximum_, weights);
    }
    for (size_t i = 0; i < kSegment; i += kLanes) {
      const Floats quotients = divided(load_floats(values + i));
      store(values + i, larger(quotients, splat(-kInfinity)));  // -inf / +inf is NaN
    }
    return exp_differences(values, kSegment, 0.0F, weights);
  }

  /// Bounds scores by all logits of their segments, as far as they may be the highest: then hardly
  /// more than one is within the bounds' error of it. Returns the highest of those that were looked
  /// up to find that out.
  template <typename ScoreOf>
  Scored tighten_bounds(const Cut& most, ScoreOf score_of) {
    constexpr double kRoundedUp = 1 + 0x1p-23;
    const size_t first = first_largest(scores_, segments());
    Scored highest = score_of(first);
    float highest_bound = static_cast<float>(highest.score);
    for (size_t segment = 0; segment < segments(); ++segment) {
      if (segment == first || scores_[segment] < highest.score) {
        continue;
      }
      const double bound = bound_sum(segment, most) / noise_[segment];
      scores_[segment] = static_cast<float>(bound * kRoundedUp);
      if (scores_[segment] > highest_bound) {
        highest_bound = scores_[segment];
        const Scored scored = score_of(segment);
        highest = scored.score > highest.score ? scored : highest;
      }
    }
    return highest;
  }

  /// The id that is drawn from a segment; none where not both cuts keep it.
  std::optional<size_t> draw_place(size_t segment, const Cut& least, const Cut& most) const {
    const Lead place = leading_place(segment, least, most);
    return place.score > 0 ? std::optional<size_t>(place.index) : std::nullopt;
  }

  // A weight or a sum of weights is less than this times what approximate_exp makes of it.
  static constexpr double kBeyond = 1.0 / kLeastRatio * (1 + 1e-5);

  const Row<Type>& row_;
  const Groups& groups_;
  const float maximum_;
  const float temperature_;
  const float most_;
  const NoiseKey key_;
  float* const noise_;   // of segments
  float* const scores_;  // bounds
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
