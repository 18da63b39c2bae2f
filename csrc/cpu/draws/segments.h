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
#include "cpu/rows/kept.h"
#include "cpu/rows/row.h"
#include "cpu/rows/temperature.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class SegmentedDraw {
 public:
  /// `groups` were scanned; the scale's maximum is that of what is kept, and finite.
  SegmentedDraw(const Row<Type>& row, const Groups& groups, const Scale& scale, const NoiseKey& key,
                Workspace& work, size_t first_segment = 0)
      : row_(row),
        groups_(groups),
        scale_(scale),
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

  /// The drawn id, if it is the same whatever between the bounds is kept.
  std::optional<size_t> draw(const KeptBounds& bounds) {
    const std::optional<Scored> winner = draw_segment(bounds);
    if (!winner.has_value()) {
      return std::nullopt;
    }
    const size_t id = leading_id(winner->segment, bounds.outer);
    return bounds.inner.has(row_.value(id), id) ? std::optional(id) : std::nullopt;
  }

  /// A segment, and its score by what is surely kept.
  struct Scored {
    size_t segment;
    double score;
  };

  /// The segment that is drawn, if it is the same whatever between the bounds is kept.
  std::optional<Scored> draw_segment(const KeptBounds& bounds) {
    const bool is_known = bounds.are_equal();
    double weights[kSegment];
    bound_scores(bounds.outer);
    const auto score_of = [&](size_t segment, const Kept& kept) {
      return weigh(segment, kept, weights) / noise_[segment];
    };
    auto [best, best_score] = tighten_bounds(bounds.outer, [&](size_t segment) {
      return Scored{segment, score_of(segment, bounds.inner)};
    });
    double best_most = is_known ? best_score : score_of(best, bounds.outer);
    double highest_other = 0;
    for (size_t segment = 0, first = best; segment < segments(); ++segment) {
      if (segment == first || scores_[segment] < best_score) {
        continue;
      }
      const double score = score_of(segment, bounds.inner);
      const double most = is_known ? score : score_of(segment, bounds.outer);
      const bool is_better = score > best_score || (score == best_score && segment < best);
      const double loser = is_better ? best_most : most;
      highest_other = loser > highest_other ? loser : highest_other;
      if (is_better) {
        best = segment;
        best_score = score;
        best_most = most;
      }
    }
    const bool is_certain = is_known || highest_other < best_score;
    return is_certain ? std::optional<Scored>({best, best_score}) : std::nullopt;
  }

  /// The id that is drawn from a segment of what is kept.
  size_t leading_id(size_t segment, const Kept& kept) const {
    double weights[kSegment];
    float noise[kSegment];
    weigh(segment, kept, weights);
    fill_exponential(key_, 0, kSegment, noise);
    size_t best = 0;
    double best_score = 0;
    for (size_t i = 0; i < kSegment; ++i) {
      const double score = weights[i] / noise[i];
      if (score > best_score) {
        best = i;
        best_score = score;
      }
    }
    return segment * kSegment + best;
  }

 private:
  size_t segments() const { return (row_.vocab_size() + kSegment - 1) / kSegment; }
  size_t padded_segments() const { return (segments() + kLanes - 1) / kLanes * kLanes; }

  Floats divided(const Floats& logits) const {
    const Floats difference = logits - splat(scale_.maximum);
    return scale_.temperature == 1.0F ? difference : difference / splat(scale_.temperature);
  }

  /// Writes the largest logit of each segment, or `most` if that is less.
  void find_largest(float most, float* largest_of) const {
    const size_t blocks = kSegmentLines / groups_.lines;  // 0: two segments are of one block
    for (size_t segment = 0; segment < segments(); ++segment) {
      const float* maxima = groups_.maxima + segment * kSegmentLines / groups_.lines * kLine;
      Floats largest = larger(load_floats(maxima), load_floats(maxima + kLanes));
      for (size_t block = 1; block < blocks; ++block) {
        maxima += kLine;
        largest = larger(largest, larger(load_floats(maxima), load_floats(maxima + kLanes)));
      }
      largest_of[segment] = largest_lane(smaller(largest, splat(most)));
    }
  }

  /// Fills scores_ with what a segment's score cannot exceed: 0 where nothing of it is kept.
  void bound_scores(const Kept& kept) {
    find_largest(kept.most, scores_);
    const Floats factor = splat(static_cast<float>(kSegment * kBeyond));
    for (size_t segment = 0; segment < segments(); segment += kLanes) {
      const Floats weight = weigh_approximately(load_floats(scores_ + segment), kept);
      store(scores_ + segment, weight * factor / load_floats(noise_ + segment));
    }
  }

  /// What a segment's weights do not exceed together.
  double bound_sum(size_t segment, const Kept& kept) const {
    Floats sum{};
    for (size_t i = 0; i < kSegmentLines; ++i) {
      const Line line = Type::load(row_.line(segment * kSegmentLines + i));
      sum = sum + weigh_approximately(line.first, kept);
      sum = sum + weigh_approximately(line.second, kept);
    }
    return double{sum_lanes(sum)} * kBeyond;
  }

  Floats weigh_approximately(const Floats& logits, const Kept& kept) const {
    return select(kept.has(logits), approximate_exp(divided(logits)), Floats{});
  }

  /// Fills `weights` with a segment's, which are 0 where a logit is not kept. Returns their sum,
  /// always added in the same order.
  double weigh(size_t segment, const Kept& kept, double* weights) const {
    float values[kSegment];
    write_kept_segment(row_, segment, kept, values);
    if (scale_.temperature == 1.0F) {
      return exp_differences(values, kSegment, scale_.maximum, weights);
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
  Scored tighten_bounds(const Kept& kept, ScoreOf score_of) {
    constexpr double kRoundedUp = 1 + 0x1p-23;
    const size_t first = first_largest(scores_, segments());
    Scored highest = score_of(first);
    float highest_bound = static_cast<float>(highest.score);
    for (size_t segment = 0; segment < segments(); ++segment) {
      if (segment == first || scores_[segment] < highest.score) {
        continue;
      }
      const double bound = bound_sum(segment, kept) / noise_[segment];
      scores_[segment] = static_cast<float>(bound * kRoundedUp);
      if (scores_[segment] > highest_bound) {
        highest_bound = scores_[segment];
        const Scored scored = score_of(segment);
        highest = scored.score > highest.score ? scored : highest;
      }
    }
    return highest;
  }

  // A weight or a sum of weights is less than this times what approximate_exp makes of it.
  static constexpr double kBeyond = 1.0 / kLeastRatio * (1 + 1e-5);

  const Row<Type>& row_;
  const Groups& groups_;
  const Scale scale_;
  const NoiseKey key_;
  float* const noise_;   // of segments
  float* const scores_;  // bounds
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
