#include "oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace ascend_sample::cpu::testing {
namespace {

constexpr double kCutTolerance = 2e-5;
constexpr double kDrawTolerance = 1e-5;
constexpr double kMinPTolerance = 1e-5;
// Of a probability of a distribution, relative: two exponentials of 2e-7, the weight's and those of
// the sum; 31 additions in float32; the sum as float32; the quotient.
constexpr double kShareTolerance = 2 * 2e-7 + 33 * 0x1p-24;
// More for each nat below the maximum: the difference, and its product with log2(e), are rounded to
// float32, as log2(e) is, which is off by a quarter of 2^-24.
constexpr double kDepthTolerance = 2.25 * 0x1p-24;
constexpr double kMostDepth = 87;  // in nats; what is further below weighs the same
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLeastFloat = 0x1p-149;

/// exp(value - maximum), where entries of +inf share the whole mass (section 5).
double exponential(float value, float maximum) {
  if (value == -kInfinity) {
    return 0.0;
  }
  if (maximum == kInfinity) {
    return value == kInfinity ? 1.0 : 0.0;
  }
  return std::exp(static_cast<double>(value) - maximum);
}

/// Whether every cumulative sum is exact in binary: 2^m equal weights and nothing else.
bool has_exact_sums(const std::vector<double>& probabilities) {
  size_t count = 0;
  for (const double probability : probabilities) {
    if (probability != 0 && probability != probabilities[0]) {
      return false;
    }
    count += probability != 0;
  }
  return std::has_single_bit(count);
}

double as_float32(double value) {
  return value > std::numeric_limits<float>::max() ? kInfinity : value;
}

}  // namespace

Oracle::Oracle(const Row& row) : row_(row) {
  uses_p_ = row.p > 0.0F && row.p < 1.0F;
  keeps_one_ = row.is_second && row.p <= 0.0F;
  branch_ = row.uses_k() ? 'A' : uses_p_ || keeps_one_ ? 'B' : 'C';
  scenario_ = std::string(1, branch_) + (uses_p_ ? "p" : "") + (row.min_p > 0.0F ? "m" : "");
  scenario_ = (row.is_second ? "2:" : "") + (keeps_one_ ? "1" : scenario_) + (row.has_q ? "q" : "");
  if (row.is_request) {
    scenario_ = (row.wants_distribution ? "f:" : "r:") +
                (row.is_greedy ? "g" : scenario_.substr(2)) + (row.is_divided ? "t" : "") +
                (row.is_edited ? "/edits" : "");
  }
  order_candidates();
  weigh();
  cut_ = {ids_.size(), ids_.size(), ids_.size()};
  cut_at_p();
  cut_at_min_p();

  if (!row.has_q) {
    selected_ = ids_[0];
    return;
  }
  selected_ = draw(cut_.strict);
}

/// What is drawn from the first `count` candidates.
int64_t Oracle::draw(size_t count) const {
  if (row_.is_segmented) {
    return draw_by_segments(count);
  }
  const auto all = scores(count);
  const auto best = std::max_element(
      all.begin(), all.end(), [](Score one, Score other) { return one.nominal < other.nominal; });
  return ids_[places(count)[static_cast<size_t>(best - all.begin())]];
}

