#include "fuzz_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "fuzz_values.h"

namespace ascend_sample::cpu::testing {
namespace {

using std::numeric_limits;

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

class Maker : RowMaker {
 public:
  explicit Maker(uint64_t seed) : RowMaker(seed) {}

  FuzzCase make() {
    FuzzCase made;
    made.type = pick({LogitsType::kFloat32, LogitsType::kFloat16, LogitsType::kBFloat16});
    made.is_second = one_in(2);
    const bool is_masked = one_in(8);
    auto values = base(is_masked ? vocab_size_of_masked() : vocab_size());
    for (int layers = below(3); layers > 0; --layers) {
      overlay(values);
    }
    if (is_masked) {
      mask(values);
    }
    for (const float value : values) {
      made.logits.push_back(encode(made.type, value));
    }
    if (one_in(40)) {
      for (uint32_t& logit : made.logits) {  // any bits at all
        logit = static_cast<uint32_t>(bits()) & (made.type == LogitsType::kFloat32 ? ~0U : 0xFFFFU);
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
    made.has_used_workspace = !one_in(3);
    made.history = {double{uniform()} * 16 - 2, static_cast<uint8_t>(below(3))};
    if (made.is_second) {
      make_second(made, values);
    }
    if (made.is_second && one_in(2)) {
      make_request(made, values);
    }
    if (!made.is_second && one_in(8)) {
      make_ranking(made);
    }
    return made;
  }

 private:
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
  }

  /// What the sampling layer has instead.
  void make_request(FuzzCase& made, const std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    const auto value_of = [](uint32_t bits) { return std::bit_cast<float>(bits); };
    FuzzCase as_float32 = made;
    as_float32.type = LogitsType::kFloat32;
    const auto numbers = [this] { return static_cast<int64_t>(bits()) >> below(64); };
    made.request =
        FuzzCase::Request{.temperature = temperature(),
                          .p = value_of(p(LogitsType::kFloat32, values.size())),
                          .min_p = one_in(2) ? 0.0F : value_of(min_p(as_float32, values)),
                          .seed = numbers(),
                          .position = numbers(),
                          .purpose = static_cast<uint32_t>(bits()),
                          .keeps_ties = one_in(4),
                          .wants_distribution = one_in(3),
                          .wants_list = false,
                          .edits = {}};
    made.is_need_logits = made.request->wants_distribution;
    made.min_p.reset();
    made.q.reset();
    made.most_k = kMaxTopK;
    if (one_in(4)) {
      made.k = static_cast<int32_t>(1 + below(size));  // perhaps one that is not ranked
    }
    if (one_in(3)) {
      made.request->edits = make_edits(*this, size);
    }
    made.request->wants_list = !made.request->wants_distribution && one_in(2);
  }

  /// What is asked of a row's best tokens. A token that is given is often a large logit.
  void make_ranking(FuzzCase& made) {
    const auto size = static_cast<int64_t>(made.logits.size());
    const int64_t count = std::min(size, pick<int64_t>({0, 1, 5, 1 + below(64), 1 + below(2000)}));
    const bool is_divided = one_in(3);
    made.ranking = FuzzCase::Ranking{
        .count = is_divided ? std::max<int64_t>(count, 1) : count,
        .temperature = is_divided ? pick({0.1F, 0.5F, 0.7F, 1.7F, 1e-38F, 1e38F}) : 1.0F,
        .is_normalised = is_divided || !one_in(4),
        .given = is_divided ? -1 : below(size)};
    made.is_need_logits = false;
    made.q.reset();
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
        return encode(type, exp_of(value - maximum));
      }
      default:
        return encode(type, pick({0.001F, 0.05F, 0.1F, 0.5F, 0.9F, uniform()}));
    }
  }

  int64_t k(int64_t size) {
    const int64_t greatest = std::min<int64_t>(size, 1024);
    if (one_in(2)) {
      return pick<int64_t>({0, -1, size + 1, 1025, numeric_limits<int32_t>::max(),
                            numeric_limits<int32_t>::min(), std::max<int64_t>(size, 1025)});
    }
    const int64_t power = int64_t{16} << below(7);
    const int64_t around = power + below(3) - 1;
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
          noise = normal();
          noise = std::ldexp(noise, static_cast<int>(below(270)) - 140);
          break;
        case 3:  // proportional to the weight, where lanes are ids: all scores are almost equal
          noise = exp_of(std::clamp(logits[lane], -80.0F, 80.0F)) * (1.0F + 1e-6F * normal());
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
};

}  // namespace

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

FuzzCase make_case(uint64_t seed) { return Maker(seed).make(); }

void FuzzCase::cut(size_t start, size_t length) {
  const auto without = [start, length](auto& values) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(start);
    values.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
  };
  without(logits);
  if (q.has_value()) {
    without(*q);
  }
  of_request([this](Request& changed) { changed.edits.cut(logits.size()); });
}

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
  append(text, "  logits stride %lld, q stride %lld, %s, %s workspace with history %g, %d\n",
         static_cast<long long>(logits_stride), static_cast<long long>(q_stride),
         kPlacements[static_cast<int>(placement)], has_used_workspace ? "used" : "new",
         history.depth, history.large);
  if (is_second) {
    append(text, "  second operator: most k %d, min-p = bits %#x%s\n", most_k, min_p.value_or(0),
           min_p.has_value() ? "" : " (none)");
  }
  if (request.has_value()) {
    append(text, "  request: temperature %a (%g), p %a (%g), min-p %a (%g), ",
           static_cast<double>(request->temperature), static_cast<double>(request->temperature),
           static_cast<double>(request->p), static_cast<double>(request->p),
           static_cast<double>(request->min_p), static_cast<double>(request->min_p));
    append(text, "seed %lld, position %lld, purpose %u%s\n", static_cast<long long>(request->seed),
           static_cast<long long>(request->position), request->purpose,
           request->keeps_ties ? ", ties kept" : "");
    text += request->wants_list ? "  its list is wanted\n" : "";
  }
  text += request.has_value() ? request->edits.describe() : "";
  if (ranking.has_value()) {
    append(text, "  ranking: the best %lld, temperature %a, %s, token %lld given\n",
           static_cast<long long>(ranking->count), static_cast<double>(ranking->temperature),
           ranking->is_normalised ? "normalised" : "logits",
           static_cast<long long>(ranking->given));
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

}  // namespace ascend_sample::cpu::testing
