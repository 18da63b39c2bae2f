// Logits of the three types as vectors of float32.
#pragma once

#include <cstring>

#include "cpu/rows/row.h"
#include "cpu/vectors/shorts.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

using HalfPart = uint16_t __attribute__((vector_size(kPartBytes / 2)));  // as many as a FloatPart

/// The maximum of each place in the lines, which `line_of` gives by their numbers; NaN counts as
/// -inf.
template <typename LineOf, typename Status>
ASCEND_SAMPLE_INLINE Line maxima_of_values(LineOf line_of, size_t lines, Status& seen) {
  Floats first = splat(-kInfinity);
  Floats second = first;
  for (size_t i = 0; i < lines; ++i) {
    const Line line = line_of(i);
    first = larger(line.first, first);
    second = larger(line.second, second);
    seen.add_line(line);
  }
  seen.add_extremes(Line{first, second});
  return {first, second};
}

struct Float32 {
  using Storage = float;
  static constexpr Storage kMinusInfinity = -kInfinity;

  static float value_of(Storage logit) { return logit; }

  /// In the order of memory.
  static ASCEND_SAMPLE_INLINE Line load(const Storage* data) {
    return {load_floats(data), load_floats(data + kLanes)};
  }
  /// In any order, where that is cheaper.
  static ASCEND_SAMPLE_INLINE Line load_unordered(const Storage* data) { return load(data); }
  /// As they are compared.
  static ASCEND_SAMPLE_INLINE Line load_raw(const Storage* data) { return load(data); }

  /// The maxima of 32 groups, one lane each of `lines` lines that follow one another: also written
  /// to `out`. `raw_line` gives what load_raw does of a line, by its number.
  template <typename RawLine, typename Status>
  static ASCEND_SAMPLE_INLINE Line maxima(RawLine raw_line, size_t lines, float* out,
                                          Status& seen) {
    const Line largest = maxima_of_values(raw_line, lines, seen);
    store(out, largest.first);
    store(out + kLanes, largest.second);
    return largest;
  }

  /// A test for the logits above a value; bit i: logit i of two lines that follow one another.
  class Above {
   public:
    explicit Above(float value) : bound_(splat(value)) {}
    template <typename Function>
    void test(Function function) const {
      function([bound = bound_](const Storage* data) {
        uint64_t bits = 0;
        for (size_t i = 0; i < 4; ++i) {
          bits |= uint64_t{bits_of(is_greater(load_floats(data + i * kLanes), bound))}
                  << (i * kLanes);
        }
        return bits;
      });
    }

   private:
    Floats bound_;
  };

  /// A test for the logits equal to a value; bit i: logit i of a line.
  class Equal {
   public:
    explicit Equal(float value) : value_(splat(value)) {}
    ASCEND_SAMPLE_INLINE uint32_t bits(const Storage* data) const {
      const Line line = load(data);
      return bits_of(is_equal(line.first, value_)) | bits_of(is_equal(line.second, value_))
                                                         << kLanes;
    }

   private:
    Floats value_;
  };
};

/// What the two types of 16 bits share: sign and magnitude order their values.
template <typename Type, uint16_t kInfinityBits>
struct HalfWidth {
  using Storage = uint16_t;
  static constexpr Storage kInfinity = kInfinityBits;
  static constexpr Storage kMinusInfinity = 0x8000 | kInfinityBits;

  static ASCEND_SAMPLE_INLINE Shorts load_raw(const Storage* data) {
    return ASCEND_SAMPLE_TARGET::load<ShortPart>(data);
  }

  template <typename RawLine, typename Status>
  static ASCEND_SAMPLE_INLINE Line maxima(RawLine raw_line, size_t lines, float* out,
                                          Status& seen) {
    // Where a lane has a number without a sign, the largest as signed integers is the maximum; else
    // the smallest magnitude is, which is the smallest as unsigned integers.
    Shorts largest = raw_line(size_t{0});
    Shorts smallest = largest;
    seen.add_line(largest);
#pragma GCC unroll 4
    for (size_t i = 1; i < lines; ++i) {
      const Shorts line = raw_line(i);
      largest = larger(line, largest);
      smallest = smaller_unsigned(line, smallest);
      seen.add_line(line);
    }
    seen.add_extremes(largest, smallest);
    const Shorts maxima =
        map([](ShortPart high, ShortPart low) { return ShortPart(high < 0 ? low : high); }, largest,
            smallest);
    const Shorts magnitudes = map([](ShortPart x) { return ShortPart(x & 0x7FFF); }, maxima);
    Line result;
    if (bits_below(magnitudes, kInfinityBits + 1) == 0xFFFFFFFF) [[likely]] {  // no NaN
      store(out, maxima);  // only to widen them from there
      result = Type::load(reinterpret_cast<const Storage*>(out));
    } else {
      NoStatus noticed_above;
      const auto line_of = [&](size_t i) {
        Storage line[kLine];
        store(line, raw_line(i));
        return Type::load(line);
      };
      result = maxima_of_values(line_of, lines, noticed_above);
    }
    store(out, result.first);
    store(out + kLanes, result.second);
    return result;
  }

  class Above {
   public:
    explicit Above(float value) : key_(static_cast<int16_t>(largest_key_to(value))) {}
    template <typename Function>
    void test(Function function) const {
      const auto bits_with = [](auto bits_of_line) {
        return [=](const Storage* data) {
          return bits_of_line(load_raw(data)) | uint64_t{bits_of_line(load_raw(data + kLine))}
                                                    << kLine;
        };
      };
      // Numbers without a sign have their bits as keys, up to those of infinity; NaN is beyond.
      if (key_ >= 0) {
        const auto first = static_cast<int16_t>(key_ + 1);
        const auto count = static_cast<uint16_t>(kInfinityBits - key_);
        function(bits_with([=](const Shorts& line) { return bits_below(line - first, count); }));
      } else {
        // All of those, and numbers with a sign whose magnitude is less: less as unsigned numbers.
        constexpr int16_t kFirstNan = kInfinityBits + 1;
        constexpr uint16_t kNans = 0x8000 - kFirstNan;
        const auto end = static_cast<uint16_t>(0x8000 - key_);
        function(bits_with([=](const Shorts& line) {
          return bits_below(line, end) & ~bits_below(line - kFirstNan, kNans);
        }));
      }
    }

