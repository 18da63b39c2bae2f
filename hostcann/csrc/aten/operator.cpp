// The parts of operator.h that do not depend on an operator's signature.
#include "aten/operator.h"

#include <c10/core/InferenceMode.h>

#include <cctype>

namespace hostcann::aten {
namespace {

using AclType = opapi::DataType;

std::optional<DataType> torch_type(AclType type) {
  switch (type) {
    case AclType::kFloat:
      return at::kFloat;
    case AclType::kFloat16:
      return at::kHalf;
    case AclType::kBFloat16:
      return at::kBFloat16;
    case AclType::kDouble:
      return at::kDouble;
    case AclType::kInt8:
      return at::kChar;
    case AclType::kUInt8:
      return at::kByte;
    case AclType::kInt16:
      return at::kShort;
    case AclType::kInt32:
      return at::kInt;
    case AclType::kInt64:
      return at::kLong;
    case AclType::kBool:
      return at::kBool;
    case AclType::kUInt16:
      return at::kUInt16;
    case AclType::kUInt32:
      return at::kUInt32;
    case AclType::kUInt64:
      return at::kUInt64;
    case AclType::kComplex64:
      return at::kComplexFloat;
    case AclType::kComplex128:
      return at::kComplexDouble;
    default:
      return std::nullopt;
  }
}

int check_type(const Call& call, const char* name, AclType type) {
  if (torch_type(type)) return kSuccess;
  return opapi::reject(
      kAclnnInvalid, call.function, name,
      "must be of a type that ATen has a CPU kernel for, got " + opapi::name_of(type));
}

/// A tensor over the operand's own bytes. Called on the stream's thread.
at::Tensor tensor_of(const opapi::Operand& operand) {
  const std::optional<DataType> type = torch_type(operand.data_type);  // phase 1 has checked it
  const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(type.value());
  std::byte* data = operand.resolve();
  if (data == nullptr) return at::empty(operand.sizes, options);  // an empty view has no bytes
  return at::from_blob(data, operand.sizes, operand.strides, options);
}

at::Scalar torch_scalar(const opapi::Scalar& scalar) {
  if (scalar.is_bool()) return at::Scalar(scalar.integer_value != 0);
  if (scalar.is_integral()) return at::Scalar(scalar.integer_value);
  if (scalar.is_complex()) return at::Scalar(c10::complex<double>(scalar.complex_value));
  return at::Scalar(scalar.real());
}

}  // namespace

void Output::operator=(const at::Tensor& value) const {
  if (value.sizes() != tensor_.sizes()) {
    throw TaskError(kDeviceTaskFailed, name_ + " must have the sizes of the result, " +
                                           opapi::name_of(value.sizes().vec()) + ", got " +
                                           opapi::name_of(tensor_.sizes().vec()));
  }
  tensor_.copy_(value);
}

void Outputs::operator=(const std::vector<at::Tensor>& values) const {
  if (values.size() != outputs_.size()) {
    throw TaskError(kDeviceTaskFailed, "the list of results must have " +
                                           std::to_string(values.size()) + " tensors, got " +
                                           std::to_string(outputs_.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) outputs_[i] = values[i];
}

void SizedOutput::operator=(const at::Tensor& value) const {
  const at::Tensor& buffer = buffer_.tensor();
  if (value.numel() > buffer.numel() || !buffer.is_contiguous()) {
    throw TaskError(kDeviceTaskFailed,
                    buffer_.name() + " must be contiguous and hold the largest result, got sizes " +
                        opapi::name_of(buffer.sizes().vec()) + " for a result of " +
                        opapi::name_of(value.sizes().vec()));
  }
  if (value.numel() > 0) buffer.view(-1).narrow(0, 0, value.numel()).copy_(value.flatten());
  launch_->set_output_sizes(index_, value.sizes().vec());
}

at::Tensor Parameter<Input>::give(Position held, const Launch& launch) {
  return tensor_of(launch.input(held.index));
}

std::optional<at::Tensor> Parameter<OptionalInput>::give(Position held, const Launch& launch) {
  const opapi::Operand& operand = launch.input(held.index);
  return operand.defined() ? std::optional(tensor_of(operand)) : std::nullopt;
}

Output Parameter<Output>::give(Position held, const Launch& launch) {
  const opapi::Operand& operand = launch.output(held.index);
  return {tensor_of(operand), operand.name};
}

OptionalOutput Parameter<OptionalOutput>::give(Position held, const Launch& launch) {
  const opapi::Operand& operand = launch.output(held.index);
  if (!operand.defined()) return OptionalOutput(std::nullopt);
  return OptionalOutput(Output(tensor_of(operand), operand.name));
}

at::Scalar Parameter<Number>::hold(Call& call, const char* name, Abi value) {
  return torch_scalar(read(call, name, value, opapi::scalar_of));
}

std::vector<at::Scalar> Parameter<Numbers>::hold(Call& call, const char* name, Abi value) {
  std::vector<at::Scalar> numbers;
  for (const opapi::Scalar& scalar : read(call, name, value, opapi::scalars_of)) {
    numbers.push_back(torch_scalar(scalar));
  }
  return numbers;
}

std::string Parameter<Text>::hold(Call& call, const char* name, Abi value) {
  if (value == nullptr && call.status == kSuccess) {
    call.status = opapi::reject(kAclnnNullptr, call.function, name, "must not be null");
  }
  return value == nullptr ? std::string() : std::string(value);
}

DataType Parameter<DataType>::hold(Call& call, const char* name, Abi value) {
  const auto acl_type = static_cast<AclType>(value);
  if (call.status == kSuccess) call.status = check_type(call, name, acl_type);
  return torch_type(acl_type).value_or(at::kFloat);
}

int check_types(const Call& call) {
  for (const auto* operands : {&call.inputs, &call.outputs}) {
    for (const opapi::Argument& argument : *operands) {
      opapi::Operand operand;
      if (argument.tensor == nullptr) continue;  // make_executor says whether it may be
      if (int status = opapi::describe(call.function, argument.name, argument.tensor, &operand)) {
        return status;
      }
      if (int status = check_type(call, argument.name, operand.data_type)) return status;
    }
  }
  return kSuccess;
}

std::vector<std::string> names_of(const char* parameters) {
  std::vector<std::string> names;
  std::string word;
  bool is_inside = false;
  for (const char* c = parameters; *c != '\0'; ++c) {
    if (*c == ',' || *c == ')') names.push_back(word);  // the last word before it is the name
    const bool was_inside =
        std::exchange(is_inside, std::isalnum(static_cast<unsigned char>(*c)) || *c == '_');
    if (is_inside && !was_inside) word.clear();
    if (is_inside) word += *c;
  }
  return names;
}

void run_task(const std::function<void()>& body) {
  // Operands are plain memory: no autograd, no version counters, no views to track.
  const c10::InferenceMode inference;
  try {
    body();
  } catch (const c10::Error& error) {
    // The operator's name comes from the stream; ATen's C++ stack would bury the message.
    throw TaskError(kDeviceTaskFailed, error.what_without_backtrace());
  }
}

}  // namespace hostcann::aten
