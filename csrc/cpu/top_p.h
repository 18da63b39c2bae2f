// Branch B of docs/semantics.md: top-p alone.
#pragma once

#include "search.h"
#include "top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// A nucleus too large to be sorted: everything above `place.value`, and the first `equals` by id
/// of those equal to it.
struct Nucleus {
  Place place;
  size_t equals;

  size_t count() const { return place.count_above + equals; }
};

/// The softmax's probability of a value, rounded as the reference does.
ASCEND_SAMPLE_INLINE float probability_of(float value, const RowSum& row_sum) {
  const double difference = static_cast<double>(value) - row_sum.maximum;
  return static_cast<float>(exp_not_positive(difference) / row_sum.sum);
}

/// The nucleus' size, where the place of its end is known.
inline Nucleus cut(const Place& place, float maximum, double target) {
  // The least number of equals with which the weight exceeds the target.
  const auto weight_with = [&](size_t equals) {
    return place.weight_above +
           weight_of_equals<Weight::kExponential>(place.value, equals, maximum);
  };
  size_t low = 0;  // does not exceed it
  size_t high = place.count_equal;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    (weight_with(middle) > target ? high : low) = middle;
  }
  return {place, high};
}

/// Ranks that might be drawn from a large nucleus.
struct Contenders {
  static constexpr size_t kMost = 32;
  size_t ranks[kMost];
  size_t count = 0;
  bool are_too_many = false;
};

/// The ranks that might be drawn. Weights fall with the rank, by a factor of `ratio` at most from
/// the first to the last: so a rank is drawn only where its noise is below that of every earlier
/// one, and within that factor of the least.
inline Contenders find_contenders(const float* q, size_t count, float eps, double ratio,
                                  float* minima) {
  const auto noise_of = [eps](float q_value) { return __builtin_fabsf(q_value) + eps; };
  const Floats epsilon = splat(eps);
  float least = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t size = count - start < kChunk ? count - start : kChunk;
    Floats lanes = splat(kInfinity);
    size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      lanes = smaller(absolute(load_floats(q + start + i)) + epsilon, lanes);
    }
    float minimum = -largest_lane(-lanes);
    for (; i < size; ++i) {
      const float noise = noise_of(q[start + i]);
      minimum = noise < minimum ? noise : minimum;
    }
    minima[start / kChunk] = minimum;
    least = minimum < least ? minimum : least;
  }
  Contenders contenders;
  if (least == kInfinity) {
    // Every score is 0, or -1 for a noise of NaN: the first 0, else the first of all.
    size_t rank = 0;
    while (rank < count && noise_of(q[rank]) != kInfinity) {
      ++rank;
    }
    contenders.ranks[contenders.count++] = rank < count ? rank : 0;
    return contenders;
  }
  // Below 2^-127, quotients may overflow to equal infinities.
  const double limit_wanted = static_cast<double>(least) * ratio * (1.0 + 1e-6);
  const double limit = limit_wanted > 0x1p-127 ? limit_wanted : 0x1p-127;
  float so_far = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const float minimum = minima[start / kChunk];
    if (!(minimum < so_far)) {
      continue;
    }
    if (minimum <= limit) {
      for (size_t rank = start; rank < count && rank < start + kChunk; ++rank) {
        const float noise = noise_of(q[rank]);
        if (noise < so_far) {
          so_far = noise;
          if (noise <= limit && contenders.count < Contenders::kMost) {
            contenders.ranks[contenders.count++] = rank;
          } else {
            contenders.are_too_many |= noise <= limit;
          }
        }
      }
    }
    so_far = minimum;
  }
  return contenders;
}

template <typename Type>
class TopP {
 public:
  TopP(const Row<Type>& row, float p, const Noise& noise, float eps, Scratch& scratch,
       Workspace& work)
      : row_(row), p_(p), noise_(noise), eps_(eps), scratch_(scratch), work_(work) {}

  /// The row's maximum. If it is finite, `sample` may follow.
  float scan_row() {
    groups_ = groups_for(kMostCandidates, row_.vocab_size(), work_);
    sum_ = scan<true>(row_, groups_, work_.chunk_sums);
    return sum_.maximum;
  }

  /// The drawn id. `kept`, if not null, receives the row with -inf where a logit is not kept.
  size_t sample(float* kept) {
    // Most nuclei are small: sort a few candidates, then more, before anything else.
    constexpr size_t kFirstGuess = 48;
    const double target = static_cast<double>(p_) * sum_.sum;
    double found = 0;
    for (const size_t guess : {kFirstGuess, kMostCandidates}) {
      candidates_ = first_of_total_order(row_, groups_, guess, work_);
      found = exp_differences(candidates_.values, candidates_.count, sum_.maximum,
                              work_.exponentials);
      size_t count =
          count_until_exceeding(work_.exponentials, candidates_.count, sum_.sum, p_);
      if (count == 0 && candidates_.count < guess) {
        count = candidates_.count;  // there are no others
      }
      if (count != 0) {
        return sample_candidates(count, kept);
      }
      const double each = work_.exponentials[candidates_.count - 1];
      if (found + each * static_cast<double>(kMostCandidates - candidates_.count) <= target) {
        break;  // however the row goes on, kMostCandidates are not enough
      }
    }
    return sample_nucleus(target, kept);
  }

