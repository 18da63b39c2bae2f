// What is told of a row beside its token. What is kept, as a list: ids, ascending, and their
// log-probabilities. And of rows that remember their draws (docs/filters.md, "Mirostat" and
// "Adaptive-p") how probable the token was in that; it may be one that is near to a probability.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/calls.h"
#include "cpu/draws/draw.h"
#include "cpu/filters/rules.h"
#include "cpu/rows/cut.h"
#include "cpu/rows/hits.h"
#include "cpu/rows/row.h"
#include "cpu/rows/workspace.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The logarithm of a probability. It is not -0: which of 0 and -0 is a row's maximum, depends on
/// the instruction set.
inline float log_prob(double difference, double log_total) {
  return static_cast<float>(difference - log_total + 0.0);
}

/// Turns the list's logits, which stand in the place of its log-probabilities, into these. Weights
/// are added by ascending id: so the sum is a function of the row alone.
inline void normalize_list(KeptList& list, const Scale& scale, Workspace& work) {
  float* const values = list.log_probs();
  double total = 0;
  for (size_t start = 0; start < list.count(); start += kChunk) {
    const size_t size = std::min(kChunk, list.count() - start);
    for (size_t i = 0; i < size; ++i) {
      work.exponentials[i] = exp_not_positive(scale.of(values[start + i]));
    }
    total += sum(work.exponentials, size);
  }
  const double log_total = std::log(total);
  for (size_t i = 0; i < list.count(); ++i) {
    values[i] = log_prob(scale.of(values[i]), log_total);
  }
}

/// Finds what a cut keeps of a row, but for -inf, in the workspace's hits. Returns its number.
/// `groups` were scanned, or have one line each.
template <typename Type>
size_t hit_kept(const Row<Type>& row, const Groups& groups, const Cut& cut, Workspace& work) {
  const float bound = cut.value > -kInfinity ? next_below(cut.value) : cut.value;
  Hits& hits = work.hits;
  size_t count = hit_above(row, groups, bound, hits);
  // Equals behind the last id go, from the end.
  for (size_t i = cut.value > -kInfinity ? hits.count : 0; i-- > 0;) {
    const size_t start = hits.pairs[i] * 2 * kLine;
    if (start + 2 * kLine <= cut.last_id) {
      break;
    }
    const auto* data = row.line(start / kLine);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      if (start + place > cut.last_id && Type::value_of(data[place]) == cut.value) {
        hits.bits[i] &= ~(uint64_t{1} << place);
        --count;
      }
    }
  }
  return count;
}

/// Lists the hits, so many.
template <typename Type>
void list_hits(const Row<Type>& row, size_t count, const Scale& scale, KeptList& list,
               Workspace& work) {
  const Hits& hits = work.hits;
  list.resize(count);
  int32_t* ids = list.ids();
  float* values = list.log_probs();
  for (size_t i = 0; i < hits.count; ++i) {
    const size_t start = hits.pairs[i] * 2 * kLine;
    const auto* data = row.line(start / kLine);
    for (uint64_t bits = hits.bits[i]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<size_t>(__builtin_ctzll(bits));
      *ids++ = static_cast<int32_t>(start + place);
      *values++ = Type::value_of(data[place]);
    }
  }
  normalize_list(list, scale, work);
}

/// Lists what a cut keeps of a row, but for -inf.
template <typename Type>
void list_kept(const Row<Type>& row, const Groups& groups, const Cut& cut, const Scale& scale,
               KeptList& list, Workspace& work) {
  list_hits(row, hit_kept(row, groups, cut, work), scale, list, work);
}

/// Lists candidates that are kept, whose values are divided already and whose exponentials are in
/// the workspace. They are few: a place is how many have a smaller id.
inline void list_ranks(const Candidates& kept, float maximum, KeptList& list, Workspace& work) {
  list.resize(kept.count);
  const double log_total = std::log(sum(work.exponentials, kept.count));
  for (size_t rank = 0; rank < kept.count; ++rank) {
    const uint32_t id = kept.ids[rank];
    uint32_t place = 0;
    for (size_t other = 0; other < kept.count; ++other) {
      place += kept.ids[other] < id ? 1U : 0U;
    }
    const double difference = double{kept.values[rank]} - double{maximum};
    list.ids()[place] = static_cast<int32_t>(id);
    list.log_probs()[place] = log_prob(difference, log_total);
  }
}

/// Probabilities from their logarithms. Those below exp(kLeastLogWeight) are as large as that.
ASCEND_SAMPLE_INLINE Floats probability_of(const Floats& log_probs) {
  return exp_not_positive(larger(log_probs, splat(kLeastLogWeight)));
}

