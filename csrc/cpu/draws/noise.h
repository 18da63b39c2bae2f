// Exponential noise from counters: ascend_sample/sampling/draws/noise.py, the specification, on
// vectors. The same operations in the same order, so the same bits.
#pragma once

#include <cstring>

#include "cpu/calls.h"
#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

using WidePart = uint64_t __attribute__((vector_size(kPartBytes)));
using Words = Vector<WidePart>;  // 8 words of 32 bits; above them may be anything
inline constexpr size_t kCounters = 8;

ASCEND_SAMPLE_INLINE Words splat_word(uint64_t value) {
  Words result;
  for (WidePart& part : result.part) {
    part = value - WidePart{};
  }
  return result;
}

/// The 64 bits of the products with a word.
ASCEND_SAMPLE_INLINE Words multiply(const Words& words, uint32_t factor) {
  return map(
      [factor](WidePart x) -> WidePart {
#if defined(__AVX512F__)
        return WidePart(_mm512_mul_epu32(__m512i(x), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
        return WidePart(_mm256_mul_epu32(__m256i(x), _mm256_set1_epi64x(factor)));
#elif defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
        return WidePart(vmull_u32(vmovn_u64(uint64x2_t(x)), vdup_n_u32(factor)));
#else
        return (x & 0xFFFFFFFFU) * uint64_t{factor};
#endif
      },
      words);
}

/// The counters of 16 lanes, and their key. What is not the lane is the same for a whole row.
class Philox {
 public:
  explicit Philox(const NoiseKey& key)
      : seed_{static_cast<uint32_t>(key.seed),
              static_cast<uint32_t>(static_cast<uint64_t>(key.seed) >> 32)},
        purpose_(key.purpose),
        position_{static_cast<uint32_t>(key.position),
                  static_cast<uint32_t>(static_cast<uint64_t>(key.position) >> 32)} {}

  /// The high and the low words of the lanes from `first_lane`, which is even.
  struct Bits {
    Ints high;
    Ints low;
  };

  ASCEND_SAMPLE_INLINE Bits bits_from(uint64_t first_lane) const {
    constexpr int kRounds = 10;
    Words counters;
    for (size_t i = 0; i < kParts; ++i) {
      for (size_t j = 0; j < kCounters / kParts; ++j) {
        counters.part[i][j] = i * (kCounters / kParts) + j;
      }
    }
    const WidePart first = first_lane / 2 - WidePart{};
    Words words[4] = {map([&](WidePart x) { return x + first; }, counters), splat_word(purpose_),
                      splat_word(position_[0]), splat_word(position_[1])};
    uint32_t keys[2] = {seed_[0], seed_[1]};
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      const Words products[2] = {multiply(words[0], 0xD2511F53), multiply(words[2], 0xCD9E8D57)};
      const auto mix = [](const Words& product, const Words& word, uint32_t key) {
        return map([key](WidePart x, WidePart y) { return (x >> 32) ^ y ^ uint64_t{key}; }, product,
                   word);
      };
      words[0] = mix(products[1], words[1], keys[0]);
      words[2] = mix(products[0], words[3], keys[1]);
      words[1] = products[1];
      words[3] = products[0];
      keys[0] += 0x9E3779B9;
      keys[1] += 0xBB67AE85;
    }
    // A counter's first two words belong to the even lane, the others to the odd one.
    const auto lanes = [](const Words& even, const Words& odd) {
      return map([](WidePart x, WidePart y) { return IntPart((x & 0xFFFFFFFFU) | (y << 32)); },
                 even, odd);
    };
    return {lanes(words[0], words[2]), lanes(words[1], words[3])};
  }

 private:
  uint32_t seed_[2];
  uint32_t purpose_;
  uint32_t position_[2];
};

/// -log1p(-u) for u = (2 i + 1) / 2^64, i being the first 63 bits of a lane.
ASCEND_SAMPLE_INLINE Floats exponential_of(const Philox::Bits& bits) {
  // Of u and 1 - u the smaller one is t: all bits turn where the highest is set.
  const Ints sign = map([](IntPart x) { return x >> 31; }, bits.high);
  const auto turn = [](IntPart x, IntPart s) { return x ^ s; };
  const Ints high = map(turn, bits.high, sign);
  const Ints low = map([&](IntPart x, IntPart s) { return turn(x, s) | 1; }, bits.low, sign);
  const Mask is_low = is_greater(splat(1.0F), convert(sign & 1));
  // From parts of at most 24 bits, which convert exactly.
  const auto middle = [](IntPart x, IntPart y) {
    return ((x & 0xFF) << 16) | IntPart(UintPart(y) >> 16);
  };
  const Floats first = convert(map([](IntPart x) { return x >> 8; }, high)) * splat(0x1p-24F);
  const Floats second = convert(map(middle, high, low)) * splat(0x1p-48F);
  const Floats t = (first + second) + convert(low & 0xFFFF) * splat(0x1p-64F);
  // t = m / 2^e, m from sqrt(1/2) to sqrt(2).
  constexpr int32_t kSqrtHalfBits = 0x3F3504F3;
  constexpr int32_t kToOne = 0x3F800000 - kSqrtHalfBits;
  const Ints shifted = map([](IntPart x) { return x + kToOne; }, bits_of(t));
  const Floats e = convert(map([](IntPart x) { return 127 - (x >> 23); }, shifted));
  const Floats exponent = select(is_low, Floats{}, e);
  const Floats m =
      floats_of(map([](IntPart x) { return (x & 0x7FFFFF) + kSqrtHalfBits; }, shifted));
  // -log(1 - t) = 2 atanh(t / (2 - t)), and -log(t) = e ln 2 + 2 atanh((1 - m) / (1 + m)).
  const Floats one = splat(1.0F);
  const Floats s = select(is_low, t, one - m) / select(is_low, splat(2.0F) - t, one + m);
  const Floats z = s * s;
  Floats polynomial = splat(0x1.1ef870p-3F) * z + splat(0x1.1eb612p-3F);
  polynomial = polynomial * z + splat(0x1.99d27cp-3F);
  polynomial = polynomial * z + splat(0x1.555500p-2F);
  const Floats twice = s + s;
  return exponent * splat(0x1.62e4p-1F) +
         (exponent * splat(0x1.7f7d1cp-20F) + (twice + twice * (z * polynomial)));
}

/// A row's noise, made as far as it is needed.
class LazyNoise {
 public:
  /// `lanes` has room for whole vectors.
  LazyNoise(const NoiseKey& key, float* lanes) : philox_(key), lanes_(lanes) {}

  const float* data() const { return lanes_; }

  void reach(size_t count) {
    for (; made_ < count; made_ += kLanes) {
      store(lanes_ + made_, exponential_of(philox_.bits_from(made_)));
    }
  }

 private:
  Philox philox_;
  float* lanes_;
  size_t made_ = 0;
};

/// q of one row: given, or made as it is read.
class Noise {
 public:
  /// Entry i is data[i * stride].
  Noise(const float* data, int64_t stride) : data_(data), stride_(stride) {}
  explicit Noise(LazyNoise& lanes) : data_(lanes.data()), stride_(1), lanes_(&lanes) {}

  /// Has to come before the first `count` are read.
  void need(size_t count) const {
    if (lanes_ != nullptr) {
      lanes_->reach(count);
    }
  }

  bool is_contiguous() const { return stride_ == 1; }
  const float* data() const { return data_; }
  float operator[](size_t lane) const { return data_[static_cast<int64_t>(lane) * stride_]; }

 private:
  const float* data_;
  int64_t stride_;
  LazyNoise* lanes_ = nullptr;
};

/// Writes the noise of `count` lanes from `first_lane`, which is even.
inline void fill_exponential(const NoiseKey& key, uint64_t first_lane, size_t count, float* out) {
  const Philox philox(key);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(out + i, exponential_of(philox.bits_from(first_lane + i)));
  }
  if (i < count) {
    float last[kLanes];
    store(last, exponential_of(philox.bits_from(first_lane + i)));
    std::memcpy(out + i, last, (count - i) * sizeof(float));
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
