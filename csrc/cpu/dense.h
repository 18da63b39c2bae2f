// Probabilities instead of logits, and the kept weights as a result: docs/semantics_v2.md. The
// whole row is weighed, entry by entry.
#pragma once

#include "top_k.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What was kept, densely: in the order of q. Null: not wanted.
struct DenseOutput {
  float* weights;
  int64_t* ids;
};

template <typename Type>
class Dense {
 public:
  Dense(const Row<Type>& row, const RowArguments& arguments, int64_t most_k, bool are_probabilities,
        Scratch& scratch, Workspace& work)
      : arguments_(arguments),
        are_probabilities_(are_probabilities),
        vocab_size_(row.vocab_size()),
        scratch_(scratch),
        work_(work),
        row_(copy(row)),
        candidates_(arguments.uses_k(most_k) ? static_cast<size_t>(arguments.k) : vocab_size_),
        is_ranked_(candidates_ < vocab_size_ || arguments.uses_k(most_k) || arguments.uses_p() ||
                   arguments.keeps_one()) {}

  size_t sample(const DenseOutput& dense) {
    if (arguments_.kept != nullptr) {
      fill(arguments_.kept, vocab_size_, are_probabilities_ ? 0.0F : -kInfinity);
    }
    if (is_ranked_) {
      rank();
    } else {
      weigh_all();
    }
    const size_t count = is_ranked_ ? keep_ranks() : keep_ids();
    if (arguments_.kept != nullptr) {
      for (size_t i = 0; i < count; ++i) {
        const float value = values_[ids_[i]];
        arguments_.kept[ids_[i]] = are_probabilities_ && value == -kInfinity ? 0.0F : value;
      }
    }
    if (dense.weights != nullptr) {
      fill(dense.weights, vocab_size_, 0.0F);
      for (size_t i = 0; i < count; ++i) {
        dense.weights[i] = weights_[i];
      }
    }
    for (size_t i = 0; dense.ids != nullptr && i < vocab_size_; ++i) {
      dense.ids[i] = i < count ? ids_[i] : 0;
    }
    return arguments_.is_drawn() ? draw(count) : first();
  }

 private:
  static constexpr size_t kFew = kMostCandidates;  // tried before the whole row is sorted

  /// The row in float32; what can never be drawn is -inf: NaN, and a probability that is not above
  /// 0.
  Row<Float32> copy(const Row<Type>& row) {
    values_ = reinterpret_cast<float*>(
        scratch_.reserve(Scratch::kCopy, vocab_size_ * (2 * sizeof(float) + sizeof(uint32_t))));
    weights_ = values_ + vocab_size_;
    ids_ = reinterpret_cast<uint32_t*>(weights_ + vocab_size_);
    for (size_t id = 0; id < vocab_size_; ++id) {
      const float value = row.value(id);
      values_[id] = are_probabilities_ && !(value > 0.0F) ? -kInfinity : value;
    }
    return {values_, vocab_size_, work_.last_chunk_of_copy};
  }

  /// Sets how values become weights, from the candidates.
  void weigh(const float* values, size_t count) {
    maximum_ = -kInfinity;
    for (size_t i = 0; i < count; ++i) {
      maximum_ = values[i] > maximum_ ? values[i] : maximum_;
    }
    sum_ = 0;
    if (maximum_ == -kInfinity || (are_probabilities_ && maximum_ != kInfinity)) {
      return;
    }
    for (size_t start = 0; start < count; start += kChunk) {
      const size_t size = count - start < kChunk ? count - start : kChunk;
      sum_ += exp_differences(values + start, size, maximum_, work_.exponentials);
    }
  }

  float weight_of(float value) const {
    if (value == -kInfinity) {
      return 0.0F;
    }
    if (maximum_ == kInfinity) {  // entries of +inf share the whole mass
      return value == kInfinity ? static_cast<float>(1.0 / sum_) : 0.0F;
    }
    if (are_probabilities_) {
      return value;
    }
    return static_cast<float>(exp_not_positive(double{value} - double{maximum_}) / sum_);
  }

  void weigh_all() { weigh(values_, vocab_size_); }

