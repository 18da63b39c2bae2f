#include "sample_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "contract.h"

namespace ascend_sample::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Packs (value, id) so that ascending integers are the total order: value descending, then id
/// ascending; -0 equals +0.
uint64_t pack(float value, size_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0F);  // -0 + 0 is +0
  const uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (uint64_t{~ascending} << 32) | id;
}

size_t id_of(uint64_t packed) { return packed & 0xFFFFFFFFU; }

/// The exponent of a softmax (section 5): entries of +inf share the whole mass, so beside one every
/// finite value has no weight.
class Exponent {
 public:
  explicit Exponent(float maximum) : maximum_(maximum) {}

  double operator()(float value) const {
    if (value == -kInfinity) {
      return 0.0;
    }
    if (maximum_ == kInfinity) {
      return value == kInfinity ? 1.0 : 0.0;
    }
    return std::exp(static_cast<double>(value) - maximum_);
  }

 private:
  float maximum_;
};

class Row {
 public:
  Row(RowScratch& scratch, const RowParameters& parameters, RowNoise q)
      : scratch_(scratch), parameters_(parameters), q_(q) {
    maximum_ = *std::max_element(values().begin(), values().end());
  }

  int64_t sample(float* kept) {
    const auto vocab_size = static_cast<int64_t>(values().size());
    const bool use_k = parameters_.k >= 1 && parameters_.k <= std::min(vocab_size, kMaxTopK);
    const bool use_p = parameters_.p > 0.0F && parameters_.p < 1.0F;
    if (!use_k && !use_p) {
      return sample_unfiltered(kept);
    }
    const size_t count = use_k ? top_k(use_p) : top_p();
    if (kept != nullptr) {
      std::fill(kept, kept + vocab_size, -kInfinity);
      for (size_t rank = 0; rank < count; ++rank) {
        const size_t id = id_of(order()[rank]);
        kept[id] = values()[id];
      }
    }
    return static_cast<int64_t>(id_of(order()[draw(count, /*from_probabilities=*/!use_k)]));
  }

 private:
  std::vector<float>& values() { return scratch_.values; }
  std::vector<uint64_t>& order() { return scratch_.order; }
  float value_at(size_t rank) { return values()[id_of(order()[rank])]; }

  void pack_row() {
    order().resize(values().size());
    for (size_t id = 0; id < values().size(); ++id) {
      order()[id] = pack(values()[id], id);
    }
  }

  void sort_first(size_t count) {
    if (count < order().size()) {
      std::nth_element(order().begin(), order().begin() + static_cast<std::ptrdiff_t>(count),
                       order().end());
    }
    std::sort(order().begin(), order().begin() + static_cast<std::ptrdiff_t>(count));
  }

  /// float32 softmax of the first `count` candidates against a sum of exponentials.
  void set_probabilities(size_t count, double sum) {
    const Exponent exponent(maximum_);
    scratch_.probabilities.resize(count);
    for (size_t rank = 0; rank < count; ++rank) {
      scratch_.probabilities[rank] =
          sum > 0 ? static_cast<float>(exponent(value_at(rank)) / sum) : 0.0F;
    }
  }

  /// The least n with probabilities[0] + ... + probabilities[n-1] > p, or 0 when even all of them
  /// do not exceed it.
  size_t count_until_exceeding_p() const {
    double sum = 0;
    for (size_t n = 0; n < scratch_.probabilities.size(); ++n) {
      sum += scratch_.probabilities[n];
      if (sum > static_cast<double>(parameters_.p)) {
        return n + 1;
      }
    }
    return 0;
  }

  /// Branch A: the number kept among the first k.
  size_t top_k(bool use_p) {
    const auto k = static_cast<size_t>(parameters_.k);
    pack_row();
    sort_first(k);
    if (!use_p) {
      return k;
    }
    const Exponent exponent(maximum_);
    double sum = 0;
    for (size_t rank = 0; rank < k; ++rank) {
      sum += exponent(value_at(rank));
    }
    set_probabilities(k, sum);
    const size_t n = count_until_exceeding_p();
    return n == 0 ? k : n;
  }