/// How near probabilities are to a given one: exp(-10 d^2 / (1 + d)), d being the distance / 0.3.
ASCEND_SAMPLE_INLINE Floats nearness(const Floats& probabilities, float near) {
  const Floats distance = absolute(probabilities - splat(near)) / splat(0.3F);
  return exp_not_positive(splat(-10.0F) * distance * distance / (splat(1.0F) + distance));
}

/// Runs the race of the places of a segment: of weights whose ids ascend.
template <typename IdOf>
size_t win_place(const NoiseKey& key, const float* weights, size_t count, IdOf id_of) {
  float noise[kSegment];
  fill_exponential(key, 0, kSegment, noise);
  size_t best = 0;
  double best_score = 0;
  for (size_t i = 0; i < count; ++i) {
    const double score = double{weights[i]} / double{noise[id_of(i) % kSegment]};
    if (score > best_score) {
      best = i;
      best_score = score;
    }
  }
  return best;
}

/// Runs the races of segments and places among a list. Returns a place in it.
inline size_t draw_near(const KeptList& list, const TokenChance& chance, Workspace& work) {
  const auto segment_of = [&](size_t i) { return static_cast<size_t>(list.ids()[i]) / kSegment; };
  const size_t count = list.count();
  std::copy_n(list.log_probs(), count, work.values);
  pad(work.values, count);
  for (size_t i = 0; i < count; i += kLanes) {
    store(work.weights + i, nearness(probability_of(load_floats(work.values + i)), chance.near));
  }
  const size_t first_segment = segment_of(0) / 2 * 2;  // two lanes share a counter
  fill_exponential(chance.key, kSegment + first_segment, segment_of(count - 1) + 1 - first_segment,
                   work.segment_noise);
  size_t best = 0;
  size_t best_end = 0;
  double best_score = 0;
  for (size_t start = 0, end = 0; start < count; start = end) {
    double weight = 0;
    while (end < count && segment_of(end) == segment_of(start)) {
      weight += double{work.weights[end++]};
    }
    const double score = weight / double{work.segment_noise[segment_of(start) - first_segment]};
    if (score > best_score) {
      best = start;
      best_end = end;
      best_score = score;
    }
  }
  return best + win_place(chance.key, work.weights + best, best_end - best,
                          [&](size_t i) { return static_cast<size_t>(list.ids()[best + i]); });
}

/// The token of a row whose list is known, given what was drawn from it.
inline size_t settle_listed(const KeptList& list, size_t drawn, const TokenChance& chance,
                            Workspace& work) {
  if (*chance.status != RowStatus::kOk) {
    return drawn;
  }
  const int32_t* const ids = list.ids();
  const auto place =
      chance.is_drawn_near()
          ? draw_near(list, chance, work)
          : static_cast<size_t>(
                std::lower_bound(ids, ids + list.count(), static_cast<int32_t>(drawn)) - ids);
  *chance.log_prob = list.log_probs()[place];
  return static_cast<size_t>(ids[place]);
}

/// The same where much is kept of a row: by the logits themselves, of which few are weighed.
template <typename Draw>
class ChanceDraw {
 public:
  /// `draw` is a SegmentedDraw whose row has a cut.
  ChanceDraw(const Draw& draw, const Cut& cut, Workspace& work)
      : draw_(draw), cut_(cut), largest_(work.room_values[0]), bounds_(work.room_weights[0]) {
    draw.find_largest(largest_);
    log_total_ = std::log(sum_kept());
  }

  /// The logarithm of the probability of an id.
  float log_prob_of(size_t id) const {
    return log_prob(draw_.scale().of(draw_.row().value(id)), log_total_);
  }

  /// The id that wins the races of segments and of places.
  size_t draw_near(const TokenChance& chance) const {
    const float near = chance.near;
    bound_scores(near);
    float weights[kSegment];
    const auto score_of = [&](size_t segment) {
      return weigh(segment, near, weights) / double{draw_.noise_of(segment)};
    };
    const size_t first = first_largest(bounds_, draw_.segments());
    size_t best = first;
    double best_score = score_of(first);
    for (size_t segment = 0; segment < draw_.segments(); ++segment) {
      if (segment == first || bounds_[segment] < best_score) {
        continue;
      }
      const double score = score_of(segment);
      if (score > best_score || (score == best_score && segment < best)) {
        best = segment;
        best_score = score;
      }
    }
    weigh(best, near, weights);
    const size_t start = best * kSegment;
    return start + win_place(chance.key, weights, kSegment, [&](size_t i) { return start + i; });
  }

 private:
  /// Far below the maximum: a whole row of it has no weight.
  static constexpr float kNothing = -45.0F;
  /// A weight or a sum of weights is less than this times what it is computed as.
  static constexpr double kBeyond = 1 + 1e-4;

