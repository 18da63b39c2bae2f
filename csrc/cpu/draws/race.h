// Branch C of docs/semantics.md with a draw: no filter. One pass over logits and q.
#pragma once

#include <cmath>
#include <optional>

#include "cpu/draws/draw.h"
#include "cpu/rows/scan.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline constexpr double kLog2E = 1.4426950408889634;

/// A logit and its noise, racing for the largest logit * log2(e) - log2(|q| + eps): the order
/// of the scores weight / (|q| + eps).
struct Entrant {
  double level;
  float logit;
  float noise;  // |q| + eps
  size_t id;
};

/// The entrants that rounding to float32 might put first: level with the best to kNear.
class Race {
 public:
  static constexpr double kNear = 1e-6;
  static constexpr size_t kMost = 64;

  /// Noise below this might lift a weight that has left the normal numbers of float32.
  static constexpr float kLeastNoise = 0x1p-40F;

  size_t count() const { return count_; }
  /// Whether the race cannot tell.
  bool is_open() const { return is_open_; }
  /// Whether it can, and no rounding could put another one first.
  bool is_won() const { return count_ == 1 && !is_open_; }
  void leave_open() { is_open_ = true; }
  const Entrant& operator[](size_t i) const { return entrants_[i]; }
  double best() const { return best_; }

  void enter(const Entrant& entrant) {
    is_open_ |= entrant.noise < kLeastNoise;
    if (!(entrant.level >= best_ - kNear)) {
      return;  // also for a noise of NaN
    }
    if (entrant.level > best_) {
      best_ = entrant.level;
      size_t kept = 0;
      for (size_t i = 0; i < count_; ++i) {
        if (entrants_[i].level >= best_ - kNear) {
          entrants_[kept++] = entrants_[i];
        }
      }
      count_ = kept;
    }
    for (size_t i = 0; i < count_; ++i) {
      if (entrants_[i].logit == entrant.logit && entrants_[i].noise == entrant.noise) {
        return;  // the same score, and a lower id came first
      }
    }
    if (count_ == kMost) {
      is_open_ = true;
    } else {
      entrants_[count_++] = entrant;
    }
  }

 private:
  double best_ = -kInfinity;
  size_t count_ = 0;
  bool is_open_ = false;
  Entrant entrants_[kMost];
};

/// Enters every logit of the row, after `shift` was subtracted from it, and returns the row's
/// maximum.
///
/// The exponent and mantissa bits of a float, read as one number, are its log2 to within 0.0861 and
/// never above it. So a few operations bound every level from above, and only what might beat the
/// best level so far is looked at.
template <typename Type>
float enter_all(const Row<Type>& row, const float* q, float eps, float shift, float* last_noise,
                Race& race) {
  // Covers the rounding of the bound, for logits up to kLargestLogit.
  constexpr double kMargin = 2e-3;
  const Floats epsilon = splat(eps);
  const Floats shifts = splat(shift);
  Floats bound = splat(-kInfinity);
  Floats first_largest = splat(-kInfinity);
  Floats second_largest = first_largest;
  // The last lines of q may not be read beyond their end.
  const size_t whole = row.vocab_size() / kLine;
  if (const size_t rest = row.vocab_size() % kLine; rest != 0) {
    for (size_t i = 0; i < kLine; ++i) {
      last_noise[i] = i < rest ? q[whole * kLine + i] : 1.0F;
    }
  }
  for (size_t index = 0; index < row.lines(); ++index) {
    const float* noise = index < whole ? q + index * kLine : last_noise;
    prefetch_ahead(row.line(index));
    prefetch_ahead(noise);
    const Line line = Type::load(row.line(index));
    first_largest = larger(line.first, first_largest);
    second_largest = larger(line.second, second_largest);
    const Floats logits[2] = {line.first - shifts, line.second - shifts};
    const Floats noises[2] = {absolute(load_floats(noise)) + epsilon,
                              absolute(load_floats(noise + kLanes)) + epsilon};
    Mask masks[2];
    for (size_t half = 0; half < 2; ++half) {
      const Floats log2_noise = convert(bits_of(noises[half]));
      const Floats level =
          fused(log2_noise, splat(-0x1p-23F), logits[half] * splat(static_cast<float>(kLog2E)));
      masks[half] = is_greater(level, bound) | is_greater(splat(Race::kLeastNoise), noises[half]);
    }
    uint32_t bits = bits_of(masks[0]) | bits_of(masks[1]) << kLanes;
    if (bits == 0) [[likely]] {
      continue;
    }
    float logit_lanes[kLine];
    float noise_lanes[kLine];
    for (size_t half = 0; half < 2; ++half) {
      store(logit_lanes + half * kLanes, logits[half]);
      store(noise_lanes + half * kLanes, noises[half]);
    }
    for (; bits != 0; bits &= bits - 1) {
      const auto lane = static_cast<size_t>(__builtin_ctz(bits));
      if (logit_lanes[lane] > -kInfinity) {
        const double level = logit_lanes[lane] * kLog2E - std::log2(double{noise_lanes[lane]});
        race.enter({level, logit_lanes[lane], noise_lanes[lane], index * kLine + lane});
      }
    }
    bound = splat(static_cast<float>(race.best() - 127.0 - kMargin));
  }
  return largest_lane(larger(first_largest, second_largest));
}

