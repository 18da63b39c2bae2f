// The oracle's judgement of results: docs/semantics.md, section 7.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "oracle.h"

namespace ascend_sample::cpu::testing {
namespace {

constexpr double kWeightTolerance = 1e-5;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLeastFloat = 0x1p-149;

bool same_bits(float one, float other) {
  return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

}  // namespace

/// Whether a candidate may be drawn from the first `count`: none surely has a higher score, and
/// none before it surely has the same.
bool Oracle::wins(size_t rank, size_t count) const {
  if (row_.is_segmented) {
    return wins_by_segments(rank, count);
  }
  const auto all = scores(count);
  const auto ranks = places(count);
  const auto place =
      static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const Score& own = all[place];
  for (size_t other = 0; other < count; ++other) {
    const bool is_higher = all[other].low > own.high;
    const bool is_equal_and_first =
        other < place && all[other].low == all[other].high && all[other].low >= own.high;
    if (is_higher || is_equal_and_first) {
      return false;
    }
  }
  return true;
}

/// The same of both races: no other segment, and no other place, surely has a higher score.
bool Oracle::wins_by_segments(size_t rank, size_t count) const {
  const auto is_beaten = [](double own, double own_noise, double other, double noise) {
    return other * (1 - kWeightTolerance / 2) / noise >
           own * (1 + kWeightTolerance / 2) / own_noise;
  };
  const auto sums = segment_weights(count);
  const auto segment = static_cast<size_t>(ids_[rank] / 256);
  for (size_t other = 0; other < sums.size(); ++other) {
    if (is_beaten(sums[segment], row_.q[256 + segment], sums[other], row_.q[256 + other])) {
      return false;
    }
  }
  const auto noise_of = [this](size_t each) {
    return row_.q[static_cast<size_t>(ids_[each] % 256)];
  };
  for (size_t other = 0; other < count; ++other) {
    if (static_cast<size_t>(ids_[other] / 256) == segment && has_mass(other) &&
        is_beaten(probabilities_[rank], noise_of(rank), probabilities_[other], noise_of(other))) {
      return false;
    }
  }
  return has_mass(rank);
}

/// Whether that holds for some number of kept entries that the cut allows, and that leaves `rank`.
template <typename Holds>
bool Oracle::holds_for_some_cut(size_t rank, const Cut& cut, Holds holds) const {
  for (size_t count = std::max(cut.least, rank + 1); count <= cut.most; ++count) {
    const bool is_between_equals =
        branch_ == 'C' && count < ids_.size() && value(count) == value(count - 1);
    if (!is_between_equals && holds(count)) {
      return true;
    }
  }
  return false;
}

bool Oracle::wins_by_some_cut(size_t rank, const Cut& cut) const {
  if (branch_ != 'C' && !row_.is_segmented) {
    // A larger cut only adds rivals: the smallest is the kindest.
    return wins(rank, std::max(cut.least, rank + 1));
  }
  // Each gives q to other entries, or adds to a segment.
  return holds_for_some_cut(rank, cut, [&](size_t count) { return wins(rank, count); });
}

/// Narrows the cut to what a row of kept logits shows; says what is wrong with it, or nothing.
std::string Oracle::narrow(const float* kept, Cut& cut) const {
  size_t shown = 0;
  for (size_t id = 0; id < row_.logits.size(); ++id) {
    const bool is_shown = kept[id] != -kInfinity;
    shown += is_shown;
    const float right = is_shown ? row_.logits[id] : -kInfinity;
    if (!same_bits(kept[id], right)) {
      return "the kept logit of id " + std::to_string(id) + " is " + std::to_string(kept[id]) +
             ", not " + std::to_string(right);
    }
  }
  // Entries without weight do not show: where every other one is kept, any number of them may be
  // kept too.
  size_t visible = 0;
  for (size_t rank = 0; rank < ids_.size(); ++rank) {
    const bool is_visible = has_weight(rank);
    if (is_visible && visible < shown && kept[ids_[rank]] == -kInfinity) {
      return "id " + std::to_string(ids_[rank]) + " is not kept, against the order, while " +
             std::to_string(shown) + " are";
    }
    visible += is_visible;
  }
  if (shown > visible) {
    return std::to_string(shown) + " entries are kept, of " + std::to_string(visible);
  }
  const size_t most = shown == visible ? ids_.size() : shown;
  if (most < cut.least || shown > cut.most) {
    return std::to_string(shown) + " entries are kept, not " + std::to_string(cut.least) + " to " +
           std::to_string(cut.most);
  }
  cut.least = std::max(cut.least, shown);
  cut.most = std::min(cut.most, most);
  return "";
}

Verdict Oracle::judge(int64_t selected, const float* kept) const {
  if (selected < 0 || selected >= static_cast<int64_t>(row_.logits.size())) {
    return {Kind::kFailed, "id " + std::to_string(selected) + " is outside the vocabulary"};
  }
  Cut cut = cut_;
  if (kept != nullptr) {
    if (auto problem = narrow(kept, cut); !problem.empty()) {
      return {Kind::kFailed, problem};
    }
  }
  const bool shows_other_cut = cut_.strict < cut.least || cut_.strict > cut.most;
  if (selected == selected_ && !shows_other_cut) {
    return {Kind::kExact, ""};
  }
  const auto rank =
      static_cast<size_t>(std::find(ids_.begin(), ids_.end(), selected) - ids_.begin());
  const std::string ids = "id " + std::to_string(selected) + ", not " + std::to_string(selected_);
  if (!row_.has_q) {  // the best logit, whatever the cut
    return selected == selected_ ? Verdict{Kind::kNearBoundary, "another number is kept"}
                                 : Verdict{Kind::kFailed, ids + ", is the best logit"};
  }
  if (rank >= cut.most) {
    return {Kind::kFailed, ids + ": it cannot be among those kept"};
  }
  if (!shows_other_cut && rank < cut_.strict && wins(rank, cut_.strict)) {
    if (!is_tie(selected)) {
      return {Kind::kNearDraw, ids};
    }
    // What ties here may be the first of the best by another cut, with another's noise.
    const bool is_drawn = holds_for_some_cut(
        rank, cut, [&](size_t count) { return count != cut_.strict && draw(count) == selected; });
    return {is_drawn ? Kind::kNearBoundary : Kind::kTie, ids};
  }
  if (wins_by_some_cut(rank, cut)) {
    return {Kind::kNearBoundary, ids};
  }
  return {Kind::kFailed, ids + ": its score is too low"};
}

Verdict Oracle::judge_distribution(const float* distribution) const {
  const auto wrong = [distribution](size_t id, const std::string& right) {
    return Verdict{Kind::kFailed, "the probability of id " + std::to_string(id) + " is " +
                                      text_of(distribution[id]) + ", not " + right};
  };
  const size_t size = row_.logits.size();
  if (maximum_ == -kInfinity) {
    const float* const number =
        std::find_if_not(distribution, distribution + size, [](float x) { return std::isnan(x); });
    return number == distribution + size ? Verdict{Kind::kExact, ""}
                                         : wrong(static_cast<size_t>(number - distribution), "NaN");
  }
  // No probability with mass is rounded to 0, so the distribution shows what is kept.
  size_t visible = 0;
  while (visible < ids_.size() && has_mass(visible)) {
    ++visible;
  }
  size_t shown = 0;
  while (shown < visible && distribution[ids_[shown]] != 0) {
    ++shown;
  }
  const size_t most = shown == visible ? ids_.size() : shown;  // entries without mass do not show
  if (most < cut_.least || shown > cut_.most) {
    return {Kind::kFailed, std::to_string(shown) + " entries are kept, not " +
                               std::to_string(cut_.least) + " to " + std::to_string(cut_.most)};
  }
  const auto right = shares(shown);
  for (size_t id = 0; id < size; ++id) {
    const bool is_near = std::fabs(distribution[id] - right[id].probability) <= right[id].off;
    if (!is_near || std::signbit(distribution[id])) {
      return wrong(id, text_of(right[id].probability));
    }
  }
  const bool is_strict = shown <= cut_.strict && cut_.strict <= most;
  return is_strict ? Verdict{Kind::kExact, ""}
                   : Verdict{Kind::kNearBoundary, "another number is kept"};
}

/// Whether an id ties with the drawn one: equal logits and equal noise.
bool Oracle::is_tie(int64_t selected) const {
  if (row_.is_segmented) {
    return selected / 256 == selected_ / 256 &&
           row_.logits[static_cast<size_t>(selected)] ==
               row_.logits[static_cast<size_t>(selected_)] &&
           row_.q[static_cast<size_t>(selected % 256)] ==
               row_.q[static_cast<size_t>(selected_ % 256)];
  }
  const auto ranks = places(cut_.strict);
  const auto noise_of = [&](int64_t id) {
    const auto place =
        std::find_if(ranks.begin(), ranks.end(), [&](size_t rank) { return ids_[rank] == id; });
    return row_.q[static_cast<size_t>(place - ranks.begin())];
  };
  return row_.logits[static_cast<size_t>(selected)] ==
             row_.logits[static_cast<size_t>(selected_)] &&
         noise_of(selected) == noise_of(selected_);
}

}  // namespace ascend_sample::cpu::testing
