// Vectors of 64 bytes for one instruction set: as many native parts as that takes. Every operation
// is exact or correctly rounded, so that all instruction sets agree bit for bit.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(ASCEND_SAMPLE_PLAIN)
#include <arm_neon.h>
#endif

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

#define ASCEND_SAMPLE_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
inline constexpr size_t kPartBytes = 64;
#elif defined(__AVX2__)
inline constexpr size_t kPartBytes = 32;
#else
inline constexpr size_t kPartBytes = 16;
#endif
inline constexpr size_t kParts = 64 / kPartBytes;

// The compiler drops a vector_size attribute that depends on a template's parameter.
using FloatPart = float __attribute__((vector_size(kPartBytes)));
using IntPart = int32_t __attribute__((vector_size(kPartBytes)));
using UintPart = uint32_t __attribute__((vector_size(kPartBytes)));

using ShortPart = int16_t __attribute__((vector_size(kPartBytes)));
using UshortPart = uint16_t __attribute__((vector_size(kPartBytes)));

template <typename Part>
struct Vector {
  Part part[kParts];
};

using Floats = Vector<FloatPart>;  // 16 lanes
using Ints = Vector<IntPart>;      // 16 lanes
using Shorts = Vector<ShortPart>;  // 32 lanes
inline constexpr size_t kLanes = 16;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr size_t kLine = 32;  // logits: a cache line of a 16-bit type

/// 32 logits as float32.
struct Line {
  Floats first;
  Floats second;
};

template <typename Function, typename Prefix, typename... Others>
ASCEND_SAMPLE_INLINE auto map(Function function, const Vector<Prefix>& first,
                              const Vector<Others>&... others) {
  Vector<decltype(function(first.part[0], others.part[0]...))> result;
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
    result.part[i] = function(first.part[i], others.part[i]...);
  }
  return result;
}

template <typename Part>
ASCEND_SAMPLE_INLINE Vector<Part> load(const void* data) {
  Vector<Part> result;
  // Part by part: GCC copies all of a vector in pieces of 16 bytes, by way of the stack.
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
    std::memcpy(&result.part[i], static_cast<const char*>(data) + i * kPartBytes, kPartBytes);
  }
  return result;
}

ASCEND_SAMPLE_INLINE Floats load_floats(const float* data) { return load<FloatPart>(data); }

template <typename Part>
ASCEND_SAMPLE_INLINE void store(void* data, const Vector<Part>& vector) {
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
    std::memcpy(static_cast<char*>(data) + i * kPartBytes, &vector.part[i], kPartBytes);
  }
}

ASCEND_SAMPLE_INLINE void store(float* data, const Line& line) {
  store(data, line.first);
  store(data + kLanes, line.second);
}

ASCEND_SAMPLE_INLINE Floats splat(float value) {
  Floats result;
  for (FloatPart& part : result.part) {
    part = value - FloatPart{};
  }
  return result;
}

ASCEND_SAMPLE_INLINE Floats operator+(const Floats& a, const Floats& b) {
  return map([](FloatPart x, FloatPart y) { return x + y; }, a, b);
}
ASCEND_SAMPLE_INLINE Floats operator-(const Floats& a, const Floats& b) {
  return map([](FloatPart x, FloatPart y) { return x - y; }, a, b);
}
ASCEND_SAMPLE_INLINE Floats operator-(const Floats& a) {
  return map([](FloatPart x) { return -x; }, a);
}
ASCEND_SAMPLE_INLINE Floats operator*(const Floats& a, const Floats& b) {
  return map([](FloatPart x, FloatPart y) { return x * y; }, a, b);
}
ASCEND_SAMPLE_INLINE Floats operator/(const Floats& a, const Floats& b) {
  return map([](FloatPart x, FloatPart y) { return x / y; }, a, b);
}
ASCEND_SAMPLE_INLINE Ints operator+(const Ints& a, const Ints& b) {
  return map([](IntPart x, IntPart y) { return IntPart(UintPart(x) + UintPart(y)); }, a, b);
}
ASCEND_SAMPLE_INLINE Ints operator&(const Ints& a, int32_t mask) {
  return map([mask](IntPart x) { return x & mask; }, a);
}

template <int kBits>
ASCEND_SAMPLE_INLINE Ints shift_left(const Ints& a) {
  return map([](IntPart x) { return IntPart(UintPart(x) << kBits); }, a);
}

