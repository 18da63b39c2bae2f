// Logits of the three types as vectors of float32, and rows cut into lines and chunks.
#pragma once

#include <cstring>
#include <limits>

#include "simd.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline constexpr size_t kLine = 32;        // logits: a cache line of a 16-bit type
inline constexpr size_t kChunkLines = 32;  // lines
inline constexpr size_t kChunk = kLine * kChunkLines;

/// 32 logits as float32.
struct Line {
  Floats first;
  Floats second;
};

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
};

struct BFloat16 {
  using Storage = uint16_t;
  static constexpr Storage kMinusInfinity = 0xFF80;

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
      using Halves = uint16_t __attribute__((vector_size(kPartBytes / 2)));
      Halves halves;
      std::memcpy(&halves, data + i * kLanes / kParts, sizeof(halves));
      wide.part[i] = __builtin_convertvector(halves, IntPart);
    }
    return floats_of(shift_left<16>(wide));
  }
};

struct Float16 {
  using Storage = uint16_t;
  static constexpr Storage kMinusInfinity = 0xFC00;

  static float value_of(Storage logit) {
    Storage row[kLanes] = {logit};
    float values[kLanes];
    store(values, widen(row));
    return values[0];
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
    using Halves = uint16_t __attribute__((vector_size(kPartBytes / 2)));
    Halves halves;
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

/// A contiguous row that can be read in whole chunks: the last one is a copy, filled up with -inf.
template <typename Type>
class Row {
 public:
  using Storage = typename Type::Storage;

  /// `last_chunk` has room for kChunk logits.
  Row(const Storage* logits, size_t vocab_size, Storage* last_chunk)
      : logits_(logits), vocab_size_(vocab_size), last_chunk_(logits) {
    const size_t whole = vocab_size / kChunk;
    if (const size_t rest = vocab_size % kChunk; rest != 0) {
      std::memcpy(last_chunk, logits + whole * kChunk, rest * sizeof(Storage));
      for (size_t i = rest; i < kChunk; ++i) {
        last_chunk[i] = Type::kMinusInfinity;
      }
      last_chunk_ = last_chunk;
    } else {
      last_chunk_ = logits + (whole - 1) * kChunk;
    }
  }

  size_t vocab_size() const { return vocab_size_; }
  size_t chunks() const { return (vocab_size_ + kChunk - 1) / kChunk; }
  size_t lines() const { return (vocab_size_ + kLine - 1) / kLine; }

  const Storage* chunk(size_t index) const {
    return index + 1 < chunks() ? logits_ + index * kChunk : last_chunk_;
  }
  const Storage* line(size_t index) const {
    return chunk(index / kChunkLines) + (index % kChunkLines) * kLine;
  }

  /// NaN counts as -inf.
  float value(size_t id) const {
    const float value = Type::value_of(logits_[id]);
    return value == value ? value : -kInfinity;
  }

 private:
  const Storage* logits_;
  size_t vocab_size_;
  const Storage* last_chunk_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
