#include "oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace ascend_sample::cpu::testing {
namespace {

constexpr double kCutTolerance = 2e-5;
constexpr double kDrawTolerance = 1e-5;
constexpr int64_t kMaxTopK = 1024;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLeastFloat = 0x1p-149;

/// IEEE binary16, by its definition.
float half_to_float(uint16_t bits) {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  if (exponent == 0x1F) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * kInfinity;
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(mantissa), -24);
  }
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float load(LogitsType type, const void* data, int64_t index) {
  if (type == LogitsType::kFloat32) {
    return static_cast<const float*>(data)[index];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == LogitsType::kFloat16 ? half_to_float(bits)
                                      : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

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

bool same_bits(float one, float other) {
  return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
}

double as_float32(double value) {
  return value > std::numeric_limits<float>::max() ? kInfinity : value;
}

}  // namespace

Row::Row(const Batch& batch, int64_t row)
    : k(batch.k[row * batch.k_stride]),
      p(load(batch.type, batch.p, row * batch.p_stride)),
      has_q(batch.q != nullptr),
      eps(batch.eps) {
  for (int64_t id = 0; id < batch.vocab_size; ++id) {
    const float value = load(batch.type, batch.logits,
                             row * batch.logits_row_stride + id * batch.logits_column_stride);
    logits.push_back(std::isnan(value) ? -kInfinity : value);
    if (has_q) {
      q.push_back(batch.q[row * batch.q_row_stride + id * batch.q_column_stride]);
    }
  }
}

Oracle::Oracle(const Row& row) : row_(row) {
  const auto vocab_size = static_cast<int64_t>(row.logits.size());
  const bool uses_k = row.k >= 1 && row.k <= std::min(vocab_size, kMaxTopK);
  uses_p_ = row.p > 0.0F && row.p < 1.0F;
  branch_ = uses_k ? 'A' : uses_p_ ? 'B' : 'C';
  scenario_ = std::string(1, branch_) + (uses_p_ ? "p" : "") + (row.has_q ? "q" : "");
  maximum_ = *std::max_element(row.logits.begin(), row.logits.end());
  ids_.resize(row.logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  if (branch_ != 'C') {
    order_candidates();
  }
  cut_ = {ids_.size(), ids_.size(), ids_.size()};
  cut_at_p();

  if (!row.has_q) {
    selected_ = branch_ == 'C'
                    ? std::max_element(row.logits.begin(), row.logits.end()) - row.logits.begin()
                    : ids_[0];
    return;
  }
  const auto all = scores(cut_.strict);
  const auto best = std::max_element(
      all.begin(), all.end(), [](Score one, Score other) { return one.nominal < other.nominal; });
  selected_ = ids_[static_cast<size_t>(best - all.begin())];
}

void Oracle::order_candidates() {
  std::stable_sort(ids_.begin(), ids_.end(), [this](int64_t one, int64_t other) {
    return row_.logits[static_cast<size_t>(one)] > row_.logits[static_cast<size_t>(other)];
  });
  if (branch_ == 'A') {
    ids_.resize(static_cast<size_t>(row_.k));
  }
}

/// The first softmax and the number of entries that it leaves.
void Oracle::cut_at_p() {
  double total = 0;
  for (const int64_t id : ids_) {
    probabilities_.push_back(exponential(row_.logits[static_cast<size_t>(id)], maximum_));
    total += probabilities_.back();
  }
  if (total == 0) {  // a row of -inf: no sum exceeds p
    return;
  }
  const bool exact = has_exact_sums(probabilities_);
  for (double& probability : probabilities_) {
    probability /= total;
  }
  if (!uses_p_) {
    return;
  }
  const double tolerance = exact ? 0 : kCutTolerance;
  const auto until_exceeding = [this](double p) {
    double sum = 0;
    size_t count = 0;
    while (count < probabilities_.size()) {
      sum += probabilities_[count++];
      if (sum > p) {
        break;
      }
    }
    return count;
  };
  cut_ = {until_exceeding(row_.p - tolerance), until_exceeding(row_.p),
          until_exceeding(row_.p + tolerance)};
}

/// The weights of the first `count` candidates in the draw.
std::vector<double> Oracle::weights(size_t count) const {
  std::vector<double> result;
  double total = 0;
  for (size_t place = 0; place < count; ++place) {
    const float value = row_.logits[static_cast<size_t>(ids_[place])];
    double weight = exponential(value, maximum_);
    if (branch_ == 'B') {  // the second softmax; what section 5 gives no mass gets none here either
      const bool has_mass = value != -kInfinity && (maximum_ != kInfinity || value == kInfinity);
      weight = has_mass ? std::exp(probabilities_[place] - probabilities_[0]) : 0.0;
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

std::vector<Oracle::Score> Oracle::scores(size_t count) const {
  std::vector<Score> result;
  const auto all = weights(count);
  for (size_t place = 0; place < count; ++place) {
    result.push_back(score(all[place], place));
  }
  return result;
}

Oracle::Score Oracle::score(double weight, size_t place) const {
  const float value = row_.logits[static_cast<size_t>(ids_[place])];
  if (value == -kInfinity) {
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

/// Whether a candidate may be drawn from the first `count`: none surely has a higher score, and
/// none before it surely has the same.
bool Oracle::wins(size_t place, size_t count) const {
  const auto all = scores(count);
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

std::vector<float> Oracle::kept() const {
  std::vector<float> result(row_.logits.size(), -kInfinity);
  for (size_t place = 0; place < cut_.strict; ++place) {
    const auto id = static_cast<size_t>(ids_[place]);
    result[id] = row_.logits[id];
  }
  return result;
}

/// Narrows the cut to what a row of kept logits shows; says what is wrong with it, or nothing.
std::string Oracle::narrow(const float* kept, Cut& cut) const {
  size_t shown = 0;
  for (size_t id = 0; id < row_.logits.size(); ++id) {
    if (kept[id] != -kInfinity) {
      ++shown;
      if (!same_bits(kept[id], row_.logits[id])) {
        return "the kept logit of id " + std::to_string(id) + " is " + std::to_string(kept[id]) +
               ", not " + std::to_string(row_.logits[id]);
      }
    }
  }
  // Entries of -inf do not show: where every other one is kept, any number of them may be kept too.
  size_t visible = 0;
  for (const int64_t id : ids_) {
    const bool is_visible = row_.logits[static_cast<size_t>(id)] != -kInfinity;
    if (is_visible && visible < shown && kept[id] == -kInfinity) {
      return "id " + std::to_string(id) + " is not kept, against the order, while " +
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
  const auto found = std::find(ids_.begin(), ids_.end(), selected);
  const auto place = static_cast<size_t>(found - ids_.begin());
  const auto best =
      static_cast<size_t>(std::find(ids_.begin(), ids_.end(), selected_) - ids_.begin());
  const std::string ids = "id " + std::to_string(selected) + ", not " + std::to_string(selected_);
  if (!row_.has_q) {  // the best logit, whatever the cut
    return selected == selected_ ? Verdict{Kind::kNearBoundary, "another number is kept"}
                                 : Verdict{Kind::kFailed, ids + ", is the best logit"};
  }
  if (place >= cut.most) {
    return {Kind::kFailed, ids + ": it cannot be among those kept"};
  }
  if (!shows_other_cut && place < cut_.strict && wins(place, cut_.strict)) {
    const bool is_tie =
        row_.logits[static_cast<size_t>(selected)] == row_.logits[static_cast<size_t>(selected_)] &&
        row_.q[place] == row_.q[best];
    return {is_tie ? Kind::kTie : Kind::kNearDraw, ids};
  }
  // A larger cut only adds rivals, so the smallest one that holds the place is the kindest to it.
  if (wins(place, std::max(cut.least, place + 1))) {
    return {Kind::kNearBoundary, ids};
  }
  return {Kind::kFailed, ids + ": its score is too low"};
}

}  // namespace ascend_sample::cpu::testing