/// Fills work.values with a chunk's logits and work.exponentials with exp(logit - maximum). Returns
/// their sum, as exactly as float64 adds.
template <typename Type>
double exp_chunk(const Row<Type>& row, size_t index, float maximum, Workspace& work) {
  for (size_t line = 0; line < kChunkLines; ++line) {
    const Line logits = Type::load(row.chunk(index) + line * kLine);
    const Floats lowest = splat(-kInfinity);  // what a NaN becomes
    store(work.values + line * kLine, larger(logits.first, lowest));
    store(work.values + line * kLine + kLanes, larger(logits.second, lowest));
  }
  return exp_differences(work.values, kChunk, maximum, work.exponentials);
}

/// The sum of exp(logit - maximum) over a row, as exactly as float64 adds.
template <typename Type>
double sum_exactly(const Row<Type>& row, float maximum, Workspace& work) {
  double total = 0;
  for (size_t index = 0; index < row.chunks(); ++index) {
    total += exp_chunk(row, index, maximum, work);
  }
  return total;
}

/// The id with the largest score, the lowest where scores are equal: every score in the reference's
/// precision, the weights being exp(logit - maximum) / total. Bounded, but not fast: for rows that
/// the race cannot decide.
template <typename Type>
size_t compare_all_scores(const Row<Type>& row, const Noise& noise, float eps, float maximum,
                          double total, Workspace& work) {
  size_t best = 0;
  float best_score = -kInfinity;
  for (size_t index = 0; index < row.chunks(); ++index) {
    exp_chunk(row, index, maximum, work);
    const size_t start = index * kChunk;
    for (size_t i = 0; i < kChunk && start + i < row.vocab_size(); ++i) {
      const auto weight = static_cast<float>(work.exponentials[i] / total);
      const float score = score_of(weight, noise[start + i], eps);
      if (work.values[i] > -kInfinity && score > best_score) {
        best = start + i;
        best_score = score;
      }
    }
  }
  return best;
}

/// Runs the race for the draw from softmax(row), q being contiguous. Nobody enters in a row without
/// weight. Sets the row's maximum.
template <typename Type>
Race run_race(const Row<Type>& row, const float* q, float eps, float* last_noise, float& maximum) {
  // Beyond the first, float32 products round too coarsely for the bounds. Above the second, a score
  // beats every one whose weight is not a normal number of float32: those are below 2^-126 / 2^-40.
  constexpr float kLargestLogit = 2048.0F;
  constexpr double kLowestLevel = -60.0;
  float shift = 0.0F;
  Race race;
  maximum = enter_all(row, q, eps, shift, last_noise, race);
  if (std::fabs(maximum) > kLargestLogit && std::isfinite(maximum)) {
    shift = maximum;
    race = Race();
    enter_all(row, q, eps, shift, last_noise, race);
  }
  const double level = race.best() - (double{maximum} - shift) * kLog2E;
  if (!(level > kLowestLevel)) {
    race.leave_open();  // also where the maximum is +inf
  }
  return race;
}

/// The id drawn from softmax(row), q being contiguous; none where the race cannot decide. Sets
/// the row's maximum, which is above -inf where it returns none.
template <typename Type>
std::optional<size_t> draw_unfiltered(const Row<Type>& row, const float* q, float eps,
                                      Workspace& work, float& maximum) {
  const Race race = run_race(row, q, eps, work.last_noise, maximum);
  if (maximum == -kInfinity) {
    return 0;
  }
  if (race.is_open()) {
    return std::nullopt;
  }
  if (race.is_won()) {
    return race[0].id;
  }
  const double total = scan_sum(row, Groups{kChunkLines, work.maxima}, work.chunk_sums).sum;
  size_t best = 0;
  float best_score = -kInfinity;
  for (size_t i = 0; i < race.count(); ++i) {  // by ascending id
    const double exponential =
        exp_not_positive(static_cast<double>(row.value(race[i].id)) - maximum);
    const float score = score_of(static_cast<float>(exponential / total), q[race[i].id], eps);
    if (score > best_score) {
      best = race[i].id;
      best_score = score;
    }
  }
  return best;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
