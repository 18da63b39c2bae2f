// CANN's functions that make, read and destroy aclTensor, aclScalar, the arrays and the lists.
#include "hostcann/opapi/handles.h"

#include <algorithm>
#include <limits>

namespace hostcann::opapi {

TensorTable& tensor_table() {
  static auto* table = new TensorTable(0xAC01, Live::kTensor);
  return *table;
}
ScalarTable& scalar_table() {
  static auto* table = new ScalarTable(0xAC02, Live::kScalar);
  return *table;
}
IntArrayTable& int_array_table() {
  static auto* table = new IntArrayTable(0xAC03, Live::kArray);
  return *table;
}
FloatArrayTable& float_array_table() {
  static auto* table = new FloatArrayTable(0xAC04, Live::kArray);
  return *table;
}
BoolArrayTable& bool_array_table() {
  static auto* table = new BoolArrayTable(0xAC05, Live::kArray);
  return *table;
}
TensorListTable& tensor_list_table() {
  static auto* table = new TensorListTable(0xAC06, Live::kTensorList);
  return *table;
}
ScalarListTable& scalar_list_table() {
  static auto* table = new ScalarListTable(0xAC07, Live::kTensorList);
  return *table;
}
ExecutorTable& executor_table() {
  static auto* table = new ExecutorTable(0xAC08, Live::kExecutor);
  return *table;
}

namespace {

template <typename Handle>
Handle* fail_to_create(const char* function, const std::string& rule) {
  set_error(kAclnnInvalid, std::string(function) + ": " + rule);
  return nullptr;
}

/// A null handle is accepted, as `delete` does: torch_npu passes the optional arguments that it
/// left out.
template <typename Handle, typename Object>
int destroy(const char* function, HandleTable<Handle, Object>& table, const Handle* handle) {
  if (handle == nullptr || table.take(handle) != nullptr) return kSuccess;
  if (table.state(handle) == HandleState::kGone) {
    const std::string message =
        std::string(function) + ": " + hexadecimal(handle) + " was destroyed before";
    report_violation(Violation::kTensorDestroyedTwice, message);
    return set_error(kAclnnInvalid, message);
  }
  return set_error(kAclnnInvalid, std::string(function) + ": " + hexadecimal(handle) +
                                      " is no handle of the type that this function destroys");
}

/// The object of a handle for a getter, whose other pointers must not be null.
template <typename Handle, typename Object>
int look_up(const char* function, HandleTable<Handle, Object>& table, const Handle* handle,
            bool results_given, std::shared_ptr<const Object>* object) {
  if (handle == nullptr || !results_given) {
    return set_error(kAclnnNullptr, std::string(function) + ": an argument is null");
  }
  *object = table.find(handle);
  if (*object != nullptr) return kSuccess;
  return set_error(kAclnnInvalid, std::string(function) + ": " + hexadecimal(handle) +
                                      (table.state(handle) == HandleState::kGone
                                           ? " was destroyed"
                                           : " is no handle of the type that this function reads"));
}

/// CANN's convention: the caller frees the copy with delete[].
int copy_out(const std::vector<int64_t>& values, int64_t** out, uint64_t* count) {
  *out = new int64_t[values.size()];
  std::copy(values.begin(), values.end(), *out);
  *count = values.size();
  return kSuccess;
}

template <typename Handle, typename Object>
int get_size(const char* function, HandleTable<Handle, Object>& table, const Handle* handle,
             uint64_t* size) {
  std::shared_ptr<const Object> object;
  if (int status = look_up(function, table, handle, size != nullptr, &object)) return status;
  *size = object->size();
  return kSuccess;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  uint64_t stride =
      1;  // wraps where the sizes are absurd: is_countable() then rejects them by their product
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= sizes[i] == 0 ? 1 : static_cast<uint64_t>(sizes[i]);
  }
  return strides;
}

/// True when no size is negative, and their product and every byte position of the view fit into 63
/// bits: all later arithmetic on this tensor is then free of overflow.
bool is_countable(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                  int64_t offset) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max() / 16;  // 16 = the largest item
  int64_t count = 1;
  int64_t extent = 0;
  if (offset < -kLargest || offset > kLargest) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return false;
    const int64_t steps = sizes[i] == 0 ? 0 : sizes[i] - 1;
    int64_t reach;
    if (strides[i] == std::numeric_limits<int64_t>::min()) return false;
    if (__builtin_mul_overflow(count, sizes[i] == 0 ? 1 : sizes[i], &count)) return false;
    if (__builtin_mul_overflow(steps, strides[i] < 0 ? -strides[i] : strides[i], &reach)) {
      return false;
    }
    if (__builtin_add_overflow(extent, reach, &extent)) return false;
  }
  return count <= kLargest && extent <= kLargest - (offset < 0 ? -offset : offset);
}

}  // namespace

