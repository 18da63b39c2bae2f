// How an aclnn operator is written with an ATen CPU kernel: one line.
//
//   OPERATOR(aclnnCumsum, (Input self, int64_t dim, DataType dtype, Output out),
//            out = at::cumsum(self, dim, dtype))
//
// The parameter list is the operator's C signature in CANN's order, in ATen's types; the C types of
// the exported function follow from them (Parameter<T>::Abi below), so the two cannot disagree.
// Phase 1 copies every argument; the last part is the body of a function that runs on a stream's
// thread, with tensors over the operands' host bytes.
//
// Assigning to an Output copies into the operand's memory, with its strides and its type. An
// operand that is read and written (CANN's selfRef) is an Updated, which converts to at::Tensor.
// Because results are computed first and copied then, an output may overlap an input, as in
// torch_npu's own out= calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "aten/spelled.h"
#include "hostcann/opapi.h"

namespace hostcann::aten {

using DataType = at::ScalarType;
using opapi::Launch;

// ---- what a body sees ----

using Input = const at::Tensor&;
using OptionalInput = const std::optional<at::Tensor>&;
using Inputs = const std::vector<at::Tensor>&;  // aclTensorList without nulls
using OptionalInputs =
    const std::vector<std::optional<at::Tensor>>&;  // aclTensorList, nulls allowed
using Number = const at::Scalar&;
using OptionalNumber = const std::optional<at::Scalar>&;
using Integers = const std::vector<int64_t>&;  // aclIntArray
using OptionalIntegers = const std::optional<std::vector<int64_t>>&;
using Booleans = const std::vector<bool>&;       // aclBoolArray
using Numbers = const std::vector<at::Scalar>&;  // aclScalarList
using Text = const std::string&;                 // char*

/// An operand that is written.
class Output {
 public:
  Output(at::Tensor tensor, std::string name)
      : tensor_(std::move(tensor)), name_(std::move(name)) {}
  Output(const Output&) = default;
  Output& operator=(const Output&) = delete;

  /// Copies `value` in. The sizes must be equal: a device would not broadcast its result.
  void operator=(const at::Tensor& value) const;

  operator const at::Tensor&() const { return tensor_; }
  const at::Tensor& tensor() const { return tensor_; }
  const std::string& name() const { return name_; }
  DataType type() const { return tensor_.scalar_type(); }
  at::TensorOptions options() const { return tensor_.options(); }

