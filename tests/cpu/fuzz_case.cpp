#include "fuzz_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>

namespace ascend_sample::cpu::testing {
namespace {

using std::numeric_limits;

constexpr float kInfinity = numeric_limits<float>::infinity();
constexpr float kNan = numeric_limits<float>::quiet_NaN();

/// IEEE binary16, rounded to nearest, ties to even: a count of the units that its exponent has.
uint32_t encode_half(float value) {
  const uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const float magnitude = std::fabs(value);
  if (std::isnan(value) || magnitude >= 65520.0F) {
    return sign | (std::isnan(value) ? 0x7E00U : 0x7C00U);
  }
  const int exponent = magnitude == 0.0F ? -14 : std::max(std::ilogb(magnitude), -14);
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units);
}

/// A value in the bits of a type, rounded to nearest, ties to even.
uint32_t encode(LogitsType type, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  switch (type) {
    case LogitsType::kFloat32:
      return bits;
    case LogitsType::kFloat16:
      return encode_half(value);
    case LogitsType::kBFloat16:
      return std::isnan(value) ? 0x7FC0U : (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  }
  std::abort();
}

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  FuzzCase make() {
    FuzzCase made;
    made.type = pick({LogitsType::kFloat32, LogitsType::kFloat16, LogitsType::kBFloat16});
    made.is_second = one_in(2);
    made.are_probabilities = made.is_second && one_in(3);
    const bool is_masked = one_in(8);
    auto values = base(is_masked ? vocab_size_of_masked() : vocab_size());
    if (made.are_probabilities) {
      make_probabilities(values);
    }
    for (int layers = below(3); layers > 0; --layers) {
      overlay(values, made.are_probabilities ? 0.0F : -kInfinity);
    }
    if (is_masked) {
      mask(values);
    }
    for (const float value : values) {
      made.logits.push_back(encode(made.type, value));
    }
    if (one_in(40)) {
      for (uint32_t& bits : made.logits) {  // any bits at all
        bits =
            static_cast<uint32_t>(random_()) & (made.type == LogitsType::kFloat32 ? ~0U : 0xFFFFU);
      }
    }
    const auto size = static_cast<int64_t>(values.size());
    made.k = static_cast<int32_t>(k(size));
    made.p = p(made.type, values.size());
    if (!one_in(4)) {
      made.q = q(values);
    }
    made.eps = pick({1e-8F, 1e-8F, 1e-8F, 0.0F, 0.0F, 1e-3F, 1.0F, 1e30F, 1e-40F});
    made.logits_stride = one_in(5) ? 2 + below(3) : 1;
    made.q_stride = one_in(5) ? 2 + below(3) : 1;
    made.is_need_logits = one_in(2);
    made.placement = pick({Placement::kHeap, Placement::kBeforeGuard, Placement::kBehindGuard});
    made.has_used_scratch = !one_in(3);
    made.history = {static_cast<History::FirstTry>(below(3)), double{uniform()} * 16 - 2};
    if (made.is_second) {
      make_second(made, values);
    }
    if (made.is_second && !made.are_probabilities && one_in(2)) {
      make_request(made, values);
    }
    return made;
  }

 private:
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  bool one_in(int64_t times) { return below(times) == 0; }
  float uniform() { return static_cast<float>(random_() >> 40) * 0x1p-24F; }
  float normal() { return normal_(random_); }
  float exponential() { return -std::log(1 - uniform()); }

  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

  size_t vocab_size() {
    const int64_t kind = below(1000);
    if (kind < 350) {  // around whole vectors and chunks
      const int64_t unit = pick<int64_t>({8, 16, 32, 64, 128, 256, 512, 1024});
      return static_cast<size_t>(std::max<int64_t>(1, unit * (1 + below(4)) + below(5) - 2));
    }
    if (kind < 650) {
      return static_cast<size_t>(1 + below(70));
    }
    if (kind < 980) {
      return static_cast<size_t>(std::exp(uniform() * std::log(3000.0)));
    }
    if (kind < 997) {
      return static_cast<size_t>(8192 * (1 + below(2)) + below(5) - 2);
    }
    return static_cast<size_t>(30000 + below(one_in(10) ? 170000 : 10000));
  }

  /// What most of a row looks like.
  std::vector<float> base(size_t size) {
    std::vector<float> values(size);
    const float scale = pick({0.0F, 1e-6F, 0.01F, 0.1F, 1.0F, 3.0F, 10.0F, 100.0F, 1e4F, 1e30F});
    const float shift = one_in(4) ? pick({-500.0F, -90.0F, 60.0F, 500.0F, 3e4F}) : 0.0F;
    const int64_t steps = pick<int64_t>({2, 3, 7, 100});
    const float step = pick({1e-3F, 0.25F, 1.0F, 30.0F});
    const int64_t family = below(9);
    const int64_t equal = int64_t{1} << below(std::bit_width(size));
    for (size_t id = 0; id < size; ++id) {
      float& value = values[id];
      switch (family) {
        case 0:
        case 1:
        case 2:
          value = normal() * scale;
          break;
        case 3:  // a language model: falls with the logarithm of the rank
          value = 15.0F - 2.0F * std::log(static_cast<float>(id + 1)) + 0.3F * normal();
          break;
        case 4:  // few values
          value = static_cast<float>(below(steps)) * step;
          break;
        case 5:  // two values, one of them rare
          value = one_in(50) ? step : 0.0F;
          break;
        case 6:  // clusters of neighbouring floats
          value = static_cast<float>(below(4)) * step + 1.0F;
          value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) +
                                       static_cast<uint32_t>(below(4)));
          break;
        case 7:  // 2^m equal values, the others without weight: cumulative sums are exact
          value = static_cast<int64_t>(id) < equal ? 2.5F : -1000.0F;
          break;
        case 8:  // subnormals and zeros of both signs
          value = std::ldexp(static_cast<float>(below(17) - 8), -149);
          value = value == 0.0F && one_in(2) ? -0.0F : value;
          break;
      }
      value += family == 8 ? 0.0F : shift;
    }
    if (family == 3 || family == 7) {
      std::shuffle(values.begin(), values.end(), random_);
    }
    return values;
  }

  /// Turns a row into one of probabilities, which need not sum to 1.
  void make_probabilities(std::vector<float>& values) {
    const int64_t family = below(6);
    const int64_t equal = int64_t{1} << below(std::bit_width(values.size()));
    const float maximum = *std::max_element(values.begin(), values.end());
    float sum = 0;
    for (const float value : values) {
      sum += std::exp(value - maximum);
    }
    for (size_t id = 0; id < values.size(); ++id) {
      float& value = values[id];
      switch (family) {
        case 0:
        case 1:  // a softmax
          value = std::exp(value - maximum) / sum;
          break;
        case 2:  // 2^m equal ones
          value = static_cast<int64_t>(id) < equal ? 1.0F / static_cast<float>(equal) : 0.0F;
          break;
        case 3:  // powers of 2: sums and ratios are exact
          value = std::ldexp(1.0F, -1 - static_cast<int>(below(9)));
          break;
        case 4:
          value = uniform();
          break;
        case 5:  // whatever a base is
          break;
      }
    }
    if (family == 2) {
      std::shuffle(values.begin(), values.end(), random_);
    }
  }

  /// What the second operator has more, and what it takes for k and p more often.
  void make_second(FuzzCase& made, const std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    made.most_k = static_cast<int32_t>(pick<int64_t>({1024, 1024, 8, 16, 8 * (1 + below(128))}));
    if (one_in(4)) {
      made.k = made.most_k + static_cast<int32_t>(below(3)) - 1;
    } else if (one_in(3)) {
      made.k = static_cast<int32_t>(1 + below(std::min<int64_t>(size, made.most_k)));
    }
    if (!one_in(4)) {
      made.min_p = min_p(made, values);
    }
    if (one_in(3)) {
      made.is_need_sample_result = true;
      made.q.reset();
    }
  }

  /// What the sampling layer has instead.
  void make_request(FuzzCase& made, const std::vector<float>& values) {
    const auto value_of = [](uint32_t bits) { return std::bit_cast<float>(bits); };
    FuzzCase as_float32 = made;
    as_float32.type = LogitsType::kFloat32;
    const auto numbers = [this] { return static_cast<int64_t>(random_()) >> below(64); };
    made.request =
        FuzzCase::Request{.temperature = temperature(),
                          .p = value_of(p(LogitsType::kFloat32, values.size())),
                          .min_p = one_in(2) ? 0.0F : value_of(min_p(as_float32, values)),
                          .seed = numbers(),
                          .position = numbers(),
                          .stream = static_cast<uint32_t>(random_()),
                          .wants_distribution = one_in(3)};
    made.is_need_logits = made.request->wants_distribution;
    made.is_need_sample_result = false;
    made.min_p.reset();
    made.q.reset();
    made.most_k = kMaxTopK;
  }

  float temperature() {
    switch (below(4)) {
      case 0:
        return 1.0F;
      case 1:
        return pick({0.0F, -0.0F, -1.0F, kNan, kInfinity, 1e-45F, 1e-38F, 3e38F, 1e-6F, 1e6F});
      case 2:  // so that what differs is divided exactly
        return std::ldexp(1.0F, static_cast<int>(below(13)) - 6);
      default:
        return pick({0.1F, 0.3F, 0.7F, 1.7F, 2 * uniform()});
    }
  }

  uint32_t min_p(const FuzzCase& made, const std::vector<float>& values) {
    const LogitsType type = made.type;
    switch (below(8)) {
      case 0:
        return encode(type, pick({0.0F, -0.0F, -0.5F, kNan, 1.0F, 1.5F, kInfinity}));
      case 1:
        return 1U + static_cast<uint32_t>(below(3));  // the least values above 0
      case 2:
        return encode(type, 1.0F) - 1U - static_cast<uint32_t>(below(3));
      case 3:  // as exact as a ratio of probabilities can be
        return encode(type, std::ldexp(1.0F, -1 - static_cast<int>(below(6))));
      case 4:
      case 5: {  // on the weight of an entry
        const float maximum = *std::max_element(values.begin(), values.end());
        const float value = values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
        return encode(type, made.are_probabilities ? value / maximum : std::exp(value - maximum));
      }
      default:
        return encode(type, pick({0.001F, 0.05F, 0.1F, 0.5F, 0.9F, uniform()}));
    }
  }

  /// Something laid over a row; `nothing` is what has no weight.
  void overlay(std::vector<float>& values, float nothing) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t rarity = pick<int64_t>({2, 10, 1000});
    switch (below(10)) {
      case 0:
        strike(values, one_in(5) ? -kInfinity : nothing, rarity);
        break;
      case 1:
        strike(values, kNan, rarity);
        break;
      case 2:
        strike(values, kInfinity, 100 * rarity);
        break;
      case 3:
        strike(values, -0.0F, rarity);
        break;
      case 4:
        strike(values, values[static_cast<size_t>(below(size))],
               rarity);  // ties with a drawn value
        break;
      case 5:
        std::sort(values.begin(), values.end());
        break;
      case 6:
        std::sort(values.begin(), values.end(), std::greater<>());
        break;
      case 7:  // one peak, often at an end of the row
        values[static_cast<size_t>(pick<int64_t>({0, size - 1, below(size)}))] += 20.0F;
        break;
      case 8: {  // all the best in one stretch
        const int64_t start = below(size);
        const int64_t end = std::min(size, start + pick<int64_t>({8, 64, 512, 2000}));
        for (int64_t id = start; id < end; ++id) {
          values[static_cast<size_t>(id)] += 8.0F;
        }
        break;
      }
      case 9:
        std::fill(values.begin(), values.end(), pick({-kInfinity, kInfinity, kNan, 0.0F, 7.0F}));
        break;
    }
  }

  /// Large enough to be looked through for what a mask has left, and mostly no larger.
  size_t vocab_size_of_masked() {
    return static_cast<size_t>(992 + below(one_in(30) ? 40000 : 3000));
  }

  /// What a grammar or min-p does: little is left, in stretches or scattered.
  void mask(std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t chunk = 1024;
    std::vector<bool> stays(values.size());
    const auto let_stay = [&](int64_t start, int64_t count) {
      for (int64_t id = start; id < std::min(size, start + count); ++id) {
        stays[static_cast<size_t>(id)] = true;
      }
    };
    switch (below(6)) {
      case 0:  // one, often at an end of the row
        let_stay(pick<int64_t>({0, size - 1, below(size)}), 1);
        break;
      case 1:  // a chunk
        let_stay(below(size / chunk + 1) * chunk, chunk);
        break;
      case 2:
        for (int64_t stretches = 1 + below(4); stretches > 0; --stretches) {
          let_stay(below(size), 1 + below(size / 16));
        }
        break;
      case 3: {  // one in so many, by chance
        const int64_t rarity = pick<int64_t>({2, 7, 8, 9, 30, 200});
        for (int64_t id = 0; id < size; ++id) {
          let_stay(id, one_in(rarity) ? 1 : 0);
        }
        break;
      }
      case 4: {  // one in so many, regularly
        const int64_t period = pick<int64_t>({8, 9, 16, 32, 33, 128, chunk});
        for (int64_t id = below(period); id < size; id += period) {
          let_stay(id, 1);
        }
        break;
      }
      case 5:  // a few
        for (int64_t count = 1 + below(100); count > 0; --count) {
          let_stay(below(size), 1);
        }
        break;
    }
    const float nothing = one_in(8) ? kNan : -kInfinity;
    for (size_t id = 0; id < values.size(); ++id) {
      values[id] = stays[id] ? values[id] : nothing;
    }
    if (one_in(8)) {
      strike(values, pick({kNan, -kInfinity}), pick<int64_t>({10, 1000}));
    }
  }

  void strike(std::vector<float>& values, float value, int64_t rarity) {
    for (float& old : values) {
      old = one_in(rarity) ? value : old;
    }
  }

  int64_t k(int64_t size) {
    const int64_t greatest = std::min<int64_t>(size, 1024);
    if (one_in(2)) {
      return pick<int64_t>({0, -1, size + 1, 1025, numeric_limits<int32_t>::max(),
                            numeric_limits<int32_t>::min(), std::max<int64_t>(size, 1025)});
    }
    const int64_t around = (int64_t{16} << below(7)) + below(3) - 1;
    return std::min(greatest, pick<int64_t>({1, 2, 50, greatest, greatest - (greatest > 1), around,
                                             1 + below(greatest), 1 + below(greatest)}));
  }

  uint32_t p(LogitsType type, size_t size) {
    const uint32_t one = encode(type, 1.0F);
    switch (below(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return encode(type, pick({0.0F, 1.0F, -0.5F, 2.0F, kNan, kInfinity, -0.0F, 1.0F}));
      case 4:
        return 1U + static_cast<uint32_t>(below(3));  // the least values above 0
      case 5:
        return one - 1U - static_cast<uint32_t>(below(3));  // the greatest below 1
      case 6:  // a multiple of 2^-m, for sums that are exact
      case 7: {
        const int64_t parts = int64_t{1}
                              << below(std::min(7, static_cast<int>(std::bit_width(size))));
        return encode(type, static_cast<float>(below(parts)) / static_cast<float>(parts));
      }
      default:
        return encode(type, pick({0.1F, 0.5F, 0.9F, 0.99F, uniform(), uniform()}));
    }
  }

  std::vector<float> q(const std::vector<float>& logits) {
    std::vector<float> result(logits.size());
    const int64_t kind = below(8);
    for (size_t lane = 0; lane < result.size(); ++lane) {
      float& noise = result[lane];
      switch (kind) {
        case 0:  // ties
          noise = std::ldexp(1.0F, static_cast<int>(below(3)));
          break;
        case 1:
          noise = 1.0F;
          break;
        case 2:  // over the whole range of float32, with either sign
          noise = std::ldexp(normal(), static_cast<int>(below(270)) - 140);
          break;
        case 3:  // proportional to the weight, where lanes are ids: all scores are almost equal
          noise = std::exp(std::clamp(logits[lane], -80.0F, 80.0F)) * (1.0F + 1e-6F * normal());
          break;
        default:
          noise = exponential();
      }
    }
    if (one_in(4)) {
      const int64_t rarity = pick<int64_t>({1, 2, 2, 10, 1000});
      const float special = pick({0.0F, -0.0F, kNan, kInfinity, -kInfinity, 1e-45F, 3e38F});
      for (float& noise : result) {
        noise = one_in(rarity) ? special : noise;
      }
    }
    return result;
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

template <typename... Arguments>
void append(std::string& text, const char* format, Arguments... arguments) {
  char line[200];
  std::snprintf(line, sizeof(line), format, arguments...);
  text += line;
}

}  // namespace

FuzzCase make_case(uint64_t seed) { return Maker(seed).make(); }

std::string FuzzCase::describe() const {
  constexpr const char* kTypes[] = {"float32", "float16", "bfloat16"};
  constexpr const char* kPlacements[] = {"in the heap", "before a guard page",
                                         "behind a guard page"};
  constexpr size_t kShown = 48;
  std::string text;
  append(text, "  %s, vocabulary %zu, k = %d, p = bits %#x, eps = %a (%g), %s\n",
         kTypes[static_cast<int>(type)], logits.size(), k, p, static_cast<double>(eps),
         static_cast<double>(eps),
         wants_distribution() ? "distribution wanted"
         : is_need_logits     ? "kept logits wanted"
                              : "ids only");
  append(text, "  logits stride %lld, q stride %lld, %s, %s scratch with history %d, %g\n",
         static_cast<long long>(logits_stride), static_cast<long long>(q_stride),
         kPlacements[static_cast<int>(placement)], has_used_scratch ? "used" : "new",
         static_cast<int>(history.first_try), history.depth);
  if (is_second) {
    append(text, "  second operator: most k %d, min-p = bits %#x%s, %s%s\n", most_k,
           min_p.value_or(0), min_p.has_value() ? "" : " (none)",
           are_probabilities ? "probabilities" : "logits",
           is_need_sample_result ? ", sample result wanted" : "");
  }
  if (request.has_value()) {
    append(text, "  request: temperature %a (%g), p %a (%g), min-p %a (%g), ",
           static_cast<double>(request->temperature), static_cast<double>(request->temperature),
           static_cast<double>(request->p), static_cast<double>(request->p),
           static_cast<double>(request->min_p), static_cast<double>(request->min_p));
    append(text, "seed %lld, position %lld, stream %u\n", static_cast<long long>(request->seed),
           static_cast<long long>(request->position), request->stream);
  }
  text += "  logits (bits):";
  for (size_t id = 0; id < std::min(kShown, logits.size()); ++id) {
    append(text, " %#x", logits[id]);
  }
  text += logits.size() > kShown ? " ...\n  q:" : "\n  q:";
  for (size_t lane = 0; q.has_value() && lane < std::min(kShown, q->size()); ++lane) {
    append(text, " %.9g", static_cast<double>((*q)[lane]));
  }
  return text + (q.has_value() ? logits.size() > kShown ? " ...\n" : "\n" : " none\n");
}

StoredCase::StoredCase(const FuzzCase& fuzz_case)
    : k_(fuzz_case.k),
      p_(fuzz_case.p),
      min_p_(fuzz_case.min_p.value_or(0)),
      kept_(fuzz_case.is_need_logits ? fuzz_case.logits.size() : 0),
      dense_weights_(fuzz_case.is_need_sample_result ? fuzz_case.logits.size() : 0),
      dense_ids_(dense_weights_.size()),
      request_(fuzz_case.request.value_or(FuzzCase::Request{})),
      sampling_{.rows = nullptr,
                .temperature = &request_.temperature,
                .p = &request_.p,
                .min_p = &request_.min_p,
                .seed = &request_.seed,
                .position = &request_.position,
                .stream = request_.stream,
                .status = &status_},
      filtering_{.temperature = &request_.temperature, .p = &request_.p, .min_p = &request_.min_p} {
  const size_t size = size_of(fuzz_case.type);
  const size_t vocab_size = fuzz_case.logits.size();
  const auto spread = [vocab_size](int64_t stride) {
    return (vocab_size - 1) * static_cast<size_t>(stride) + 1;
  };
  logits_.resize(spread(fuzz_case.logits_stride) * size,
                 std::byte{0x7B});              // large between the strides
  for (size_t id = 0; id < vocab_size; ++id) {  // the first bytes of the bits: little endian
    std::memcpy(&logits_[id * static_cast<size_t>(fuzz_case.logits_stride) * size],
                &fuzz_case.logits[id], size);
  }
  if (fuzz_case.q.has_value()) {
    q_.resize(spread(fuzz_case.q_stride), 0.0F);  // would win
    for (size_t lane = 0; lane < vocab_size; ++lane) {
      q_[lane * static_cast<size_t>(fuzz_case.q_stride)] = (*fuzz_case.q)[lane];
    }
  }
  const bool wants_distribution = fuzz_case.wants_distribution();
  const bool wants_token_of_request = fuzz_case.request.has_value() && !wants_distribution;
  batch_ = {.type = fuzz_case.type,
            .batch_size = 1,
            .vocab_size = static_cast<int64_t>(vocab_size),
            .logits = logits_.data(),
            .logits_row_stride = 0,
            .logits_column_stride = fuzz_case.logits_stride,
            .k = &k_,
            .k_stride = 0,
            .selected = &selected_,
            .kept = fuzz_case.is_need_logits ? kept_.data() : nullptr,
            .p = &p_,
            .p_stride = 0,
            .q = fuzz_case.q.has_value() ? q_.data() : nullptr,
            .q_row_stride = 0,
            .q_column_stride = fuzz_case.q_stride,
            .eps = fuzz_case.eps,
            .is_second = fuzz_case.is_second,
            .most_k = fuzz_case.most_k,
            .min_p = fuzz_case.min_p.has_value() ? &min_p_ : nullptr,
            .min_p_stride = 0,
            .are_probabilities = fuzz_case.are_probabilities,
            .dense_weights = dense_weights_.empty() ? nullptr : dense_weights_.data(),
            .dense_ids = dense_ids_.empty() ? nullptr : dense_ids_.data(),
            .sampling = wants_token_of_request ? &sampling_ : nullptr,
            .filtering = wants_distribution ? &filtering_ : nullptr};
}

}  // namespace ascend_sample::cpu::testing
