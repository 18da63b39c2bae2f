// Operand and Scalar: what a kernel knows about its arguments.
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "hostcann/opapi/half.h"
#include "hostcann/opapi/handles.h"

namespace hostcann::opapi {

namespace {

struct TypeFacts {
  DataType data_type;
  const char* name;
  size_t bytes;
};

constexpr TypeFacts kTypes[] = {
    {DataType::kFloat, "float32", 4},
    {DataType::kFloat16, "float16", 2},
    {DataType::kInt8, "int8", 1},
    {DataType::kInt32, "int32", 4},
    {DataType::kUInt8, "uint8", 1},
    {DataType::kInt16, "int16", 2},
    {DataType::kUInt16, "uint16", 2},
    {DataType::kUInt32, "uint32", 4},
    {DataType::kInt64, "int64", 8},
    {DataType::kUInt64, "uint64", 8},
    {DataType::kDouble, "float64", 8},
    {DataType::kBool, "bool", 1},
    {DataType::kString, "string", 0},
    {DataType::kComplex64, "complex64", 8},
    {DataType::kComplex128, "complex128", 16},
    {DataType::kBFloat16, "bfloat16", 2},
    {DataType::kComplex32, "complex32", 4},
    {DataType::kHiFloat8, "hifloat8", 1},
    {DataType::kFloat8E5M2, "float8_e5m2", 1},
    {DataType::kFloat8E4M3FN, "float8_e4m3fn", 1},
};

const TypeFacts* facts_of(DataType data_type) {
  for (const TypeFacts& facts : kTypes) {
    if (facts.data_type == data_type) return &facts;
  }
  return nullptr;
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

template <typename T>
T read_as(const void* value) {
  T result;
  std::memcpy(&result, value, sizeof result);
  return result;
}

int64_t saturate(double value) {
  if (std::isnan(value)) return 0;
  if (value >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (value < -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

template <typename T>
bool set_integer(const void* value, Scalar* scalar) {
  const T integer = read_as<T>(value);
  scalar->integer_value = static_cast<int64_t>(integer);
  scalar->complex_value = static_cast<double>(integer);
  return true;
}

bool set_number(std::complex<double> value, Scalar* scalar) {
  scalar->complex_value = value;
  scalar->integer_value = saturate(scalar->real());
  return true;
}

}  // namespace

size_t item_size(DataType data_type) {
  const TypeFacts* facts = facts_of(data_type);
  return facts == nullptr ? 0 : facts->bytes;
}

std::string name_of(DataType data_type) {
  const TypeFacts* facts = facts_of(data_type);
  if (facts != nullptr) return facts->name;
  return "aclDataType(" + std::to_string(static_cast<int>(data_type)) + ")";
}

std::string name_of(const std::vector<int64_t>& sizes) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < sizes.size(); ++i) text << (i == 0 ? "" : ", ") << sizes[i];
  text << ']';
  return text.str();
}

std::string hexadecimal(const void* handle) {
  std::ostringstream text;
  text << "0x" << std::hex << reinterpret_cast<uint64_t>(handle);
  return text.str();
}

int64_t Operand::numel() const { return product(sizes); }

int64_t Operand::storage_numel() const { return product(storage_sizes); }

int64_t Operand::distinct_numel() const {
  int64_t count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] != 0 || sizes[i] == 0) count *= sizes[i];
  }
  return count;
}

bool Operand::is_contiguous() const {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

int64_t Operand::first_byte() const {
  if (numel() == 0) return 0;
  int64_t lowest = offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0) lowest += (sizes[i] - 1) * strides[i];
  }
  return lowest * static_cast<int64_t>(item_size());
}

int64_t Operand::end_byte() const {
  if (numel() == 0) return 0;
  int64_t highest = offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] > 0) highest += (sizes[i] - 1) * strides[i];
  }
  return (highest + 1) * static_cast<int64_t>(item_size());
}

std::byte* Operand::resolve() const {
  if (!defined()) throw TaskError(kDeviceTaskFailed, name + ": read, but left out by the caller");
  if (numel() == 0) return nullptr;
  const int64_t first = first_byte();
  // Integer arithmetic: the address may be null or freed, and resolve() is what finds that out.
  const auto* start = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(address) +
                                                    static_cast<uintptr_t>(first));
  std::byte* lowest =
      ::hostcann::resolve(start, static_cast<size_t>(end_byte() - first), describe());
  return lowest + (offset * static_cast<int64_t>(item_size()) - first);
}

std::string Operand::describe() const {
  if (!defined()) return name + " (left out)";
  std::ostringstream text;
  text << name << " (" << name_of(data_type) << ' ' << name_of(sizes) << ", strides "
       << name_of(strides) << ", offset " << offset << ')';
  return text.str();
}

bool Scalar::is_integral() const {
  switch (data_type) {
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
    case DataType::kUInt16:
    case DataType::kUInt32:
    case DataType::kUInt64:
      return true;
    default:
      return false;
  }
}

bool Scalar::is_complex() const {
  return data_type == DataType::kComplex32 || data_type == DataType::kComplex64 ||
         data_type == DataType::kComplex128;
}

bool read_scalar(const void* value, DataType data_type, Scalar* scalar) {
  scalar->data_type = data_type;
  switch (data_type) {
    case DataType::kBool:
    case DataType::kUInt8:
      return set_integer<uint8_t>(value, scalar);
    case DataType::kInt8:
      return set_integer<int8_t>(value, scalar);
    case DataType::kInt16:
      return set_integer<int16_t>(value, scalar);
    case DataType::kUInt16:
      return set_integer<uint16_t>(value, scalar);
    case DataType::kInt32:
      return set_integer<int32_t>(value, scalar);
    case DataType::kUInt32:
      return set_integer<uint32_t>(value, scalar);
    case DataType::kInt64:
      return set_integer<int64_t>(value, scalar);
    case DataType::kUInt64:
      return set_integer<uint64_t>(value, scalar);
    case DataType::kFloat16:
      return set_number(float_of_float16(read_as<uint16_t>(value)), scalar);
    case DataType::kBFloat16:
      return set_number(float_of_bfloat16(read_as<uint16_t>(value)), scalar);
    case DataType::kFloat:
      return set_number(read_as<float>(value), scalar);
    case DataType::kDouble:
      return set_number(read_as<double>(value), scalar);
    case DataType::kComplex64:
      return set_number(read_as<std::complex<float>>(value), scalar);
    case DataType::kComplex128:
      return set_number(read_as<std::complex<double>>(value), scalar);
    default:
      return false;
  }
}

}  // namespace hostcann::opapi
