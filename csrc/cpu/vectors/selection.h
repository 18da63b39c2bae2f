// Lanes chosen by the bits of a word.
#pragma once

#include "cpu/vectors/simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// 1, 2, 4 and so on, as far as the lanes of a part have room for them.
template <typename Part, typename Element>
ASCEND_SAMPLE_INLINE Part powers_of_two() {
  Part result{};
  for (size_t lane = 0; lane < sizeof(Part) / sizeof(Element); ++lane) {
    result[lane] = static_cast<Element>(Element{1} << lane % (8 * sizeof(Element)));
  }
  return result;
}

/// Lane i is bit i of the first 16.
ASCEND_SAMPLE_INLINE Mask mask_of(uint32_t bits) {
#if defined(__AVX512F__)
  return {static_cast<__mmask16>(bits)};
#else
  constexpr size_t kPartLanes = kLanes / kParts;
  const auto powers = powers_of_two<UintPart, uint32_t>();
  Mask result;
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
    const UintPart own = (bits >> (i * kPartLanes)) - UintPart{};
    result.lanes.part[i] = IntPart((own & powers) != UintPart{});
  }
  return result;
#endif
}

/// Lane i where bit i is set, and `other` elsewhere.
ASCEND_SAMPLE_INLINE Shorts select(uint32_t bits, const Shorts& a, uint16_t other) {
#if defined(__AVX512F__)
  const __m512i others = _mm512_set1_epi16(static_cast<int16_t>(other));
  return {{ShortPart(_mm512_mask_blend_epi16(bits, others, __m512i(a.part[0])))}};
#else
  constexpr size_t kPartLanes = kLine / kParts;
  const auto powers = powers_of_two<UshortPart, uint16_t>();
  Shorts result;
#pragma GCC unroll 4
  for (size_t i = 0; i < kParts; ++i) {
    // A variable: with sanitizers g++ takes the cast itself for an int, which is too wide.
    const auto part = static_cast<uint16_t>(bits >> (i * kPartLanes));
    const UshortPart own = part - UshortPart{};
    const auto is_set = ShortPart((own & powers) != UshortPart{});
    result.part[i] = is_set ? a.part[i] : ShortPart(other - UshortPart{});
  }
  return result;
#endif
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