   private:
    int16_t key_;
  };

  /// The value is one of the type.
  class Equal {
   public:
    explicit Equal(float value)
        : pattern_(static_cast<int16_t>(pattern_of(largest_key_to(value)))),
          mask_(pattern_ == 0 ? 0x7FFF : -1) {}
    ASCEND_SAMPLE_INLINE uint32_t bits(const Storage* data) const {
      const Shorts without_sign_of_zero =
          map([this](ShortPart x) { return ShortPart(x & mask_); }, load_raw(data));
      return bits_below(without_sign_of_zero - pattern_, 1);
    }

   private:
    int16_t pattern_;
    int16_t mask_;
  };

 private:
  /// Grows with the value; -0 and +0 share 0.
  static int key_of(Storage logit) {
    const int magnitude = logit & 0x7FFF;
    return (logit & 0x8000) != 0 ? -magnitude : magnitude;
  }
  static Storage pattern_of(int key) { return static_cast<Storage>(key < 0 ? 0x8000 | -key : key); }

  /// The largest key of a number that is not above the value, by bisection.
  static int largest_key_to(float value) {
    int low = key_of(kMinusInfinity) - 1;
    int high = key_of(kInfinityBits) + 1;
    while (high - low > 1) {
      const int middle = (low + high) >> 1;
      (Type::value_of(pattern_of(middle)) > value ? high : low) = middle;
    }
    return low;
  }
};

struct BFloat16 : HalfWidth<BFloat16, 0x7F80> {
  static float value_of(Storage logit) { return std::bit_cast<float>(uint32_t{logit} << 16); }

  static ASCEND_SAMPLE_INLINE Line load(const Storage* data) {
    return {widen(data), widen(data + kLanes)};
  }
  /// The even ones, then the odd ones: two operations instead of four.
  static ASCEND_SAMPLE_INLINE Line load_unordered(const Storage* data) {
    const Ints pairs = ASCEND_SAMPLE_TARGET::load<IntPart>(data);
    return {floats_of(shift_left<16>(pairs)), floats_of(pairs & static_cast<int32_t>(0xFFFF0000))};
  }

 private:
  static ASCEND_SAMPLE_INLINE Floats widen(const Storage* data) {
    Ints wide;
    for (size_t i = 0; i < kParts; ++i) {
      const Storage* part = data + i * kLanes / kParts;
#if defined(__AVX512F__)  // GCC would widen it in halves
      __m256i halves;
      std::memcpy(&halves, part, sizeof(halves));
      wide.part[i] = IntPart(_mm512_cvtepu16_epi32(halves));
#else
      HalfPart halves;
      std::memcpy(&halves, part, sizeof(halves));
      wide.part[i] = __builtin_convertvector(halves, IntPart);
#endif
    }
    return floats_of(shift_left<16>(wide));
  }
};

struct Float16 : HalfWidth<Float16, 0x7C00> {
  static float value_of(Storage logit) {
#if defined(__AVX2__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(logit)));
#else
    Storage row[kLanes] = {logit};
    float values[kLanes];
    store(values, widen(row));
    return values[0];
#endif
  }

  static ASCEND_SAMPLE_INLINE Line load(const Storage* data) {
    return {widen(data), widen(data + kLanes)};
  }
  static ASCEND_SAMPLE_INLINE Line load_unordered(const Storage* data) { return load(data); }

 private:
  static ASCEND_SAMPLE_INLINE Floats widen(const Storage* data) {
    Floats values;
    for (size_t i = 0; i < kParts; ++i) {
      const Storage* part = data + i * kLanes / kParts;
#if defined(__AVX512F__)
      __m256i halves;
      std::memcpy(&halves, part, sizeof(halves));
      values.part[i] = _mm512_cvtph_ps(halves);
#elif defined(__AVX2__)
      __m128i halves;
      std::memcpy(&halves, part, sizeof(halves));
      values.part[i] = _mm256_cvtph_ps(halves);
#elif defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
      float16x4_t halves;
      std::memcpy(&halves, part, sizeof(halves));
      values.part[i] = vcvt_f32_f16(halves);
#else
      values.part[i] = widen_part(part);
#endif
    }
    return values;
  }

#if !defined(__AVX2__) && (!defined(__ARM_NEON) || defined(ASCEND_SAMPLE_PLAIN))
  /// Exponent and mantissa in the places of float32, rebased by an exact product that also serves
  /// subnormal numbers; infinity and NaN keep the largest exponent.
  static ASCEND_SAMPLE_INLINE FloatPart widen_part(const Storage* data) {
    HalfPart halves;
    std::memcpy(&halves, data, sizeof(halves));
    const UintPart wide = __builtin_convertvector(halves, UintPart);
    const UintPart sign = (wide & 0x8000U) << 16;
    const UintPart magnitude = (wide & 0x7FFFU) << 13;
    const FloatPart finite = FloatPart(magnitude) * std::bit_cast<float>(uint32_t{239} << 23);
    const UintPart special = magnitude | 0x7F800000U;
    const UintPart bits = magnitude >= (uint32_t{0x7C00} << 13) ? special : UintPart(finite);
    return FloatPart(bits | sign);
  }
#endif
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