void Launch::set_output_sizes(size_t index, std::vector<int64_t> sizes) const {
  const auto* tensor = reinterpret_cast<const aclTensor*>(outputs_->at(index).tensor);
  const std::shared_ptr<const Operand> found = tensor_table().find(tensor);
  if (found == nullptr) return;
  Operand resized = *found;
  resized.strides = contiguous_strides(sizes);
  resized.sizes = std::move(sizes);
  tensor_table().replace(tensor, std::move(resized));
}

}  // namespace hostcann::opapi

using namespace hostcann::opapi;  // NOLINT: what follows is CANN's C interface, at global scope
using hostcann::kSuccess;

extern "C" {

HOSTCANN_API int aclnnInit(const char* /*config_path*/) { return kSuccess; }
HOSTCANN_API int aclnnFinalize() { return kSuccess; }

// ---- aclTensor ----

HOSTCANN_API aclTensor* aclCreateTensor(const int64_t* view_dims, uint64_t view_dims_num,
                                        int data_type, const int64_t* stride, int64_t offset,
                                        int format, const int64_t* storage_dims,
                                        uint64_t storage_dims_num, void* tensor_data) {
  if ((view_dims == nullptr && view_dims_num != 0) ||
      (storage_dims == nullptr && storage_dims_num != 0)) {
    return fail_to_create<aclTensor>(__func__, "viewDims and storageDims must not be null");
  }
  Operand tensor;
  tensor.data_type = static_cast<DataType>(data_type);
  tensor.sizes.assign(view_dims, view_dims + view_dims_num);
  tensor.strides = stride == nullptr ? contiguous_strides(tensor.sizes)
                                     : std::vector<int64_t>(stride, stride + view_dims_num);
  tensor.offset = offset;
  tensor.format = format;
  tensor.storage_sizes.assign(storage_dims, storage_dims + storage_dims_num);
  tensor.address = tensor_data;
  if (!is_countable(tensor.sizes, tensor.strides, offset) ||
      !is_countable(tensor.storage_sizes, contiguous_strides(tensor.storage_sizes), 0)) {
    return fail_to_create<aclTensor>(
        __func__,
        "sizes must not be negative, and view and storage must be countable in 63 bits, got "
        "viewDims " +
            name_of(tensor.sizes) + ", stride " + name_of(tensor.strides) + ", offset " +
            std::to_string(offset) + ", storageDims " + name_of(tensor.storage_sizes));
  }
  return tensor_table().insert(std::move(tensor));
}

HOSTCANN_API int aclDestroyTensor(const aclTensor* tensor) {
  return destroy(__func__, tensor_table(), tensor);
}

HOSTCANN_API int aclGetViewShape(const aclTensor* tensor, int64_t** view_dims,
                                 uint64_t* view_dims_num) {
  std::shared_ptr<const Operand> found;
  const bool given = view_dims != nullptr && view_dims_num != nullptr;
  if (int status = look_up(__func__, tensor_table(), tensor, given, &found)) return status;
  return copy_out(found->sizes, view_dims, view_dims_num);
}

HOSTCANN_API int aclGetViewStrides(const aclTensor* tensor, int64_t** strides,
                                   uint64_t* strides_num) {
  std::shared_ptr<const Operand> found;
  const bool given = strides != nullptr && strides_num != nullptr;
  if (int status = look_up(__func__, tensor_table(), tensor, given, &found)) return status;
  return copy_out(found->strides, strides, strides_num);
}

HOSTCANN_API int aclGetStorageShape(const aclTensor* tensor, int64_t** storage_dims,
                                    uint64_t* storage_dims_num) {
  std::shared_ptr<const Operand> found;
  const bool given = storage_dims != nullptr && storage_dims_num != nullptr;
  if (int status = look_up(__func__, tensor_table(), tensor, given, &found)) return status;
  return copy_out(found->storage_sizes, storage_dims, storage_dims_num);
}

HOSTCANN_API int aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  std::shared_ptr<const Operand> found;
  if (int status = look_up(__func__, tensor_table(), tensor, offset != nullptr, &found)) {
    return status;
  }
  *offset = found->offset;
  return kSuccess;
}