  double sum_kept() const {
    const auto weight_of = [&](const Floats& logits) {
      return probability_of(draw_.divided(logits));
    };
    Sum total;
    float values[kSegment];
    for (size_t segment = 0; segment < draw_.segments(); ++segment) {
      const float most = largest_[segment];
      if (!(most >= cut_.value) || largest_lane(draw_.divided(splat(most))) < kNothing) {
        continue;
      }
      Line sums{};
      if (cut_ == kNoCut) {
        for (size_t i = 0; i < kSegmentLines; ++i) {
          const Line line = draw_.line(segment * kSegmentLines + i);
          sums = {sums.first + weight_of(line.first), sums.second + weight_of(line.second)};
        }
      } else {
        draw_.fill_kept(segment, cut_, values);
        for (size_t i = 0; i < kSegment; i += kLine) {
          sums = {sums.first + weight_of(load_floats(values + i)),
                  sums.second + weight_of(load_floats(values + i + kLanes))};
        }
      }
      total.add(sums.first);
      total.add(sums.second);
    }
    return total.total();
  }

  Floats log_probs_of(const Floats& logits) const {
    return draw_.divided(logits) - splat(static_cast<float>(log_total_));
  }

  /// Fills bounds_ with what a segment's score cannot exceed: 0 where nothing of it is kept. Its
  /// probabilities are up to that of its largest logit.
  void bound_scores(float near) const {
    for (size_t segment = 0; segment < draw_.segments(); segment += kLanes) {
      const Floats largest = load_floats(largest_ + segment);
      const Floats nearest = smaller(probability_of(log_probs_of(largest)), splat(near));
      const Mask is_kept =
          is_at_least(largest, splat(cut_.value)) & is_greater(largest, splat(-kInfinity));
      store(bounds_ + segment, select(is_kept, nearness(nearest, near), Floats{}));
    }
    for (size_t segment = 0; segment < draw_.segments(); ++segment) {
      bounds_[segment] *= static_cast<float>(kSegment * kBeyond) / draw_.noise_of(segment);
    }
  }

  /// Fills `weights` with a segment's, which are 0 where the cut does not keep a logit. Returns
  /// their sum.
  double weigh(size_t segment, float near, float* weights) const {
    draw_.fill_kept(segment, cut_, weights);
    Sum total;
    for (size_t i = 0; i < kSegment; i += kLanes) {
      const Floats logits = load_floats(weights + i);
      const Floats weight = nearness(probability_of(log_probs_of(logits)), near);
      const Floats kept = select(is_greater(logits, splat(-kInfinity)), weight, Floats{});
      store(weights + i, kept);
      total.add(kept);
    }
    return total.total();
  }

  const Draw& draw_;
  const Cut cut_;
  float* const largest_;  // of segments
  float* const bounds_;
  double log_total_;
};

/// The token of a row of which a SegmentedDraw draws what a cut keeps.
template <typename Draw>
size_t draw_with_chance(Draw& draw, const Cut& cut, const RowArguments& arguments,
                        Workspace& work) {
  constexpr size_t kFewerThan = 16;  // such a part of a row is few
  const TokenChance& chance = *arguments.chance;
  const size_t drawn = chance.is_drawn_near() ? 0 : *draw.draw_between(cut, cut);
  if (*chance.status != RowStatus::kOk) {
    return drawn;
  }
  const size_t few = draw.row().vocab_size() / kFewerThan;
  if (cut != kNoCut) {
    const size_t count = hit_kept(draw.row(), draw.groups(), cut, work);
    if (count <= few) {
      KeptList& list = *arguments.list_of_few();
      list_hits(draw.row(), count, draw.scale(), list, work);
      return settle_listed(list, drawn, chance, work);
    }
  }
  if (arguments.list != nullptr) {
    list_kept(draw.row(), draw.groups(), cut, draw.scale(), *arguments.list, work);
  }
  const ChanceDraw<Draw> among_many(draw, cut, work);
  const size_t id = chance.is_drawn_near() ? among_many.draw_near(chance) : drawn;
  *chance.log_prob = among_many.log_prob_of(id);
  return id;
}

/// What a SegmentedDraw draws between two cuts, with what else is wanted of its row: then the cuts
/// are equal.
template <typename Draw>
std::optional<size_t> draw_between(Draw draw, const Cut& least, const Cut& most,
                                   const RowArguments& arguments, Workspace& work) {
  if (arguments.chance != nullptr) {
    return draw_with_chance(draw, most, arguments, work);
  }
  if (arguments.list != nullptr) {
    list_kept(draw.row(), draw.groups(), most, draw.scale(), *arguments.list, work);
  }
  return draw.draw_between(least, most);
}

/// The same with one cut.
template <typename Draw>
size_t draw_listed(Draw draw, const Cut& cut, const RowArguments& arguments, Workspace& work) {
  return *draw_between(draw, cut, cut, arguments, work);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
