// Operand and Scalar: what a kernel knows about its arguments.
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "hostcann/half.h"
#include "opapi/handles.h"

namespace hostcann::opapi {

namespace {

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
void set_integer(const void* value, Scalar* scalar) {
  const T integer = read_as<T>(value);
  scalar->integer_value = static_cast<int64_t>(integer);
  scalar->complex_value = static_cast<double>(integer);
}

void set_complex(std::complex<double> value, Scalar* scalar) {
  scalar->complex_value = value;
  scalar->integer_value = saturate(scalar->real());
}

template <typename T>
void set_number(const void* value, Scalar* scalar) {
  set_complex(read_as<T>(value), scalar);
}

template <float (*to_float)(uint16_t)>
void set_half(const void* value, Scalar* scalar) {
  set_complex(to_float(read_as<uint16_t>(value)), scalar);
}

struct TypeFacts {
  DataType data_type;
  const char* name;
  size_t bytes;
  void (*read)(const void* value, Scalar* scalar) = nullptr;  // no scalar is of it without
};

constexpr TypeFacts kTypes[] = {
    {DataType::kFloat, "float32", 4, set_number<float>},
    {DataType::kFloat16, "float16", 2, set_half<float_of_float16>},
    {DataType::kInt8, "int8", 1, set_integer<int8_t>},
    {DataType::kInt32, "int32", 4, set_integer<int32_t>},
    {DataType::kUInt8, "uint8", 1, set_integer<uint8_t>},
    {DataType::kInt16, "int16", 2, set_integer<int16_t>},
    {DataType::kUInt16, "uint16", 2, set_integer<uint16_t>},
    {DataType::kUInt32, "uint32", 4, set_integer<uint32_t>},
    {DataType::kInt64, "int64", 8, set_integer<int64_t>},
    {DataType::kUInt64, "uint64", 8, set_integer<uint64_t>},
    {DataType::kDouble, "float64", 8, set_number<double>},
    {DataType::kBool, "bool", 1, set_integer<uint8_t>},
    {DataType::kString, "string", 0},
    {DataType::kComplex64, "complex64", 8, set_number<std::complex<float>>},
    {DataType::kComplex128, "complex128", 16, set_number<std::complex<double>>},
    {DataType::kBFloat16, "bfloat16", 2, set_half<float_of_bfloat16>},
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
  const TypeFacts* facts = facts_of(data_type);
  if (facts == nullptr || facts->read == nullptr) return false;
  facts->read(value, scalar);
  return true;
}

}  // namespace hostcann::opapi