ASCEND_SAMPLE_INLINE Ints bits_of(const Floats& a) {
  return map([](FloatPart x) { return IntPart(x); }, a);
}
ASCEND_SAMPLE_INLINE Floats floats_of(const Ints& a) {
  return map([](IntPart x) { return FloatPart(x); }, a);
}
ASCEND_SAMPLE_INLINE Floats convert(const Ints& a) {
  return map([](IntPart x) { return __builtin_convertvector(x, FloatPart); }, a);
}
/// Integers next to values below 2^31; 0 for what is below 0, and for NaN.
ASCEND_SAMPLE_INLINE Ints convert_not_negative(const Floats& a) {
  return map(
      [](FloatPart x) -> IntPart {
#if defined(__AVX512F__)
        return IntPart(_mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512()));
#elif defined(__AVX2__)
        return IntPart(_mm256_max_epi32(_mm256_cvtps_epi32(x), _mm256_setzero_si256()));
#elif defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
        return vmaxq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(0));
#else
        const FloatPart most = 2147483520.0F - FloatPart{};  // the largest below 2^31
        const FloatPart limited = x > FloatPart{} ? (x < most ? x : most) : FloatPart{};
        return __builtin_convertvector(limited, IntPart);
#endif
      },
      a);
}
ASCEND_SAMPLE_INLINE Floats absolute(const Floats& a) { return floats_of(bits_of(a) & 0x7FFFFFFF); }

/// a * b + c, rounded once.
ASCEND_SAMPLE_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return map(
      [](FloatPart x, FloatPart y, FloatPart z) -> FloatPart {
#if defined(__AVX512F__)
        return _mm512_fmadd_ps(x, y, z);
#elif defined(__AVX2__)
        return _mm256_fmadd_ps(x, y, z);
#elif defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
        return vfmaq_f32(z, x, y);
#else
        FloatPart result;
        for (size_t i = 0; i < kPartBytes / sizeof(float); ++i) {
          result[i] = __builtin_fmaf(x[i], y[i], z[i]);
        }
        return result;
#endif
      },
      a, b, c);
}

/// a + b, which on x86 multipliers do: a pass that compares and converts keeps its adders busy.
ASCEND_SAMPLE_INLINE Floats added(const Floats& a, const Floats& b) {
#if defined(__AVX2__)
  return fused(a, splat(1.0F), b);
#else
  return a + b;
#endif
}

/// a > b ? a : b in each lane: b where a is NaN.
ASCEND_SAMPLE_INLINE Floats larger(const Floats& a, const Floats& b) {
  return map(
      [](FloatPart x, FloatPart y) -> FloatPart {
#if defined(__AVX512F__)
        return _mm512_max_ps(x, y);
#elif defined(__AVX2__)
        return _mm256_max_ps(x, y);
#else
        return x > y ? x : y;
#endif
      },
      a, b);
}

/// a < b ? a : b in each lane: b where a is NaN.
ASCEND_SAMPLE_INLINE Floats smaller(const Floats& a, const Floats& b) {
  return map(
      [](FloatPart x, FloatPart y) -> FloatPart {
#if defined(__AVX512F__)
        return _mm512_min_ps(x, y);
#elif defined(__AVX2__)
        return _mm256_min_ps(x, y);
#else
        return x < y ? x : y;
#endif
      },
      a, b);
}

/// What a comparison yields: one truth a lane.
struct Mask {
#if defined(__AVX512F__)
  __mmask16 lanes;
#else
  Ints lanes;  // -1 or 0
#endif
};

#if defined(__AVX512F__)

ASCEND_SAMPLE_INLINE Mask is_greater(const Floats& a, const Floats& b) {
  return {_mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_GT_OQ)};
}
ASCEND_SAMPLE_INLINE Mask is_at_least(const Floats& a, const Floats& b) {
  return {_mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_GE_OQ)};
}
ASCEND_SAMPLE_INLINE Mask is_equal(const Floats& a, const Floats& b) {
  return {_mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_EQ_OQ)};
}
/// Whether one of the two is NaN.
ASCEND_SAMPLE_INLINE Mask is_unordered(const Floats& a, const Floats& b) {
  return {_mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_UNORD_Q)};
}
ASCEND_SAMPLE_INLINE Mask operator&(Mask a, Mask b) {
  return {static_cast<__mmask16>(a.lanes & b.lanes)};
}
ASCEND_SAMPLE_INLINE Mask operator|(Mask a, Mask b) {
  return {static_cast<__mmask16>(a.lanes | b.lanes)};
}
ASCEND_SAMPLE_INLINE uint32_t bits_of(Mask mask) { return mask.lanes; }
ASCEND_SAMPLE_INLINE Floats select(Mask mask, const Floats& a, const Floats& b) {
  return {{FloatPart(_mm512_mask_blend_ps(mask.lanes, b.part[0], a.part[0]))}};
}

#else