 private:
  size_t sample_candidates(size_t count, float* kept) {
    if (kept != nullptr) {
      fill(kept, row_.vocab_size(), -kInfinity);
      for (size_t rank = 0; rank < count; ++rank) {
        kept[candidates_.ids[rank]] = candidates_.values[rank];
      }
    }
    if (noise_.data == nullptr) {
      return candidates_.ids[0];
    }
    // The second softmax, of the probabilities.
    const float first = static_cast<float>(work_.exponentials[0] / sum_.sum);
    for (size_t rank = 0; rank < count; ++rank) {
      work_.scores[rank] = static_cast<float>(work_.exponentials[rank] / sum_.sum);
    }
    exp_differences(work_.scores, count, first, work_.exponentials);
    return candidates_.ids[draw(work_.exponentials, count, noise_, eps_, work_.scores)];
  }

  size_t sample_nucleus(double target, float* kept) {
    const float last = candidates_.values[candidates_.count - 1];
    double beyond = 0;  // the weight of the candidates above the last
    size_t above = 0;
    for (; candidates_.values[above] > last; ++above) {
      beyond += work_.exponentials[above];
    }
    sample_ = sample_row(row_, sum_.maximum, work_);
    // What is 40 below the maximum adds less than any p leaves: 2^20 exp(-40) < 2^-24.
    const Bracket within{sum_.maximum - 40.0F, last};
    nucleus_ = cut(find_place<Weight::kExponential>(row_, sample_, sum_.maximum, within, beyond,
                                                    target, work_),
                   sum_.maximum, target);
    if (kept != nullptr) {
      write_nucleus(kept);
    }
    return noise_.data == nullptr ? candidates_.ids[0] : draw_from_nucleus();
  }

  /// A draw with the weights of the second softmax, exp(probability).
  size_t draw_from_nucleus() {
    const size_t count = nucleus_.count();
    const double first = probability_of(sum_.maximum, sum_);
    const double last = probability_of(nucleus_.place.value, sum_);
    const float* q = contiguous(noise_, count, scratch_);
    const double ratio = 1.0 / exp_not_positive(last - first);
    const Contenders contenders = find_contenders(q, count, eps_, ratio, work_.noise_minima);
    if (contenders.are_too_many) {
      return draw_from_sorted(q, count);
    }
    if (contenders.count == 1) {
      return find_rank(contenders.ranks[0]).id;
    }
    size_t best = 0;
    double best_score = -1;
    for (size_t i = 0; i < contenders.count; ++i) {
      const size_t rank = contenders.ranks[i];
      const Ranked ranked = find_rank(rank);
      const double weight = exp_not_positive(probability_of(ranked.value, sum_) - first);
      const double score = weight / (__builtin_fabsf(q[rank]) + eps_);
      if (score > best_score) {
        best = ranked.id;
        best_score = score;
      }
    }
    return best;
  }

  struct Ranked {
    size_t id;
    float value;
  };

  Ranked find_rank(size_t rank) {
    if (rank < candidates_.count) {
      return {candidates_.ids[rank], candidates_.values[rank]};
    }
    Place place = nucleus_.place;
    if (rank < place.count_above) {
      const float last = candidates_.values[candidates_.count - 1];
      size_t beyond = 0;
      for (; candidates_.values[beyond] > last; ++beyond) {
      }
      place = find_place<Weight::kOne>(row_, sample_, sum_.maximum, {place.value, last},
                                       static_cast<double>(beyond), static_cast<double>(rank),
                                       work_);
    }
    return {find_equal(row_, place.value, rank - place.count_above), place.value};
  }

  /// For noise that leaves the draw open among many ranks: the whole nucleus in order.
  size_t draw_from_sorted(const float* q, size_t count) {
    const Floats bounds = splat(nucleus_.place.value);
    const auto is_kept = [&bounds](const Floats& x) { return is_at_least(x, bounds); };
    Candidates nucleus{work_.values, work_.ids};
    collect<Type>(row_, groups_, is_kept, is_kept, row_.vocab_size(),
                  Hits{work_.hit_bits, work_.hit_lines}, nucleus);
    const size_t size = nucleus.count;
    auto* keys = reinterpret_cast<uint64_t*>(
        scratch_.reserve(Scratch::kSort, size * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t))));
    auto* values = reinterpret_cast<float*>(keys + 2 * size);
    Candidates sorted{values, reinterpret_cast<uint32_t*>(values + size)};
    sort_many(nucleus, keys, keys + size, sorted);
    const double first = probability_of(sum_.maximum, sum_);
    size_t best = 0;
    double best_score = -1;
    for (size_t rank = 0; rank < count; ++rank) {
      const double weight = exp_not_positive(probability_of(sorted.values[rank], sum_) - first);
      const double score = weight / (__builtin_fabsf(q[rank]) + eps_);
      if (score > best_score) {
        best = sorted.ids[rank];
        best_score = score;
      }
    }
    return best;
  }

  void write_nucleus(float* kept) {
    size_t equals = nucleus_.equals;
    for (size_t id = 0; id < row_.vocab_size(); ++id) {
      const float value = row_.value(id);
      const bool is_equal_kept = value == nucleus_.place.value && equals != 0;
      equals -= is_equal_kept;
      kept[id] = value > nucleus_.place.value || is_equal_kept ? value : -kInfinity;
    }
  }

  const Row<Type>& row_;
  const float p_;
  const Noise noise_;
  const float eps_;
  Scratch& scratch_;
  Workspace& work_;
  Groups groups_{};
  RowSum sum_{};
  Candidates candidates_{};
  Sample sample_{};
  Nucleus nucleus_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