  /// Branch B: the number kept of the whole row; the guess saves the full sort and never changes
  /// the number.
  size_t top_p() {
    const size_t vocab_size = values().size();
    const Exponent exponent(maximum_);
    const double sum =
        std::transform_reduce(values().begin(), values().end(), 0.0, std::plus<>(), exponent);
    pack_row();
    const auto guess = static_cast<size_t>(
        std::min({parameters_.top_k_guess, kMaxTopK, static_cast<int64_t>(vocab_size)}));
    for (const size_t count : {guess, vocab_size}) {
      sort_first(count);
      set_probabilities(count, sum);
      if (const size_t n = count_until_exceeding_p(); n != 0) {
        return n;
      }
    }
    return vocab_size;
  }

  /// The rank of the drawn candidate among the first `count` (section 4).
  size_t draw(size_t count, bool from_probabilities) {
    if (q_.data == nullptr) {
      return 0;
    }
    auto& weights = scratch_.weights;
    weights.resize(count);
    double sum = 0;
    for (const int pass : {0, 1}) {
      for (size_t rank = 0; rank < count; ++rank) {
        const double exponential = unnormalised_weight(rank, from_probabilities);
        if (pass == 0) {
          sum += exponential;
        } else {
          weights[rank] = sum > 0 ? static_cast<float>(exponential / sum) : 0.0F;
        }
      }
    }
    size_t best = 0;
    float best_score = -kInfinity;
    for (size_t rank = 0; rank < count; ++rank) {
      if (value_at(rank) != -kInfinity) {
        update(rank, score(weights[rank], rank), best, best_score);
      }
    }
    return best;
  }

  double unnormalised_weight(size_t rank, bool from_probabilities) {
    const float value = value_at(rank);
    if (!from_probabilities) {
      return Exponent(maximum_)(value);
    }
    if (value == -kInfinity || (maximum_ == kInfinity && value != kInfinity)) {
      return 0.0;
    }
    return std::exp(static_cast<double>(scratch_.probabilities[rank]) - scratch_.probabilities[0]);
  }

  /// Branch C: every id is kept, in vocabulary order.
  int64_t sample_unfiltered(float* kept) {
    if (kept != nullptr) {
      std::copy(values().begin(), values().end(), kept);
    }
    if (q_.data == nullptr) {
      return std::max_element(values().begin(), values().end()) - values().begin();
    }
    const Exponent exponent(maximum_);
    const double sum =
        std::transform_reduce(values().begin(), values().end(), 0.0, std::plus<>(), exponent);
    size_t best = 0;
    float best_score = -kInfinity;
    for (size_t id = 0; id < values().size(); ++id) {
      if (values()[id] != -kInfinity) {
        update(id, score(static_cast<float>(exponent(values()[id]) / sum), id), best, best_score);
      }
    }
    return static_cast<int64_t>(best);
  }

  /// weight / (|q| + eps); -1 for a noise of NaN, which loses against every other.
  float score(float weight, size_t lane) const {
    const float noise = q_.data[static_cast<int64_t>(lane) * q_.stride];
    if (std::isnan(noise)) {
      return -1.0F;
    }
    return weight == 0.0F ? 0.0F : weight / (std::fabs(noise) + parameters_.eps);
  }

  static void update(size_t lane, float score, size_t& best, float& best_score) {
    if (score > best_score) {
      best = lane;
      best_score = score;
    }
  }

  RowScratch& scratch_;
  const RowParameters& parameters_;
  RowNoise q_;
  float maximum_;
};

}  // namespace

int64_t sample_row(RowScratch& scratch, const RowParameters& parameters, RowNoise q, float* kept) {
  return Row(scratch, parameters, q).sample(kept);
}

}  // namespace ascend_sample::cpu
