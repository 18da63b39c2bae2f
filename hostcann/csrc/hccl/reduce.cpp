#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "hccl/groups.h"
#include "hostcann/half.h"

namespace hostcann::hccl {
namespace {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

float decode(Float16 value) { return opapi::float_of_float16(value.bits); }
float decode(BFloat16 value) { return opapi::float_of_bfloat16(value.bits); }
template <typename T>
T decode(T value) {
  return value;
}

/// `bits` without its last `dropped` bits, rounded to nearest, ties to even.
uint32_t rounded(uint32_t bits, int dropped) {
  const uint32_t half = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  return (bits + half) >> dropped;
}

void encode(float value, BFloat16* into) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  into->bits = static_cast<uint16_t>(value != value ? bits >> 16 | 0x40 : rounded(bits, 16));
}

void encode(float value, Float16* into) {
  constexpr uint32_t kInfinity = 0x7C00;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const float size = std::bit_cast<float>(bits & 0x7FFFFFFF);
  uint32_t magnitude;
  if (size != size) {
    magnitude = kInfinity | 0x200;
  } else if (size >= 65520.0f) {  // half way from the largest to what would be next
    magnitude = kInfinity;
  } else if (size < 0x1p-14f) {  // a multiple of 2^-24, which the sum's last bit is
    magnitude = std::bit_cast<uint32_t>(size + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    magnitude = rounded((bits & 0x7FFFFFFF) - ((127u - 15u) << 23), 13);
  }
  into->bits = static_cast<uint16_t>(sign | magnitude);
}

template <typename T>
void encode(T value, T* into) {
  *into = value;
}

template <typename T>
T combine(T left, T right, Reduction reduction) {
  // An integer's sum wraps, as a device's does; a signed one of C++ may not.
  using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  switch (reduction) {
    case Reduction::kSum:
      return static_cast<T>(static_cast<Wide>(left) + static_cast<Wide>(right));
    case Reduction::kProduct:
      return static_cast<T>(static_cast<Wide>(left) * static_cast<Wide>(right));
    case Reduction::kLargest:
      return left != left || left > right ? left : right;  // NaN stays
    default:
      return left != left || left < right ? left : right;
  }
}

template <typename Element>
void reduce_elements(std::span<const std::byte* const> parts, std::byte* into, size_t count,
                     Reduction reduction) {
  for (size_t i = 0; i < count; ++i) {
    const auto element = [&](const std::byte* part) {
      Element value;
      std::memcpy(&value, part + i * sizeof value, sizeof value);
      return decode(value);
    };
    auto total = element(parts[0]);
    for (const std::byte* part : parts.subspan(1)) total = combine(total, element(part), reduction);
    Element result;
    encode(total, &result);
    std::memcpy(into + i * sizeof result, &result, sizeof result);
  }
}

using Reduce = void (*)(std::span<const std::byte* const>, std::byte*, size_t, Reduction);

struct DataType {
  const char* name;
  size_t size;
  Reduce reduce;
};

template <typename Element>
constexpr DataType type(const char* name) {
  return {name, sizeof(Element), &reduce_elements<Element>};
}

/// By HcclDataType.
constexpr DataType kTypes[] = {
    type<int8_t>("int8"),     type<int16_t>("int16"),  type<int32_t>("int32"),
    type<Float16>("float16"), type<float>("float32"),  type<int64_t>("int64"),
    type<uint64_t>("uint64"), type<uint8_t>("uint8"),  type<uint16_t>("uint16"),
    type<uint32_t>("uint32"), type<double>("float64"), type<BFloat16>("bfloat16"),
};

const DataType* find_type(int data_type) {
  return data_type < 0 || data_type >= static_cast<int>(std::size(kTypes)) ? nullptr
                                                                           : &kTypes[data_type];
}

}  // namespace

size_t size_of(int data_type) {
  const DataType* type = find_type(data_type);
  return type == nullptr ? 0 : type->size;
}

std::string name_of_type(int data_type) {
  const DataType* type = find_type(data_type);
  return type == nullptr ? "HcclDataType(" + std::to_string(data_type) + ")" : type->name;
}

void reduce(std::span<const std::byte* const> parts, std::byte* into, size_t count, int data_type,
            Reduction reduction) {
  find_type(data_type)->reduce(parts, into, count, reduction);
}

}  // namespace hostcann::hccl
