#include "top_k_top_p_sample_row.h"

#include <algorithm>
#include <cmath>

namespace hostcann::opapi {

int64_t RowSampler::sample(const RowArguments& arguments, std::byte* scratch) {
  arguments_ = arguments;
  lay_out(scratch, arguments.vocab_size);
  decode();

  const bool use_k = arguments.top_k >= 1 && arguments.top_k <= std::min(vocab_size_, kMaximumTopK);
  const bool use_p = arguments.top_p > 0.0f && arguments.top_p < 1.0f;  // false for NaN
  if (use_k || use_p) {
    const int64_t kept = use_k ? keep_top_k(use_p) : keep_top_p();
    const auto id = [this](int64_t rank) { return ranked_id(rank); };
    write_selected(kept, id);
    return draw(kept, id);
  }
  softmax(vocab_size_, [this](int64_t id) { return values_[id]; });
  const auto id = [](int64_t index) { return index; };
  write_selected(vocab_size_, id);
  return draw(vocab_size_, id);
}

void RowSampler::decode() {
  largest_ = kMinusInfinity;
  for (int64_t id = 0; id < vocab_size_; ++id) {
    const float value = arguments_.logits[id];
    values_[id] = std::isnan(value) ? kMinusInfinity : value;
    largest_ = std::max(largest_, values_[id]);
  }
}

/// The least n with probability(0) + ... + probability(n - 1) > top_p; 0 when `limit` of them do
/// not reach it.
template <typename Probability>
int64_t RowSampler::count_nucleus(int64_t limit, Probability probability) const {
  double sum = 0.0;
  for (int64_t i = 0; i < limit; ++i) {
    sum += static_cast<double>(probability(i));
    if (sum > static_cast<double>(arguments_.top_p)) return i + 1;
  }
  return 0;
}

/// Branch A. Returns how many are kept; order_ and weights_ are by rank.
int64_t RowSampler::keep_top_k(bool use_p) {
  int64_t kept = arguments_.top_k;
  order_first(kept);
  const auto candidate = [this](int64_t rank) { return values_[ranked_id(rank)]; };
  softmax(kept, candidate);
  if (use_p) {
    const int64_t nucleus = count_nucleus(kept, [this](int64_t rank) { return weights_[rank]; });
    if (nucleus != 0) kept = nucleus;
    softmax(kept, candidate);
  }
  return kept;
}

/// Branch B. Returns how many are kept; order_ and weights_ are by rank.
int64_t RowSampler::keep_top_p() {
  softmax(vocab_size_, [this](int64_t id) { return values_[id]; });
  const auto probability = [this](int64_t rank) { return weights_[ranked_id(rank)]; };
  const int64_t guess = std::min({arguments_.top_k_guess, kMaximumTopK, vocab_size_});
  int64_t kept = 0;
  if (guess > 0) {
    order_first(guess);
    kept = count_nucleus(guess, probability);
  }
  if (kept == 0) {  // the guess missed: the same sum, over as much of the order as it takes
    order_first(vocab_size_);
    kept = count_nucleus(vocab_size_, probability);
    if (kept == 0) kept = vocab_size_;
  }
  softmax(kept, probability);  // the operator's second softmax, of probabilities
  return kept;
}

/// The id of the kept entry with the highest score, the lowest index on ties. weights_ and q are by
/// index.
template <typename Id>
int64_t RowSampler::draw(int64_t kept, Id id) const {
  if (largest_ == kMinusInfinity) return 0;
  if (arguments_.q.data == nullptr) {
    // argmax(w) is the first of the total order. Said of the logits, because rounding can make
    // weights equal.
    int64_t best = 0;
    while (values_[id(best)] != largest_) {
      if (++best == kept) throw ScratchChanged();
    }
    return id(best);
  }
  int64_t first = -1;
  int64_t best = -1;
  double best_score = kMinusInfinity;
  for (int64_t i = 0; i < kept; ++i) {
    // Weight 0 is not enough to bar it: where the others' weights underflow, a tie at score 0 would
    // draw it.
    if (values_[id(i)] == kMinusInfinity) continue;
    if (first < 0) first = i;
    const double score = arguments_.score(weights_[i], i);
    if (score > best_score) {  // false for NaN, which is never drawn
      best = i;
      best_score = score;
    }
  }
  if (first < 0) throw ScratchChanged();
  return id(best < 0 ? first : best);
}

template <typename Id>
void RowSampler::write_selected(int64_t kept, Id id) const {
  const StridedRow<float>& selected = arguments_.selected_logits;
  if (selected.data == nullptr) return;
  for (int64_t i = 0; i < vocab_size_; ++i) selected[i] = kMinusInfinity;
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t kept_id = id(i);
    selected[kept_id] = values_[kept_id];
  }
}

}  // namespace hostcann::opapi