HOSTCANN_API int aclGetDataType(const aclTensor* tensor, int* data_type) {
  std::shared_ptr<const Operand> found;
  if (int status = look_up(__func__, tensor_table(), tensor, data_type != nullptr, &found)) {
    return status;
  }
  *data_type = static_cast<int>(found->data_type);
  return kSuccess;
}

HOSTCANN_API int aclGetFormat(const aclTensor* tensor, int* format) {
  std::shared_ptr<const Operand> found;
  if (int status = look_up(__func__, tensor_table(), tensor, format != nullptr, &found)) {
    return status;
  }
  *format = found->format;
  return kSuccess;
}

// ---- scalars and arrays ----

HOSTCANN_API aclScalar* aclCreateScalar(void* value, int data_type) {
  Scalar scalar;
  if (value == nullptr) return fail_to_create<aclScalar>(__func__, "value must not be null");
  if (!read_scalar(value, static_cast<DataType>(data_type), &scalar)) {
    return fail_to_create<aclScalar>(__func__, "dataType must be a number's or bool's, got " +
                                                   name_of(static_cast<DataType>(data_type)));
  }
  return scalar_table().insert(scalar);
}

HOSTCANN_API int aclDestroyScalar(const aclScalar* scalar) {
  return destroy(__func__, scalar_table(), scalar);
}

HOSTCANN_API aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<aclIntArray>(__func__, "value must not be null");
  }
  return int_array_table().insert(std::vector<int64_t>(value, value + size));
}

HOSTCANN_API aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<aclFloatArray>(__func__, "value must not be null");
  }
  return float_array_table().insert(std::vector<float>(value, value + size));
}

HOSTCANN_API aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<aclBoolArray>(__func__, "value must not be null");
  }
  return bool_array_table().insert(std::vector<bool>(value, value + size));
}

HOSTCANN_API int aclDestroyIntArray(const aclIntArray* array) {
  return destroy(__func__, int_array_table(), array);
}
HOSTCANN_API int aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy(__func__, float_array_table(), array);
}
HOSTCANN_API int aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy(__func__, bool_array_table(), array);
}
HOSTCANN_API int aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get_size(__func__, int_array_table(), array, size);
}
HOSTCANN_API int aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get_size(__func__, float_array_table(), array, size);
}
HOSTCANN_API int aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get_size(__func__, bool_array_table(), array, size);
}

// ---- lists: they own their members from creation on, as CANN's do ----

HOSTCANN_API aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<aclTensorList>(__func__, "value must not be null");
  }
  return tensor_list_table().insert(std::vector<const aclTensor*>(value, value + size));
}

HOSTCANN_API aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<aclScalarList>(__func__, "value must not be null");
  }
  return scalar_list_table().insert(std::vector<const aclScalar*>(value, value + size));
}

HOSTCANN_API int aclDestroyTensorList(const aclTensorList* list) {
  const auto members = tensor_list_table().find(list);
  int status = destroy(__func__, tensor_list_table(), list);
  if (status != kSuccess || members == nullptr) return status;
  for (const aclTensor* member : *members) {
    if (int failed = destroy(__func__, tensor_table(), member)) status = failed;
  }
  return status;
}

HOSTCANN_API int aclDestroyScalarList(const aclScalarList* list) {
  const auto members = scalar_list_table().find(list);
  int status = destroy(__func__, scalar_list_table(), list);
  if (status != kSuccess || members == nullptr) return status;
  for (const aclScalar* member : *members) {
    if (int failed = destroy(__func__, scalar_table(), member)) status = failed;
  }
  return status;
}

HOSTCANN_API int aclGetTensorListSize(const aclTensorList* list, uint64_t* size) {
  return get_size(__func__, tensor_list_table(), list, size);
}
HOSTCANN_API int aclGetScalarListSize(const aclScalarList* list, uint64_t* size) {
  return get_size(__func__, scalar_list_table(), list, size);
}

}  // extern "C"
