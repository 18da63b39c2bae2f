// What an emulated aclnn operator is written with: operand descriptions, executors and the two
// phases.
//
// Handles (aclTensor*, aclOpExecutor*, ...) are numbers that are never used twice, not addresses:
// dereferencing one faults, and destroying one twice, or using it after its destruction, is always
// noticed. An operator therefore reads every argument in phase 1 through describe(), scalar_of()
// and the *_of() functions below, and from then on works with the copies. One operator looks like
// this:
//
//   HOSTCANN_ACLNN(aclnnMuls, const aclTensor* self, const aclScalar* other, const aclTensor* out)
//   {
//     Scalar factor;
//     if (int status = scalar_of(__func__, "other", other, &factor)) return status;
//     return make_executor(__func__, {{"self", self}}, {{"out", out}}, /*workspace_bytes=*/0,
//                          [factor](Launch& launch) { multiply(launch.input(0), factor,
//                          launch.output(0)); }, workspace_size, executor);
//   }
//
// The macro defines phase 2 (aclnnMuls) and opens the body of phase 1 (aclnnMulsGetWorkspaceSize),
// whose last two parameters are `uint64_t* workspace_size, aclOpExecutor** executor`. The lambda
// runs later, on a stream's thread, possibly several times (a captured graph): it may keep copies
// only, and it must not touch aclTensor handles. It may throw; the task then fails as a kernel of
// the device does.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hostcann/hostcann.h"

// CANN's opaque types, at global scope as in the ABI. They are never completed: a handle is a
// number, not an object.
struct aclTensor;
struct aclScalar;
struct aclIntArray;
struct aclFloatArray;
struct aclBoolArray;
struct aclTensorList;
struct aclScalarList;
struct aclOpExecutor;
using aclrtStream = void*;

namespace hostcann::opapi {

/// aclDataType, with the values that CANN documents. The ABI passes it as an int.
enum class DataType : int {
  kUndefined = -1,
  kFloat = 0,
  kFloat16 = 1,
  kInt8 = 2,
  kInt32 = 3,
  kUInt8 = 4,
  kInt16 = 6,
  kUInt16 = 7,
  kUInt32 = 8,
  kInt64 = 9,
  kUInt64 = 10,
  kDouble = 11,
  kBool = 12,
  kString = 13,
  kComplex64 = 16,
  kComplex128 = 17,
  kBFloat16 = 27,
  kComplex32 = 33,
  kHiFloat8 = 34,
  kFloat8E5M2 = 35,
  kFloat8E4M3FN = 36,
};

/// aclFormat ND: plain strided memory, the only format whose contents are emulated.
inline constexpr int kFormatND = 2;

/// Bytes of one element; 0 for a type that has no fixed size here (strings, sub-byte types, unknown
/// values).
HOSTCANN_API size_t item_size(DataType data_type);

/// "float16", "bfloat16", ...; "aclDataType(29)" for a value without a name here.
HOSTCANN_API std::string name_of(DataType data_type);

/// "[4, 32000]".
HOSTCANN_API std::string name_of(const std::vector<int64_t>& sizes);

/// Everything an aclTensor says, by value; usable after the aclTensor is gone. A tensor passed as
/// null gives an undefined Operand (defined() is false): an optional argument that was left out.
struct HOSTCANN_API Operand {
  std::string name;  // "aclnnAdd: self", for messages
  DataType data_type = DataType::kUndefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements
  int64_t offset = 0;            // in elements, from `address` to the element at index 0
  int format = kFormatND;
  std::vector<int64_t> storage_sizes;
  void* address = nullptr;  // device address of the storage's first byte
  uint64_t tensor = 0;      // the aclTensor handle it was copied from; 0 = undefined

  bool defined() const { return tensor != 0; }
  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const;          // 1 for rank 0
  int64_t storage_numel() const;  // of storage_sizes
  size_t item_size() const { return opapi::item_size(data_type); }
  int64_t distinct_numel() const;  // without those that are repeated by a stride of 0
  bool is_contiguous() const;

  /// Bytes from `address` to the first byte that the view touches / to one past the last. Equal
  /// when it is empty. Negative strides are honoured, so first_byte() may lie before the element at
  /// `offset`.
  int64_t first_byte() const;
  int64_t end_byte() const;

  /// The host address of the element at index 0 (from which sizes and strides count), after
  /// checking that every byte of the view lies in one live block. Only on the stream's thread; null
  /// for an empty view. Throws TaskError.
  std::byte* resolve() const;

  std::string describe() const;  // "self (float16 [4, 8], strides [8, 1], offset 0)"
};

/// A scalar argument by value.
struct HOSTCANN_API Scalar {
  DataType data_type = DataType::kUndefined;
  std::complex<double>
      complex_value;  // every type's value; a 64-bit integer may lose low bits here
  int64_t integer_value =
      0;  // exact for integers and bool; truncated (saturating, NaN is 0) for the others