 private:
  at::Tensor tensor_;
  std::string name_;
};

/// An operand that is read and written (CANN's selfRef).
class Updated : public Output {
 public:
  explicit Updated(Output output) : Output(std::move(output)) {}
  using Output::operator=;
};

/// An operand of which indices name what is written.
class WrittenInPart : public Output {
 public:
  explicit WrittenInPart(Output output) : Output(std::move(output)) {}
  using Output::operator=;
};

/// An operand of which indices name what is read.
class ReadInPart {
 public:
  explicit ReadInPart(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  operator const at::Tensor&() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

/// An output whose sizes depend on data: a contiguous buffer for the largest result. Assigning
/// fills its beginning and says the sizes.
class SizedOutput {
 public:
  SizedOutput(Output buffer, const Launch& launch, size_t index)
      : buffer_(std::move(buffer)), launch_(&launch), index_(index) {}
  void operator=(const at::Tensor& value) const;

 private:
  Output buffer_;
  const Launch* launch_;
  size_t index_;
};

/// An output that the caller may leave out: assigning is then nothing.
class OptionalOutput {
 public:
  explicit OptionalOutput(std::optional<Output> output) : output_(std::move(output)) {}
  void operator=(const at::Tensor& value) const {
    if (output_) *output_ = value;
  }

 private:
  std::optional<Output> output_;
};

/// An aclTensorList that is written.
class Outputs {
 public:
  Outputs(std::vector<Output> outputs) : outputs_(std::move(outputs)) {}
  /// Copies the values in, of which there must be as many.
  void operator=(const std::vector<at::Tensor>& values) const;

 private:
  std::vector<Output> outputs_;
};

/// An aclTensorList that is read and written.
struct AllUpdated {
  AllUpdated(const std::vector<Updated>& all) : tensors(all.begin(), all.end()) {}
  std::vector<at::Tensor> tensors;
};

// ---- phase 1 ----

/// Collects the arguments of one call; stops at the first bad one.
struct Call {
  explicit Call(const char* function_) : function(function_) {}

  const char* function;
  std::vector<opapi::Argument> inputs;
  std::vector<opapi::Argument> outputs;
  int status = kSuccess;
};

/// Reads an argument with one of opapi's functions, unless one before it was bad.
template <typename Handle, typename Value>
Value read(Call& call, const char* name, const Handle* handle,
           int (*function)(const char*, const char*, const Handle*, Value*)) {
  Value value{};
  if (call.status == kSuccess) call.status = function(call.function, name, handle, &value);
  return value;
}

/// How a parameter of type T crosses from phase 1 to the kernel. Abi: its C type. Held: what phase
/// 1 keeps. hold(): phase 1. give(): on the stream's thread; what was kept, unless a type says
/// more.
template <typename T>
struct Parameter;

template <typename Abi_, typename Held_>
struct Crosses {
  using Abi = Abi_;
  using Held = Held_;
  static const Held& give(const Held& held, const Launch&) { return held; }
};

template <typename T>
  requires std::is_arithmetic_v<T>
struct Parameter<T> : Crosses<T, T> {
  static T hold(Call&, const char*, T value) { return value; }
};

/// Where an operand stands in Launch.
struct Position {
  size_t index;
};

/// What phase 1 asks of an operand.
struct Rules {
  bool optional = false;
  opapi::Touched touched = opapi::Touched::kAll;
  bool is_read_too = false;  // of an output
};

/// One of a call's operands: of its inputs or of its outputs.
template <std::vector<opapi::Argument> Call::* operands, Rules rules = Rules{}>
struct Operand : Crosses<const aclTensor*, Position> {
  static Position hold(Call& call, const char* name, const aclTensor* tensor) {
    auto& list = call.*operands;
    list.push_back({name, tensor, rules.optional, rules.touched, rules.is_read_too});
    return {list.size() - 1};
  }
};

/// A list whose members cross as parameters of type T do.
template <typename T>
struct ListOf : Crosses<const aclTensorList*, std::vector<Position>> {
  static std::vector<Position> hold(Call& call, const char* name, const aclTensorList* list) {
    std::vector<Position> positions;
    for (const aclTensor* tensor : read(call, name, list, opapi::tensors_of)) {
      positions.push_back(Parameter<T>::hold(call, name, tensor));
    }
    return positions;
  }
  static auto give(const std::vector<Position>& held, const Launch& launch) {
    std::vector<decltype(Parameter<T>::give(Position{}, launch))> all;
    for (Position position : held) all.push_back(Parameter<T>::give(position, launch));
    return all;
  }
};

template <>
struct Parameter<Input> : Operand<&Call::inputs> {
  static at::Tensor give(Position held, const Launch& launch);
};

template <>
struct Parameter<OptionalInput> : Operand<&Call::inputs, Rules{.optional = true}> {
  static std::optional<at::Tensor> give(Position held, const Launch& launch);
};

template <>
struct Parameter<ReadInPart>
    : Operand<&Call::inputs, Rules{.touched = opapi::Touched::kWhatIsNamed}> {
  static ReadInPart give(Position held, const Launch& launch) {
    return ReadInPart(Parameter<Input>::give(held, launch));
  }
};

template <>
struct Parameter<Inputs> : ListOf<Input> {};

template <>
struct Parameter<OptionalInputs> : ListOf<OptionalInput> {};

template <>
struct Parameter<Output> : Operand<&Call::outputs> {
  static Output give(Position held, const Launch& launch);
};

template <>
struct Parameter<Updated> : Operand<&Call::outputs, Rules{.is_read_too = true}> {
  static Updated give(Position held, const Launch& launch) {
    return Updated(Parameter<Output>::give(held, launch));
  }
};

template <>
struct Parameter<WrittenInPart>
    : Operand<&Call::outputs, Rules{.touched = opapi::Touched::kWhatIsNamed}> {
  static WrittenInPart give(Position held, const Launch& launch) {
    return WrittenInPart(Parameter<Output>::give(held, launch));
  }
};

template <>
struct Parameter<SizedOutput> : Operand<&Call::outputs> {
  static SizedOutput give(Position held, const Launch& launch) {
    return {Parameter<Output>::give(held, launch), launch, held.index};
  }
};

template <>
struct Parameter<OptionalOutput> : Operand<&Call::outputs, Rules{.optional = true}> {
  static OptionalOutput give(Position held, const Launch& launch);
};

template <>
struct Parameter<Outputs> : ListOf<Output> {};

template <>
struct Parameter<AllUpdated> : ListOf<Updated> {};

template <>
struct Parameter<Number> : Crosses<const aclScalar*, at::Scalar> {
  static Held hold(Call& call, const char* name, Abi value);
};

template <>
struct Parameter<OptionalNumber> : Crosses<const aclScalar*, std::optional<at::Scalar>> {
  static Held hold(Call& call, const char* name, Abi value) {
    if (value == nullptr) return std::nullopt;
    return Parameter<Number>::hold(call, name, value);
  }
};

template <>
struct Parameter<Integers> : Crosses<const aclIntArray*, std::vector<int64_t>> {
  static Held hold(Call& call, const char* name, Abi value) {
    return read(call, name, value, opapi::integers_of);
  }
};

template <>
struct Parameter<OptionalIntegers>
    : Crosses<const aclIntArray*, std::optional<std::vector<int64_t>>> {
  static Held hold(Call& call, const char* name, Abi value) {
    if (value == nullptr) return std::nullopt;
    return Parameter<Integers>::hold(call, name, value);
  }
};

template <>
struct Parameter<Booleans> : Crosses<const aclBoolArray*, std::vector<bool>> {
  static Held hold(Call& call, const char* name, Abi value) {
    return read(call, name, value, opapi::booleans_of);
  }
};

template <>
struct Parameter<Numbers> : Crosses<const aclScalarList*, std::vector<at::Scalar>> {
  static Held hold(Call& call, const char* name, Abi value);
};

template <>
struct Parameter<Text> : Crosses<const char*, std::string> {
  static Held hold(Call& call, const char* name, Abi value);
};

template <>
struct Parameter<DataType> : Crosses<int, DataType> {  // aclDataType
  static Held hold(Call& call, const char* name, Abi value);
};

/// The parameters' names out of "(Input self, Output out)", for messages.
std::vector<std::string> names_of(const char* parameters);

/// Refuses operands of types that ATen's CPU kernels do not have, as phase 1 of a device's would:
/// an error of the call, not of a task, which the device does not outlive.
int check_types(const Call& call);

/// Runs the body of an operator: without autograd, and with ATen's errors as TaskErrors.
void run_task(const std::function<void()>& body);

template <typename... Parameters>
int plan(const char* function, const std::vector<std::string>& names, void (*kernel)(Parameters...),
         uint64_t* workspace_size, aclOpExecutor** executor,
         typename Parameter<Parameters>::Abi... arguments) {
  Call call(function);
  auto name = names.begin();
  // Braces: the arguments are held from left to right, which numbers the operands.
  std::tuple<typename Parameter<Parameters>::Held...> all_held{
      Parameter<Parameters>::hold(call, (name++)->c_str(), arguments)...};
  if (call.status != kSuccess) return call.status;
  if (int status = check_types(call)) return status;
  return opapi::make_executor(
      function, call.inputs, call.outputs, /*workspace_bytes=*/0,
      [kernel, all_held = std::move(all_held)](Launch& launch) {
        const auto run = [&](const auto&... held) {
          kernel(Parameter<Parameters>::give(held, launch)...);
        };
        run_task([&] { std::apply(run, all_held); });
      },
      workspace_size, executor);
}

/// The C type of the Index-th parameter of a kernel.
template <typename Kernel, size_t Index>
struct AbiOf;
template <typename... Parameters, size_t Index>
struct AbiOf<void(Parameters...), Index> {
  using Type = typename Parameter<std::tuple_element_t<Index, std::tuple<Parameters...>>>::Abi;
};

}  // namespace hostcann::aten

/// Defines and exports the two phases of one operator; see the top of this file.
#define OPERATOR(name, parameters, ...)                 \
  namespace hostcann::aten {                            \
  static void name##_kernel parameters { __VA_ARGS__; } \
  }                                                     \
  ATEN_EXPORT(name, parameters, ATEN_COUNT parameters)
#define ATEN_EXPORT(name, parameters, count) ATEN_EXPORT_(name, parameters, count)
#define ATEN_EXPORT_(name, parameters, count)                                               \
  using hostcann::aten::name##_kernel;                                                      \
  HOSTCANN_ACLNN(name, ATEN_PARAMETERS_##count(name)) {                                     \
    static const auto* names =                                                              \
        new std::vector<std::string>(hostcann::aten::names_of(#parameters));                \
    return hostcann::aten::plan(__func__, *names, &name##_kernel, workspace_size, executor, \
                                ATEN_ARGUMENTS_##count);                                    \
  }

/// aclnnX(self, ..., out) and aclnnInplaceX(selfRef, ...), which compute the same of `self`. What
/// follows the expression is their other parameters.
#define IN_BOTH_FORMS(name, expression, ...)                                                   \
  OPERATOR(aclnn##name, (Input self __VA_OPT__(, ) __VA_ARGS__, Output out), out = expression) \
  OPERATOR(aclnnInplace##name, (Updated selfRef __VA_OPT__(, ) __VA_ARGS__),                   \
           const at::Tensor& self = selfRef.tensor();                                          \
           selfRef = expression)