void Oracle::order_candidates() {
  ids_.resize(row_.logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  const std::vector<float>& order = row_.order.empty() ? row_.logits : row_.order;
  std::stable_sort(ids_.begin(), ids_.end(), [&order](int64_t one, int64_t other) {
    return order[static_cast<size_t>(one)] > order[static_cast<size_t>(other)];
  });
  maximum_ = value(0);
  if (keeps_one_) {
    ids_.resize(1);
  } else if (branch_ == 'A') {
    ids_.resize(static_cast<size_t>(row_.k));
  }
}

/// The first softmax.
void Oracle::weigh() {
  double total = 0;
  for (size_t rank = 0; rank < ids_.size(); ++rank) {
    probabilities_.push_back(exponential(value(rank), maximum_));
    total += probabilities_.back();
  }
  has_exact_sums_ = has_exact_sums(probabilities_);
  for (double& probability : probabilities_) {
    probability = total != 0 ? probability / total : probability;
  }
}

/// The number of entries that p leaves.
void Oracle::cut_at_p() {
  if (!uses_p_ || probabilities_[0] == 0) {  // where nothing has a weight, no sum gets to p
    return;
  }
  const double tolerance = has_exact_sums_ ? 0 : kCutTolerance;
  const auto count_for = [this](double p) {
    double sum = 0;
    size_t count = 0;
    while (count < probabilities_.size()) {
      sum += probabilities_[count++];
      if (row_.is_second && !row_.is_request ? sum >= p : sum > p) {
        break;
      }
    }
    return count;
  };
  cut_ = {count_for(row_.p - tolerance), count_for(row_.p), count_for(row_.p + tolerance)};
}

/// The number of entries that min-p leaves of those.
void Oracle::cut_at_min_p() {
  if (!(row_.min_p > 0.0F)) {
    return;
  }
  if (row_.min_p >= 1.0F) {
    cut_ = {1, 1, 1};
    return;
  }
  const double least = row_.min_p * double{static_cast<float>(probabilities_[0])};
  const auto count_of = [this](auto stays) {
    size_t count = 1;  // the largest weight stays
    while (count < ids_.size() && (value(count) == maximum_ || stays(probabilities_[count]))) {
      ++count;
    }
    return count;
  };
  const auto stays_surely = [&](double weight) {
    return weight - kLeastFloat >= least * (1 + kMinPTolerance);
  };
  const auto stays = [&](double weight) { return double{static_cast<float>(weight)} >= least; };
  const auto may_stay = [&](double weight) {
    return weight + kLeastFloat >= least * (1 - kMinPTolerance);
  };
  cut_ = {std::min(cut_.least, count_of(stays_surely)), std::min(cut_.strict, count_of(stays)),
          std::min(cut_.most, count_of(may_stay))};
}

/// The ranks of the first `count` candidates in the order in which q belongs to them: by id where
/// nothing was sorted (section 4).
std::vector<size_t> Oracle::places(size_t count) const {
  std::vector<size_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  if (branch_ == 'C') {
    std::sort(ranks.begin(), ranks.end(),
              [this](size_t one, size_t other) { return ids_[one] < ids_[other]; });
  }
  return ranks;
}

/// The weights of the first `count` candidates in the draw, by rank.
std::vector<double> Oracle::weights(size_t count) const {
  if (row_.is_second) {
    return {probabilities_.begin(), probabilities_.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<double> result;
  double total = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    double weight = exponential(value(rank), maximum_);
    if (branch_ == 'B') {  // the second softmax; what section 5 gives no mass gets none here either
      weight = has_mass(rank) ? std::exp(probabilities_[rank] - probabilities_[0]) : 0.0;
    }
    result.push_back(weight);
    total += weight;
  }
  if (total > 0) {
    for (double& weight : result) {
      weight /= total;
    }
  }
  return result;
}

/// The sums of the weights of the first `count` candidates, by segment: docs/seeds.md, "Lanes".
std::vector<double> Oracle::segment_weights(size_t count) const {
  std::vector<double> sums(row_.q.size() - 256);
  for (size_t rank = 0; rank < count; ++rank) {
    sums[static_cast<size_t>(ids_[rank] / 256)] += has_mass(rank) ? probabilities_[rank] : 0.0;
  }
  return sums;
}

int64_t Oracle::draw_by_segments(size_t count) const {
  const auto sums = segment_weights(count);
  size_t segment = 0;
  for (size_t other = 1; other < sums.size(); ++other) {
    const bool is_better =
        sums[other] / row_.q[256 + other] > sums[segment] / row_.q[256 + segment];
    segment = is_better ? other : segment;
  }
  int64_t drawn = 0;
  double best = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    const int64_t id = ids_[rank];
    if (static_cast<size_t>(id / 256) != segment || !has_mass(rank)) {
      continue;
    }
    const double score = probabilities_[rank] / row_.q[static_cast<size_t>(id % 256)];
    if (score > best || (score == best && id < drawn)) {
      drawn = id;
      best = score;
    }
  }
  return drawn;
}

/// The distribution, by id, where the first `count` candidates are kept.
std::vector<Oracle::Share> Oracle::shares(size_t count) const {
  std::vector<double> weights(count);
  std::vector<double> depths(count);
  double total = 0;
  double total_depth = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    if (has_mass(rank)) {
      const bool is_infinite = value(rank) == kInfinity;
      depths[rank] = is_infinite ? 0 : std::min(double{maximum_} - value(rank), kMostDepth);
      weights[rank] = std::exp(-depths[rank]);
      total += weights[rank];
      total_depth += weights[rank] * depths[rank];
    }
  }
  std::vector<Share> result(row_.logits.size());
  for (size_t rank = 0; rank < count; ++rank) {
    if (has_mass(rank)) {
      const double probability = weights[rank] / total;
      const double depth = depths[rank] + total_depth / total;  // its own, and what the sum is off
      result[static_cast<size_t>(ids_[rank])] = {
          probability, probability * (kShareTolerance + kDepthTolerance * depth) + kLeastFloat};
    }
  }
  return result;
}

/// By place.
std::vector<Oracle::Score> Oracle::scores(size_t count) const {
  std::vector<Score> result;
  const auto all = weights(count);
  for (const size_t rank : places(count)) {
    result.push_back(score(all[rank], rank, result.size()));
  }
  return result;
}

Oracle::Score Oracle::score(double weight, size_t rank, size_t place) const {
  if (!has_weight(rank)) {
    return {-kInfinity, -kInfinity, -kInfinity};
  }
  const float q = row_.q[place];
  if (std::isnan(q)) {
    return {-1.0F, -1.0, -1.0};
  }
  const float divisor = std::fabs(q) + row_.eps;
  const auto rounded = static_cast<float>(weight);
  const float nominal = rounded == 0.0F ? 0.0F : rounded / divisor;
  // A denormal weight or quotient is good to one unit only, however small that makes its tolerance.
  const bool vanishes = weight < kLeastFloat / 8;
  const double low_weight = std::max(0.0, weight * (1 - kDrawTolerance / 2) - kLeastFloat);
  const double high_weight = vanishes ? 0.0 : weight * (1 + kDrawTolerance / 2) + kLeastFloat;
  const double low = low_weight == 0 ? 0.0 : low_weight / divisor - kLeastFloat;
  const double high = high_weight == 0 ? 0.0 : high_weight / divisor + kLeastFloat;
  const bool is_certain = vanishes || std::isinf(divisor);
  return {nominal, is_certain ? 0.0 : std::max(0.0, as_float32(low)),
          is_certain ? 0.0 : as_float32(high)};
}

}  // namespace ascend_sample::cpu::testing
