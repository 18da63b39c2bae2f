// Floating point formats, decoded exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hostcann/opapi.h"

namespace hostcann::opapi {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float float_of_bfloat16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

inline float float_of_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {  // zero and the subnormals, whose unit is 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 0x1F ? 0xFF : exponent - 15 + 127;
  return float_of_bits(sign | wide_exponent << 23 | mantissa << 13);
}

/// `data_type` is kFloat16 or kBFloat16.
inline float decode_half(uint16_t bits, DataType data_type) {
  return data_type == DataType::kBFloat16 ? float_of_bfloat16(bits) : float_of_float16(bits);
}

/// The element at `index`, in elements, of an array of kFloat16, kBFloat16 or kFloat.
inline float decode_float(const std::byte* data, int64_t index, DataType data_type) {
  if (data_type == DataType::kFloat) return reinterpret_cast<const float*>(data)[index];
  return decode_half(reinterpret_cast<const uint16_t*>(data)[index], data_type);
}

}  // namespace hostcann::opapi
