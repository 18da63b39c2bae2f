// exp in float32 and in float64, and sums: the same operations in the same order on every
// instruction set.
#pragma once

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The least x for which exp_not_positive(x) is the same everywhere.
inline constexpr float kLeastLogWeight = -87.0F;

/// exp(x) for x <= 0, to 2e-7 and 1 for 0. Below kLeastLogWeight it is at most about 1e-38, which
/// is nothing beside the 1 of a row's maximum and therefore need not be the same everywhere.
ASCEND_SAMPLE_INLINE Floats exp_not_positive(const Floats& x) {
  // exp(x) = 2^n 2^f, n the integer next to x log2(e).
  const Floats log2e = splat(0x1.715476p+0F);
#if defined(__AVX512F__)
  const Floats exponent = x * log2e;
  const Floats f{{FloatPart(_mm512_reduce_ps(exponent.part[0], _MM_FROUND_TO_NEAREST_INT))}};
#else
  // Adding 1.5 * 2^23 rounds to an integer, and leaves it in the low bits.
  constexpr float kRounder = 12582912.0F;
  const Floats exponent = larger(x, splat(kLeastLogWeight)) * log2e;
  const Floats rounded = exponent + splat(kRounder);
  const Floats f = exponent - (rounded - splat(kRounder));
#endif
  // 2^f on [-1/2, 1/2], least maximum of the relative error (1.1e-7) among those with 2^0 = 1.
  Floats power = splat(0x1.5bba14p-10F);
  power = fused(power, f, splat(0x1.3cea88p-7F));
  power = fused(power, f, splat(0x1.c6b752p-5F));
  power = fused(power, f, splat(0x1.ebf9bcp-3F));
  power = fused(power, f, splat(0x1.62e42ap-1F));
  power = fused(power, f, splat(1.0F));
#if defined(__AVX512F__)
  return {{FloatPart(_mm512_scalef_ps(power.part[0], (exponent - f).part[0]))}};
#else
  return floats_of(bits_of(power) + shift_left<23>(bits_of(rounded)));
#endif
}

inline constexpr float kExponentOne = 0x1p23F;  // of the exponent of a float
inline constexpr float kExponentBias = 127 * kExponentOne;
inline constexpr float kExponentE = 0x1.715476p+0F * kExponentOne;  // log2(e)

/// Whether a hurry tells of what is NaN or below 0: then its integers have the bits of a NaN.
#if defined(__AVX512F__)
inline constexpr bool kHurryTells = true;
#else
inline constexpr bool kHurryTells = false;
#endif

/// exp(x) within the factors below, in four operations: an integer that grows like x log2(e), taken
/// as the exponent and mantissa of a float, interpolates 2^t between whole t. 0 for NaN and below
/// -88.03, where a row with a maximum in the range below has nothing that counts. With another
/// factor and bias x is multiplied and shifted in the same operations. In a hurry it takes three
/// operations where that tells of what would be 0, as NaN.
template <bool kIsHasty = false>
ASCEND_SAMPLE_INLINE Floats approximate_exp(const Floats& x,
                                            const Floats& factor = splat(kExponentE),
                                            const Floats& bias = splat(kExponentBias)) {
  const Floats exponent = fused(x, factor, bias);
#if defined(__AVX512F__)
  if constexpr (kIsHasty) {
    return {{FloatPart(_mm512_cvtps_epu32(exponent.part[0]))}};
  }
#endif
  return floats_of(convert_not_negative(exponent));
}

/// approximate_exp(x) / exp(x) is at most 1.0615 (the chord over the curve, at t = 0.53) and at
/// least 1, but for rounding, 1e-5.
inline constexpr double kLargestRatio = 1.062;
inline constexpr double kLeastRatio = 0.9999;

/// exp(x) for x <= 0 in float64, to about an ulp; 0 below -708, and for -inf.
ASCEND_SAMPLE_INLINE double exp_not_positive(double x) {
  constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52
  const double limited = x > -708.0 ? x : -708.0;
  const double rounded = __builtin_fma(limited, 0x1.71547652b82fep+0, kRounder);
  const double n = rounded - kRounder;
  // ln(2) in two parts, so that n of them are subtracted exactly.
  const double r =
      __builtin_fma(n, -0x1.abc9e3b39803fp-56, __builtin_fma(n, -0x1.62e42fefa39efp-1, limited));
  double power = 1.0 / 6227020800.0;  // 1/13!: the Taylor series of exp on [-ln(2)/2, ln(2)/2]
  power = __builtin_fma(power, r, 1.0 / 479001600.0);
  power = __builtin_fma(power, r, 1.0 / 39916800.0);
  power = __builtin_fma(power, r, 1.0 / 3628800.0);
  power = __builtin_fma(power, r, 1.0 / 362880.0);
  power = __builtin_fma(power, r, 1.0 / 40320.0);
  power = __builtin_fma(power, r, 1.0 / 5040.0);
  power = __builtin_fma(power, r, 1.0 / 720.0);
  power = __builtin_fma(power, r, 1.0 / 120.0);
  power = __builtin_fma(power, r, 1.0 / 24.0);
  power = __builtin_fma(power, r, 1.0 / 6.0);
  power = __builtin_fma(power, r, 0.5);
  power = __builtin_fma(power, r, 1.0);
  power = __builtin_fma(power, r, 1.0);
  const int64_t bits = std::bit_cast<int64_t>(power) + (std::bit_cast<int64_t>(rounded) << 52);
  return x < -708.0 ? 0.0 : std::bit_cast<double>(bits);
}

/// Always added in the same order.
inline double sum(const double* values, size_t count) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      sums[lane] += values[i + lane];
    }
  }
  for (size_t lane = 0; lane < 8 && i + lane < count; ++lane) {
    sums[lane] += values[i + lane];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/// Adds float32 in 16 lanes, and those now and then in float64: always in the same order.
class Sum {
 public:
  ASCEND_SAMPLE_INLINE void add(const Floats& values) {
    lanes_ = lanes_ + values;
    if (++pending_ == kMostPending) {
      flush();
    }
  }
  ASCEND_SAMPLE_INLINE double total() {
    flush();
    return total_;
  }

 private:
  static constexpr size_t kMostPending = 32;

  ASCEND_SAMPLE_INLINE void flush() {
    total_ += sum_lanes(lanes_);
    lanes_ = Floats{};
    pending_ = 0;
  }

  Floats lanes_{};
  double total_ = 0;
  size_t pending_ = 0;
};

/// exponentials[i] = exp(values[i] - maximum) in float64, with rule (5) for +inf: entries of it
/// share the whole mass. Returns their sum, always added in the same order.
inline double exp_differences(const float* values, size_t count, float maximum,
                              double* exponentials) {
  if (maximum == __builtin_inff()) {
    double infinities = 0;
    for (size_t i = 0; i < count; ++i) {
      exponentials[i] = values[i] == maximum ? 1.0 : 0.0;
      infinities += exponentials[i];
    }
    return infinities;
  }
  for (size_t i = 0; i < count; ++i) {
    exponentials[i] = exp_not_positive(static_cast<double>(values[i]) - maximum);
  }
  return sum(exponentials, count);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
