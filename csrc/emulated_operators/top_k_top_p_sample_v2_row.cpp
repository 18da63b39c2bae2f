#include "top_k_top_p_sample_v2_row.h"

#include <algorithm>
#include <cmath>

namespace hostcann::opapi {

int64_t RowSamplerV2::sample(const SampleV2Arguments& arguments, std::byte* scratch) {
  arguments_ = arguments;
  lay_out(scratch, arguments.vocab_size);
  decode();

  const int64_t limit = std::min({vocab_size_, (arguments.ks_max + 7) / 8 * 8, kMaximumTopK});
  const bool keeps_one = arguments.top_p <= 0.0f;  // false for NaN, as the next
  const bool use_p = !keeps_one && arguments.top_p < 1.0f;
  const bool use_k = keeps_one || (arguments.top_k >= 1 && arguments.top_k <= limit);
  if (use_k) {
    const int64_t candidates = keeps_one ? 1 : arguments.top_k;
    order_first(candidates);
    weigh(candidates);
    take(use_p ? nucleus(candidates, true) : candidates, true);
  } else {
    for (int64_t id = 0; id < vocab_size_; ++id) order_[id] = static_cast<uint64_t>(id);
    weigh(vocab_size_);
    if (use_p) {
      rank_whole_row();
    } else {
      take(vocab_size_, true);
    }
  }
  if (arguments.min_p > 0.0f) filter_by_min_p(use_k || use_p);
  write_outputs();
  return arguments.q.data == nullptr ? best_id() : draw();
}

void RowSamplerV2::decode() {
  for (int64_t id = 0; id < vocab_size_; ++id) {
    const float value = arguments_.logits[id];
    if (arguments_.input_is_logits) {
      values_[id] = std::isnan(value) ? kMinusInfinity : value;
    } else {
      values_[id] = value > 0.0f ? value : 0.0f;  // NaN counts as 0
    }
  }
}

/// The first of the total order, which no filter removes.
int64_t RowSamplerV2::best_id() const {
  return std::max_element(values_, values_ + vocab_size_) - values_;
}

bool RowSamplerV2::weighs_nothing(int64_t id) const {
  return values_[id] == (arguments_.input_is_logits ? kMinusInfinity : 0.0f);
}

/// weights_ by place, of the entries at the first `count` places of order_.
void RowSamplerV2::weigh(int64_t count) {
  if (arguments_.input_is_logits) {
    softmax(count, [this](int64_t place) { return values_[ranked_id(place)]; });
    return;
  }
  int64_t infinite = 0;
  for (int64_t i = 0; i < count; ++i) infinite += std::isinf(values_[ranked_id(i)]) ? 1 : 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = values_[ranked_id(i)];
    weights_[i] =
        infinite == 0 ? value : (std::isinf(value) ? 1.0f / static_cast<float>(infinite) : 0.0f);
  }
}

/// Keeps the entries at the first `count` places of order_. weights_ are by place, or by id.
void RowSamplerV2::take(int64_t count, bool by_place) {
  kept_ids_.resize(static_cast<size_t>(count));
  kept_weights_.resize(static_cast<size_t>(count));
  for (int64_t place = 0; place < count; ++place) {
    const int64_t id = ranked_id(place);
    kept_ids_[static_cast<size_t>(place)] = id;
    kept_weights_[static_cast<size_t>(place)] = weights_[by_place ? place : id];
  }
}

/// Top-p without top-k: weights_ are those of the whole row, by id.
void RowSamplerV2::rank_whole_row() {
  const int64_t guess = std::min({arguments_.top_k_guess, kMaximumTopK, vocab_size_});
  double sum = 0.0;
  if (guess > 0) {
    order_first(guess);
    for (int64_t rank = 0; rank < guess; ++rank) {
      sum += static_cast<double>(weights_[ranked_id(rank)]);
    }
  }
  int64_t ordered = guess;
  if (guess < 1 || sum < static_cast<double>(arguments_.top_p)) {  // the guess missed
    order_first(vocab_size_);
    ordered = vocab_size_;
  }
  take(nucleus(ordered, false), false);
}

/// The least n whose weights sum to top_p or more; `limit` when that many do not reach it.
int64_t RowSamplerV2::nucleus(int64_t limit, bool by_place) const {
  double sum = 0.0;
  for (int64_t place = 0; place < limit; ++place) {
    sum += static_cast<double>(weights_[by_place ? place : ranked_id(place)]);
    if (sum >= static_cast<double>(arguments_.top_p)) return place + 1;
  }
  return limit;
}

void RowSamplerV2::filter_by_min_p(bool ranked) {
  const float heaviest = *std::max_element(kept_weights_.begin(), kept_weights_.end());
  const double least = static_cast<double>(arguments_.min_p) * static_cast<double>(heaviest);
  const int64_t best = ranked ? kept_ids_[0] : best_id();
  size_t kept = 0;
  for (size_t i = 0; i < kept_ids_.size(); ++i) {
    const bool stays = arguments_.min_p < 1.0f ? static_cast<double>(kept_weights_[i]) >= least
                                               : kept_ids_[i] == best;
    if (!stays) continue;
    kept_ids_[kept] = kept_ids_[i];
    kept_weights_[kept] = kept_weights_[i];
    ++kept;
  }
  kept_ids_.resize(kept);
  kept_weights_.resize(kept);
}

int64_t RowSamplerV2::draw() const {
  size_t best = kept_ids_.size();
  size_t first = kept_ids_.size();
  double best_score = -1.0;
  for (size_t i = 0; i < kept_ids_.size(); ++i) {
    // Weight 0 is not enough to bar it: where the others' weights underflow, a tie at score 0 would
    // draw it.
    if (weighs_nothing(kept_ids_[i])) continue;
    if (first == kept_ids_.size()) first = i;
    const double score = arguments_.score(kept_weights_[i], static_cast<int64_t>(i));
    if (score > best_score) {  // false for NaN, which is never drawn
      best = i;
      best_score = score;
    }
  }
  if (best == kept_ids_.size()) best = first;
  return kept_ids_[best == kept_ids_.size() ? 0 : best];
}

void RowSamplerV2::write_outputs() const {
  const auto kept = static_cast<int64_t>(kept_ids_.size());
  if (arguments_.selected_logits.data != nullptr) {
    const float filler = arguments_.input_is_logits ? kMinusInfinity : 0.0f;
    for (int64_t id = 0; id < vocab_size_; ++id) arguments_.selected_logits[id] = filler;
    for (int64_t id : kept_ids_) arguments_.selected_logits[id] = values_[id];
  }
  if (arguments_.dense_ids.data == nullptr) return;
  for (int64_t i = 0; i < vocab_size_; ++i) {
    arguments_.dense_weights[i] = i < kept ? kept_weights_[static_cast<size_t>(i)] : 0.0f;
    if (i < kept) arguments_.dense_ids[i] = kept_ids_[static_cast<size_t>(i)];
  }
}

}  // namespace hostcann::opapi