ASCEND_SAMPLE_INLINE Mask is_greater(const Floats& a, const Floats& b) {
  return {map([](FloatPart x, FloatPart y) { return IntPart(x > y); }, a, b)};
}
ASCEND_SAMPLE_INLINE Mask is_at_least(const Floats& a, const Floats& b) {
  return {map([](FloatPart x, FloatPart y) { return IntPart(x >= y); }, a, b)};
}
ASCEND_SAMPLE_INLINE Mask is_equal(const Floats& a, const Floats& b) {
  return {map([](FloatPart x, FloatPart y) { return IntPart(x == y); }, a, b)};
}
/// Whether one of the two is NaN.
ASCEND_SAMPLE_INLINE Mask is_unordered(const Floats& a, const Floats& b) {
  return {map(
      [](FloatPart x, FloatPart y) -> IntPart {
#if defined(__AVX2__)
        return IntPart(_mm256_cmp_ps(x, y, _CMP_UNORD_Q));
#else
        return IntPart(x != x) | IntPart(y != y);
#endif
      },
      a, b)};
}
ASCEND_SAMPLE_INLINE Mask operator&(const Mask& a, const Mask& b) {
  return {map([](IntPart x, IntPart y) { return x & y; }, a.lanes, b.lanes)};
}
ASCEND_SAMPLE_INLINE Mask operator|(const Mask& a, const Mask& b) {
  return {map([](IntPart x, IntPart y) { return x | y; }, a.lanes, b.lanes)};
}
ASCEND_SAMPLE_INLINE Floats select(const Mask& mask, const Floats& a, const Floats& b) {
  return map([](IntPart m, FloatPart x, FloatPart y) { return m ? x : y; }, mask.lanes, a, b);
}

/// Bit i: lane i.
ASCEND_SAMPLE_INLINE uint32_t bits_of(const Mask& mask) {
#if defined(__AVX2__)
  const auto low = static_cast<uint32_t>(_mm256_movemask_ps(FloatPart(mask.lanes.part[0])));
  const auto high = static_cast<uint32_t>(_mm256_movemask_ps(FloatPart(mask.lanes.part[1])));
  return low | high << 8;
#else
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
#if defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
    const uint32x4_t weights = {1, 2, 4, 8};
    bits |= vaddvq_u32(vandq_u32(uint32x4_t(mask.lanes.part[i]), weights)) << (4 * i);
#else
    for (size_t lane = 0; lane < 4; ++lane) {
      bits |= (static_cast<uint32_t>(mask.lanes.part[i][lane]) & 1U) << (4 * i + lane);
    }
#endif
  }
  return bits;
#endif
}

#endif

/// Counts the truths of masks.
class Counter {
 public:
  ASCEND_SAMPLE_INLINE void add(const Mask& mask) {
#if defined(__AVX512F__)
    total_ += static_cast<size_t>(__builtin_popcount(mask.lanes));
#else
    counts_ = map([](IntPart x, IntPart y) { return x - y; }, counts_, mask.lanes);
#endif
  }

  ASCEND_SAMPLE_INLINE size_t total() const {
#if defined(__AVX512F__)
    return total_;
#else
    int32_t lanes[kLanes];
    store(lanes, counts_);
    size_t total = 0;
    for (const int32_t lane : lanes) {
      total += static_cast<size_t>(lane);
    }
    return total;
#endif
  }

 private:
#if defined(__AVX512F__)
  size_t total_ = 0;
#else
  Ints counts_{};
#endif
};

/// Writes the lanes of the mask one after the other, and junk up to 16 floats behind them. Returns
/// their number.
ASCEND_SAMPLE_INLINE size_t compress(float* out, const Mask& mask, const Floats& values) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(mask.lanes, values.part[0]));
  return static_cast<size_t>(__builtin_popcount(mask.lanes));
#else
  float lanes[kLanes];
  store(lanes, values);
  size_t count = 0;
  for (uint32_t bits = bits_of(mask); bits != 0; bits &= bits - 1) {
    out[count++] = lanes[__builtin_ctz(bits)];
  }
  return count;
#endif
}

/// The largest lane; no lane is NaN.
ASCEND_SAMPLE_INLINE float largest_lane(const Floats& vector) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(vector.part[0]);
#else
  float lanes[kLanes];
  store(lanes, vector);
  float result = lanes[0];
  for (const float lane : lanes) {
    result = lane > result ? lane : result;
  }
  return result;
#endif
}

/// The sum in float64, always in the same order.
ASCEND_SAMPLE_INLINE double sum_lanes(const Floats& vector) {
  using FourFloats = float __attribute__((vector_size(16)));
  using FourDoubles = double __attribute__((vector_size(32)));
  FourFloats quarters[4];
  std::memcpy(quarters, &vector, sizeof(vector));
  FourDoubles sums{};
#pragma GCC unroll 4
  for (const FourFloats& quarter : quarters) {
    sums += __builtin_convertvector(quarter, FourDoubles);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Fills up to whole vectors with -inf, which no search counts.
inline void pad(float* values, size_t count) {
  for (size_t i = count; i % kLine != 0; ++i) {
    values[i] = -kInfinity;
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
