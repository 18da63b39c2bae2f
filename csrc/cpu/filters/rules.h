// What one row is sampled with.
#pragma once

#include <cmath>
#include <span>

#include "cpu/calls.h"
#include "cpu/draws/noise.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A share of the largest weight: so near to min-p, the rounding of weights to float32 matters.
inline constexpr double kUnsure = 1e-6;

/// The largest value that does not reach a share of the largest value's weight, or -inf.
inline float below_share(float maximum, double share) {
  return last_before(-kInfinity, maximum, [&](float value) {
    return exp_not_positive(double{value} - double{maximum}) >= share;
  });
}

/// How an id is drawn from what is kept: by noise of each rank or id, by segments of the
/// vocabulary, or not: then the first of the total order is taken. No std::variant, whose code
/// instruction sets would share.
class Draw {
 public:
  Draw() = default;
  explicit Draw(const Noise& noise) : kind_(Kind::kByRank), noise_(noise) {}
  explicit Draw(const NoiseKey& key) : kind_(Kind::kBySegment), key_(key) {}

  bool is_any() const { return kind_ != Kind::kNone; }
  bool is_by_segments() const { return kind_ == Kind::kBySegment; }
  const Noise& noise() const { return noise_; }
  const NoiseKey& key() const { return key_; }

 private:
  enum class Kind : uint8_t { kNone, kByRank, kBySegment };
  Kind kind_ = Kind::kNone;
  Noise noise_{nullptr, 0};
  NoiseKey key_{};
};

/// What is wanted of a row beside its id, and where it goes.
struct Report {
  std::span<float> kept = {};   // logits; empty: not wanted
  KeptList* list = nullptr;     // of a row that is drawn; null: not wanted
  RowStatus* status = nullptr;  // null: not wanted, or noted before

  bool wants_kept() const { return !kept.empty(); }
  bool wants_list() const { return list != nullptr; }

  /// Whether what is kept has to be known, not only what is drawn from it.
  bool needs_end() const { return wants_kept() || wants_list(); }

  void note(RowStatus seen) const {
    if (status != nullptr) {
      *status = seen;
    }
  }
};

/// What one row is sampled with, and the operator's rules for it.
struct RowArguments {
  Rules rules;
  int32_t k;
  float p;
  float min_p;  // not above 0, or NaN: none
  float eps;
  Draw draw = {};

  // Of the sampling layer alone.
  bool keeps_ties = false;   // of top-k: then what it keeps is not ranked
  float temperature = 1.0F;  // of top-k; other rows are divided before

  bool is_drawn() const { return draw.is_any(); }
  bool uses_min_p() const { return min_p > 0.0F; }

  bool uses_k(size_t vocab_size) const {
    return k >= 1 && k <= rules.most_k && !keeps_ties && k <= static_cast<int64_t>(vocab_size);
  }
  bool uses_p() const { return p > 0.0F && p < 1.0F; }

  /// Whether p keeps the best entry alone.
  bool keeps_one() const { return rules.keeps_one_at_p_0 && p <= 0.0F; }

  /// Whether the best entry alone is kept, whatever the others are.
  bool keeps_best() const { return keeps_one() || min_p >= 1.0F; }

  /// Asks for the best entry alone where it is taken whatever the others are. Returns whether ranks
  /// decide then: no segments race, and no temperature makes another entry equal to the best.
  bool use_ranks() {
    if (!is_drawn() || (keeps_best() && (!draw.is_by_segments() || temperature == 1.0F))) {
      k = 1;
      draw = {};
    }
    return !draw.is_by_segments();
  }

  /// What a sum of probabilities has to exceed for a nucleus.
  double target() const {
    const double wide{p};
    return rules.has_to_exceed_p ? wide : std::nextafter(wide, -1.0);
  }

  /// The weight with which an entry of a nucleus without top-k is drawn, but for a common factor,
  /// from the exponential of its logit (the largest one's is 1) and 1 / their sum.
  double draw_weight(double exponential, double inverse_sum) const {
    return rules.softmaxes_again ? exp_not_positive((exponential - 1.0) * inverse_sum)
                                 : exponential;
  }

  /// The exponential to which draw_weight gives this weight, but for rounding; not above 0 where
  /// every one has more.
  double exponential_with(double weight, double inverse_sum) const {
    return rules.softmaxes_again ? 1.0 + std::log(weight) / inverse_sum : weight;
  }

  /// min-p a little larger or smaller.
  RowArguments with_min_p_times(double factor) const {
    RowArguments result = *this;
    result.min_p = min_p >= 1.0F ? min_p : static_cast<float>(double{min_p} * factor);
    return result;
  }

  /// The number of first ranks that min-p leaves of `count`, whose weights do not ascend.
  template <typename WeightOf>
  size_t count_staying(size_t count, WeightOf weight_of) const {
    if (!uses_min_p() || count == 0) {
      return count;
    }
    const double least = double{min_p} * double{weight_of(0)};
    size_t low = 1;
    size_t high = min_p >= 1.0F ? 1 : count;
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (double{weight_of(middle)} >= least) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return high;
  }
};

/// Those of a row of the sampling layer.
inline RowArguments arguments_of(const Requests& requests, int64_t index) {
  return {.rules = kSamplingLayer,
          .k = requests.k[index],
          .p = requests.p[index],
          .min_p = requests.min_p[index],
          .eps = 0.0F,
          .keeps_ties = requests.keeps_ties,
          .temperature = requests.temperature[index]};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
