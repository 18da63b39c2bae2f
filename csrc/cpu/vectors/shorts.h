// 32 lanes of 16 bits: order and comparison.
#pragma once

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

ASCEND_SAMPLE_INLINE Shorts operator-(const Shorts& a, int16_t b) {
  return map([b](ShortPart x) { return ShortPart(UshortPart(x) - uint16_t(b)); }, a);  // wraps
}

/// The larger of signed lanes.
ASCEND_SAMPLE_INLINE Shorts larger(const Shorts& a, const Shorts& b) {
  return map(
      [](ShortPart x, ShortPart y) -> ShortPart {
#if defined(__AVX512F__)
        return ShortPart(_mm512_max_epi16(__m512i(x), __m512i(y)));
#elif defined(__AVX2__)
        return ShortPart(_mm256_max_epi16(__m256i(x), __m256i(y)));
#else
        return x > y ? x : y;
#endif
      },
      a, b);
}

/// The smaller of lanes taken as unsigned.
ASCEND_SAMPLE_INLINE Shorts smaller_unsigned(const Shorts& a, const Shorts& b) {
  return map(
      [](ShortPart x, ShortPart y) -> ShortPart {
#if defined(__AVX512F__)
        return ShortPart(_mm512_min_epu16(__m512i(x), __m512i(y)));
#elif defined(__AVX2__)
        return ShortPart(_mm256_min_epu16(__m256i(x), __m256i(y)));
#else
        return UshortPart(x) < UshortPart(y) ? x : y;
#endif
      },
      a, b);
}

/// The larger of lanes taken as unsigned.
ASCEND_SAMPLE_INLINE Shorts larger_unsigned(const Shorts& a, const Shorts& b) {
  return map(
      [](ShortPart x, ShortPart y) -> ShortPart {
#if defined(__AVX512F__)
        return ShortPart(_mm512_max_epu16(__m512i(x), __m512i(y)));
#elif defined(__AVX2__)
        return ShortPart(_mm256_max_epu16(__m256i(x), __m256i(y)));
#else
        return UshortPart(x) > UshortPart(y) ? x : y;
#endif
      },
      a, b);
}

/// Bit i: lane i, as unsigned number, is below the bound.
ASCEND_SAMPLE_INLINE uint32_t bits_below(const Shorts& a, uint16_t bound) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epu16_mask(__m512i(a.part[0]), _mm512_set1_epi16(int16_t(bound)));
#else
  const Shorts truths =
      map([=](ShortPart x) { return ShortPart(UshortPart(x) < bound - UshortPart{}); }, a);
#if defined(__AVX2__)
  // Truths of 16 bits become bytes, in the order of the lanes after the permutation.
  const __m256i bytes = _mm256_packs_epi16(__m256i(truths.part[0]), __m256i(truths.part[1]));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xD8)));
#else
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
#if defined(__ARM_NEON) && !defined(ASCEND_SAMPLE_PLAIN)
    const uint16x8_t weights = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t chosen = vandq_u16(uint16x8_t(truths.part[i]), weights);
    bits |= static_cast<uint32_t>(vaddvq_u16(chosen)) << (8 * i);
#else
    for (size_t lane = 0; lane < 8; ++lane) {
      bits |= (static_cast<uint32_t>(truths.part[i][lane]) & 1U) << (8 * i + lane);
    }
#endif
  }
  return bits;
#endif
#endif
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