  /// The first of the total order: as many as may be kept.
  void rank() {
    const bool are_few = candidates_ <= kMostCandidates;
    if (!are_few) {
      weigh_all();
    }
    const size_t tried = are_few ? candidates_ : kFew;
    const Groups groups = groups_for(tried, vocab_size_, work_);
    ranked_ = {};
    if (scan_maxima(row_, groups) > -kInfinity) {
      ranked_ = first_of_total_order(row_, groups, tried, work_);
    }
    if (are_few) {
      weigh(ranked_.values, ranked_.count);
    } else if (!is_complete()) {
      ranked_ = sort_above(row_, Groups{1, nullptr}, -kInfinity, scratch_, work_).candidates;
    }
  }

  /// Whether the ranked entries are enough for p.
  bool is_complete() const { return arguments_.keeps_one() || count_ranked() < ranked_.count; }

  /// The number of ranked entries that p keeps.
  size_t count_ranked() const {
    double sum = 0;
    for (size_t rank = 0; rank < ranked_.count; ++rank) {
      sum += double{weight_of(ranked_.values[rank])};
      if (sum > arguments_.target()) {
        return rank + 1;
      }
    }
    return ranked_.count + 1;  // not even all suffice
  }

  /// Fills in what is kept, by rank. Returns its number.
  size_t keep_ranks() {
    size_t count = candidates_;
    if (arguments_.keeps_one()) {
      count = 1;
    } else if (arguments_.uses_p()) {
      const size_t n = count_ranked();
      count = n <= ranked_.count ? n : candidates_;
    }
    size_t id = 0;  // of what can never be drawn, which follows by ascending id
    for (size_t i = 0; i < count; ++i) {
      if (i < ranked_.count) {
        ids_[i] = ranked_.ids[i];
        weights_[i] = weight_of(ranked_.values[i]);
      } else {
        for (; values_[id] > -kInfinity; ++id) {
        }
        ids_[i] = static_cast<uint32_t>(id++);
        weights_[i] = 0.0F;
      }
    }
    return arguments_.count_staying(count, [this](size_t i) { return weights_[i]; });
  }

  /// Fills in what is kept, by id. Returns its number.
  size_t keep_ids() {
    if (arguments_.min_p >= 1.0F) {
      ids_[0] = static_cast<uint32_t>(first());
      weights_[0] = weight_of(values_[ids_[0]]);
      return 1;
    }
    const double least =
        arguments_.uses_min_p() ? double{arguments_.min_p} * double{weight_of(maximum_)} : 0.0;
    size_t count = 0;
    for (size_t id = 0; id < vocab_size_; ++id) {
      const float weight = weight_of(values_[id]);
      if (double{weight} >= least) {
        ids_[count] = static_cast<uint32_t>(id);
        weights_[count++] = weight;
      }
    }
    return count;
  }

  /// The first of the total order.
  size_t first() const {
    size_t best = 0;
    for (size_t id = 1; id < vocab_size_; ++id) {
      best = values_[id] > values_[best] ? id : best;
    }
    return best;
  }

  size_t draw(size_t count) const {
    size_t best = 0;
    float best_score = -kInfinity;
    for (size_t i = 0; i < count; ++i) {
      const float score = score_of(weights_[i], arguments_.noise[i], arguments_.eps);
      if (values_[ids_[i]] > -kInfinity && score > best_score) {
        best = i;
        best_score = score;
      }
    }
    return ids_[best];
  }

  const RowArguments& arguments_;
  const bool are_probabilities_;
  const size_t vocab_size_;
  Scratch& scratch_;
  Workspace& work_;
  float* values_ = nullptr;
  float* weights_ = nullptr;
  uint32_t* ids_ = nullptr;
  const Row<Float32> row_;
  const size_t candidates_;
  const bool is_ranked_;
  Candidates ranked_{};
  float maximum_ = 0;
  double sum_ = 0;
};

/// The drawn id. What a wanted output does not hold is filled in.
template <typename Type>
size_t sample_densely(const Row<Type>& row, const RowArguments& arguments, int64_t most_k,
                      bool are_probabilities, const DenseOutput& dense, Scratch& scratch,
                      Workspace& work) {
  return Dense<Type>(row, arguments, most_k, are_probabilities, scratch, work).sample(dense);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
