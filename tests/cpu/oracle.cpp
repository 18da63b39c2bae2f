#include "oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

namespace ascend_sample::cpu::testing {
namespace {

constexpr double kCutTolerance = 2e-5;
constexpr double kDrawTolerance = 1e-5;
constexpr double kMinPTolerance = 1e-5;
constexpr double kWeightTolerance = 1e-5;
// Of a probability of a distribution, relative: two exponentials of 2e-7, the weight's and those of
// the sum; 31 additions in float32; the sum as float32; the quotient.
constexpr double kShareTolerance = 2 * 2e-7 + 33 * 0x1p-24;
// More for each nat below the maximum: the difference, and its product with log2(e), are rounded to
// float32, as log2(e) is, which is off by a quarter of 2^-24.
constexpr double kDepthTolerance = 2.25 * 0x1p-24;
constexpr double kMostDepth = 87;  // in nats; what is further below weighs the same
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

/// Whether a value is so coarse that every sum of probabilities like it is exact in float64.
bool is_coarse(double value) {
  return std::nearbyint(value * 0x1p20) == value * 0x1p20 && value <= 1;
}

bool same_bits(float one, float other) {
  return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

double as_float32(double value) {
  return value > std::numeric_limits<float>::max() ? kInfinity : value;
}

}  // namespace

Row::Row(const Batch& batch, int64_t row)
    : k(batch.k[row * batch.k_stride]),
      p(batch.p == nullptr ? 0.0F : load(batch.type, batch.p, row * batch.p_stride)),
      has_q(batch.q != nullptr),
      eps(batch.eps),
      is_second(batch.is_second),
      most_k(batch.is_second ? batch.most_k : kMaxTopK),
      min_p(batch.min_p == nullptr ? 0.0F
                                   : load(batch.type, batch.min_p, row * batch.min_p_stride)),
      are_probabilities(batch.are_probabilities),
      is_need_sample_result(batch.dense_weights != nullptr) {
  for (int64_t id = 0; id < batch.vocab_size; ++id) {
    const float value = load(batch.type, batch.logits,
                             row * batch.logits_row_stride + id * batch.logits_column_stride);
    const bool has_none = std::isnan(value) || (are_probabilities && value <= 0.0F);
    logits.push_back(has_none ? nothing() : value);
    if (has_q) {
      q.push_back(batch.q[row * batch.q_row_stride + id * batch.q_column_stride]);
    }
    status = std::isnan(value)                                     ? RowStatus::kNanSeen
             : value == kInfinity && status != RowStatus::kNanSeen ? RowStatus::kInfinitySeen
                                                                   : status;
  }
  const float maximum = *std::max_element(logits.begin(), logits.end());
  if (status == RowStatus::kOk && maximum == -kInfinity) {
    status = RowStatus::kAllMasked;
  }
  is_request = batch.sampling != nullptr || batch.filtering != nullptr;
  if (is_request) {
    is_second = true;
    eps = 0.0F;
  }
  if (batch.sampling != nullptr) {
    become_draw(*batch.sampling, row);
  }
  if (batch.filtering != nullptr) {
    become_distribution(*batch.filtering, row);
  }
}

bool Row::uses_k() const {
  return k >= 1 && k <= std::min(static_cast<int64_t>(logits.size()), most_k);
}

void Row::become_draw(const Sampling& sampling, int64_t row) {
  p = sampling.p[row];
  min_p = sampling.min_p[row];
  const float temperature = sampling.temperature[row];
  has_q = temperature > 0.0F && k != 1;
  is_greedy = !has_q;
  if (is_greedy) {
    return;
  }
  // The noise has tests of its own (tests/sampling).
  q.resize(logits.size());
  exponential_noise(Capability::kPlain,
                    {sampling.seed[row], sampling.position[row], sampling.stream}, 0, q.size(),
                    q.data());
  if (uses_k()) {  // by the logits, also where division makes some equal
    order = logits;
  }
  divide(temperature);
}

void Row::become_distribution(const Filtering& filtering, int64_t row) {
  wants_distribution = true;
  status = RowStatus::kOk;
  p = filtering.p[row];
  min_p = filtering.min_p[row];
  const float temperature = filtering.temperature[row];
  is_greedy = !(temperature > 0.0F);
  if (is_greedy) {
    k = 1;
  } else {
    divide(temperature);
  }
}

void Row::divide(float temperature) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  is_divided = temperature != 1.0F && !std::isinf(maximum);
  for (float& logit : logits) {
    if (is_divided) {
      const float difference = logit - maximum;
      const float quotient = difference / temperature;
      logit = std::isnan(quotient) ? -kInfinity : quotient;  // -inf / inf
    }
  }
}

float Row::nothing() const { return are_probabilities ? 0.0F : -kInfinity; }

Oracle::Oracle(const Row& row) : row_(row) {
  uses_p_ = row.p > 0.0F && row.p < 1.0F;
  keeps_one_ = row.is_second && row.p <= 0.0F;
  branch_ = row.uses_k() ? 'A' : uses_p_ || keeps_one_ ? 'B' : 'C';
  scenario_ = std::string(1, branch_) + (uses_p_ ? "p" : "") + (row.min_p > 0.0F ? "m" : "");
  scenario_ = (row.is_second ? "2:" : "") + (keeps_one_ ? "1" : scenario_) + (row.has_q ? "q" : "");
  if (row.is_request) {
    scenario_ = (row.wants_distribution ? "f:" : "r:") +
                (row.is_greedy ? "g" : scenario_.substr(2)) + (row.is_divided ? "t" : "");
  }
  scenario_ += row.is_need_sample_result ? "/dense" : "";
  scenario_ += row.are_probabilities ? "/prob" : "";
  order_candidates();
  weigh();
  cut_ = {ids_.size(), ids_.size(), ids_.size()};
  cut_at_p();
  cut_at_min_p();

  if (!row.has_q) {
    selected_ = ids_[0];
    return;
  }
  const auto all = scores(cut_.strict);
  const auto best = std::max_element(
      all.begin(), all.end(), [](Score one, Score other) { return one.nominal < other.nominal; });
  selected_ = ids_[places(cut_.strict)[static_cast<size_t>(best - all.begin())]];
}

void Oracle::order_candidates() {
  ids_.resize(row_.logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  const std::vector<float>& order = row_.order.empty() ? row_.logits : row_.order;
  std::stable_sort(ids_.begin(), ids_.end(), [&order](int64_t one, int64_t other) {
    return order[static_cast<size_t>(one)] > order[static_cast<size_t>(other)];
  });
  maximum_ = value(0);
  if (branch_ == 'A') {
    ids_.resize(static_cast<size_t>(row_.k));
  }
}

/// The first softmax, which probabilities have had already.
void Oracle::weigh() {
  const bool is_softmax = !row_.are_probabilities || maximum_ == kInfinity;
  double total = 0;
  for (size_t rank = 0; rank < ids_.size(); ++rank) {
    probabilities_.push_back(is_softmax ? exponential(value(rank), maximum_) : double{value(rank)});
    total += probabilities_.back();
  }
  has_exact_sums_ = is_softmax
                        ? has_exact_sums(probabilities_)
                        : std::all_of(probabilities_.begin(), probabilities_.end(), is_coarse);
  for (double& probability : probabilities_) {
    probability = is_softmax && total != 0 ? probability / total : probability;
  }
}

/// The number of entries that p leaves.
void Oracle::cut_at_p() {
  if (keeps_one_) {
    cut_ = {1, 1, 1};
    return;
  }
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
  // Sizes of float32: what a weight is, and what it may be off by where it is that small.
  const bool is_exact = row_.are_probabilities;
  const double tolerance = is_exact ? 0 : kMinPTolerance;
  const double unit = is_exact ? 0 : kLeastFloat;
  const double least = row_.min_p * double{static_cast<float>(probabilities_[0])};
  const auto count_of = [this](auto stays) {
    size_t count = 1;  // the largest weight stays
    while (count < ids_.size() && (value(count) == maximum_ || stays(probabilities_[count]))) {
      ++count;
    }
    return count;
  };
  const auto stays_surely = [&](double weight) { return weight - unit >= least * (1 + tolerance); };
  const auto stays = [&](double weight) { return double{static_cast<float>(weight)} >= least; };
  const auto may_stay = [&](double weight) { return weight + unit >= least * (1 - tolerance); };
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

/// Whether a candidate may be drawn from the first `count`: none surely has a higher score, and
/// none before it surely has the same.
bool Oracle::wins(size_t rank, size_t count) const {
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

bool Oracle::wins_by_some_cut(size_t rank, const Cut& cut) const {
  const size_t first = std::max(cut.least, rank + 1);
  if (branch_ != 'C') {  // a larger cut only adds rivals: the smallest is the kindest
    return wins(rank, first);
  }
  for (size_t count = first; count <= cut.most; ++count) {  // each gives q to other entries
    const bool is_between_equals = count < ids_.size() && value(count) == value(count - 1);
    if (!is_between_equals && wins(rank, count)) {
      return true;
    }
  }
  return false;
}

std::vector<float> Oracle::kept() const {
  std::vector<float> result(row_.logits.size(), row_.nothing());
  for (size_t rank = 0; rank < cut_.strict; ++rank) {
    result[static_cast<size_t>(ids_[rank])] = value(rank);
  }
  return result;
}

std::vector<float> Oracle::distribution() const {
  if (maximum_ == -kInfinity) {
    return std::vector<float>(row_.logits.size(), std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<float> result;
  for (const Share& share : shares(cut_.strict)) {
    result.push_back(static_cast<float>(share.probability));
  }
  return result;
}

std::vector<float> Oracle::dense_weights() const {
  std::vector<float> result;
  for (const size_t rank : places(cut_.strict)) {
    result.push_back(static_cast<float>(probabilities_[rank]));
  }
  result.resize(row_.logits.size());
  return result;
}

std::vector<int64_t> Oracle::dense_ids() const {
  std::vector<int64_t> result;
  for (const size_t rank : places(cut_.strict)) {
    result.push_back(ids_[rank]);
  }
  result.resize(row_.logits.size());
  return result;
}

/// Narrows the cut to what a sample result shows; says what is wrong with it, or nothing.
std::string Oracle::narrow(const float* dense_weights, const int64_t* dense_ids, Cut& cut) const {
  const auto size = static_cast<std::ptrdiff_t>(row_.logits.size());
  const auto shown = static_cast<size_t>(
      std::count_if(dense_weights, dense_weights + size, [](float weight) { return weight != 0; }));
  // Weights of 0 do not show.
  const size_t count = std::clamp(shown, cut.least, cut.most);
  const auto ranks = places(count);
  for (size_t place = 0; place < row_.logits.size(); ++place) {
    const std::string at = "at place " + std::to_string(place) + " of the sample result ";
    const double weight = place < count ? probabilities_[ranks[place]] : 0.0;
    const double off = row_.are_probabilities && maximum_ != kInfinity
                           ? 0.0
                           : weight * kWeightTolerance + (weight > 0 ? kLeastFloat : 0.0);
    if (!(std::fabs(dense_weights[place] - weight) <= off) || std::signbit(dense_weights[place])) {
      return at + "is the weight " + std::to_string(dense_weights[place]) + ", not " +
             std::to_string(weight);
    }
    if (place < count && dense_ids[place] != ids_[ranks[place]]) {
      return at + "is id " + std::to_string(dense_ids[place]) + ", not " +
             std::to_string(ids_[ranks[place]]);
    }
  }
  cut.least = count;
  if (count < cut.most && probabilities_[count] > 2 * kLeastFloat) {
    cut.most = count;
  }
  return "";
}

/// Narrows the cut to what a row of kept logits shows; says what is wrong with it, or nothing.
std::string Oracle::narrow(const float* kept, Cut& cut) const {
  size_t shown = 0;
  for (size_t id = 0; id < row_.logits.size(); ++id) {
    const bool is_shown = kept[id] != row_.nothing();
    shown += is_shown;
    const float right = is_shown ? row_.logits[id] : row_.nothing();
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
    if (is_visible && visible < shown && kept[ids_[rank]] == row_.nothing()) {
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

Verdict Oracle::judge(int64_t selected, const float* kept, const float* dense_weights,
                      const int64_t* dense_ids) const {
  if (selected < 0 || selected >= static_cast<int64_t>(row_.logits.size())) {
    return {Kind::kFailed, "id " + std::to_string(selected) + " is outside the vocabulary"};
  }
  Cut cut = cut_;
  if (kept != nullptr) {
    if (auto problem = narrow(kept, cut); !problem.empty()) {
      return {Kind::kFailed, problem};
    }
  }
  if (dense_weights != nullptr) {
    if (auto problem = narrow(dense_weights, dense_ids, cut); !problem.empty()) {
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
    return {is_tie(selected) ? Kind::kTie : Kind::kNearDraw, ids};
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