  bool is_integral() const;  // integers, not bool
  bool is_bool() const { return data_type == DataType::kBool; }
  bool is_complex() const;
  double real() const { return complex_value.real(); }
};

// ---- phase 1: reading arguments. `op` is the operator's name or the __func__ of its
// GetWorkspaceSize. A null, dead or foreign handle is 161001 / 161002 with a message that names
// operator and argument. ----

HOSTCANN_API int describe(const char* op, const char* argument, const aclTensor* tensor,
                          Operand* out);
HOSTCANN_API int scalar_of(const char* op, const char* argument, const aclScalar* scalar,
                           Scalar* out);
HOSTCANN_API int integers_of(const char* op, const char* argument, const aclIntArray* array,
                             std::vector<int64_t>* out);
HOSTCANN_API int booleans_of(const char* op, const char* argument, const aclBoolArray* array,
                             std::vector<bool>* out);
HOSTCANN_API int tensors_of(const char* op, const char* argument, const aclTensorList* list,
                            std::vector<const aclTensor*>* out);
HOSTCANN_API int scalars_of(const char* op, const char* argument, const aclScalarList* list,
                            std::vector<Scalar>* out);

/// The operator's name from the __func__ of its phase 1, or unchanged.
HOSTCANN_API std::string operator_name(const char* op);

/// Sets "{op}: {argument} {rule}" as the message of aclGetRecentErrMsg and returns `code`. Example:
///   return reject(kAclnnInvalid, __func__, "dim", "must be in [-2, 1], got 5");
HOSTCANN_API int reject(int code, const char* op, const char* argument, const std::string& rule);

/// How much of an operand a kernel touches. Only a profile asks for it.
enum class Touched {
  kAll,
  kWhatIsNamed,  // by indices: as many elements as the largest of the other operands has
  kNothing,
};

/// One tensor argument of an operator, as make_executor takes it.
struct Argument {
  const char* name;
  const aclTensor* tensor;
  bool optional = false;  // null is allowed and gives an undefined Operand
  Touched touched = Touched::kAll;
  bool is_read_too = false;  // of an output
};

/// What a kernel sees when it runs.
class HOSTCANN_API Launch {
 public:
  const Operand& input(size_t index) const { return inputs_->at(index); }
  const Operand& output(size_t index) const { return outputs_->at(index); }

  /// The workspace_bytes asked for in phase 1, resolved; null when none were. Its contents are
  /// undefined.
  std::byte* workspace() const { return workspace_; }

  /// Says what the sizes of an output have become that depend on data. The caller, who gave a
  /// buffer for the largest result, reads them with aclGetViewShape after synchronising. Nothing
  /// happens when the tensor is gone: a replayed graph has no caller to tell.
  void set_output_sizes(size_t index, std::vector<int64_t> sizes) const;

 private:
  friend struct LaunchAccess;
  const std::vector<Operand>* inputs_ = nullptr;
  const std::vector<Operand>* outputs_ = nullptr;
  std::byte* workspace_ = nullptr;
};

using Kernel = std::function<void(Launch&)>;

/// The end of every phase 1. Copies the descriptions of the tensors, checks them (null, liveness,
/// type and format known, 32-byte alignment, view inside its storage), takes the faults "phase1"
/// and "workspace", and makes an executor that serves once. `op` may be the __func__ of phase 1. A
/// workspace_bytes of 0 reports a workspace of 0; otherwise a system part, in whose end the red
/// zone lies, is added.
HOSTCANN_API int make_executor(const char* op, const std::vector<Argument>& inputs,
                               const std::vector<Argument>& outputs, uint64_t workspace_bytes,
                               Kernel kernel, uint64_t* workspace_size, aclOpExecutor** executor);

/// The whole of every phase 2. Consumes the executor, also when it fails; checks the workspace and
/// that every tensor of phase 1 is still alive; takes the fault "phase2"; launches the kernel on
/// `stream`.
HOSTCANN_API int run_executor(const char* op, void* workspace, uint64_t workspace_size,
                              aclOpExecutor* executor, aclrtStream stream);

/// What CANN adds to a kernel's own workspace on Atlas A2 and A3.
inline constexpr uint64_t kSystemWorkspaceBytes = 16ull << 20;
/// The last bytes of a workspace: written when the kernel starts, checked when it ends.
inline constexpr uint64_t kRedZoneBytes = 512;
/// Storage addresses must be multiples of this.
inline constexpr uintptr_t kAddressAlignment = 32;

}  // namespace hostcann::opapi

/// Defines phase 2 of `name` and opens phase 1; __VA_ARGS__ are the operator's own parameters, of
/// which it has one at least.
#define HOSTCANN_ACLNN(name, ...)                                                               \
  extern "C" HOSTCANN_API int name(void* workspace, uint64_t workspace_size,                    \
                                   aclOpExecutor* executor, aclrtStream stream) {               \
    return ::hostcann::opapi::run_executor(#name, workspace, workspace_size, executor, stream); \
  }                                                                                             \
  extern "C" HOSTCANN_API int name##GetWorkspaceSize(__VA_ARGS__, uint64_t* workspace_size,     \
                                                     aclOpExecutor** executor)
