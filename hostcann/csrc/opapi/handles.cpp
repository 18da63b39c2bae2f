// CANN's functions that make, read and destroy aclTensor, aclScalar, the arrays and the lists.
#include "opapi/handles.h"

#include <algorithm>
#include <limits>

namespace hostcann::opapi {

namespace {

template <typename Handle>
Handle* fail_to_create(const char* function, const std::string& rule) {
  set_error(kAclnnInvalid, std::string(function) + ": " + rule);
  return nullptr;
}

/// A null handle is accepted, as `delete` does: torch_npu passes the optional arguments that it
/// left out.
template <typename Handle>
int destroy(const char* function, const Handle* handle) {
  if (handle == nullptr || table<Handle>().take(handle) != nullptr) return kSuccess;
  if (table<Handle>().state(handle) == HandleState::kGone) {
    const std::string message =
        std::string(function) + ": " + hexadecimal(handle) + " was destroyed before";
    report_violation(Violation::kTensorDestroyedTwice, message);
    return set_error(kAclnnInvalid, message);
  }
  return set_error(kAclnnInvalid, std::string(function) + ": " + hexadecimal(handle) +
                                      " is no handle of the type that this function destroys");
}

/// Destroys a list and its members.
template <typename Handle>
int destroy_list(const char* function, const Handle* list) {
  const auto members = table<Handle>().find(list);
  int status = destroy(function, list);
  if (status != kSuccess || members == nullptr) return status;
  for (const auto* member : *members) {
    if (int failed = destroy(function, member)) status = failed;
  }
  return status;
}

template <typename Handle, typename Element>
Handle* create_vector(const char* function, const Element* value, uint64_t size) {
  if (value == nullptr && size != 0) {
    return fail_to_create<Handle>(function, "value must not be null");
  }
  return table<Handle>().insert(ObjectOf<Handle>(value, value + size));
}

/// Hands what `read` takes from the object of a handle; the results must not be null.
template <typename Handle, typename Read, typename... Results>
int get(const char* function, const Handle* handle, Read read, Results*... results) {
  if (handle == nullptr || ((results == nullptr) || ...)) {
    return set_error(kAclnnNullptr, std::string(function) + ": an argument is null");
  }
  const auto object = table<Handle>().find(handle);
  if (object != nullptr) {
    read(*object, results...);
    return kSuccess;
  }
  return set_error(kAclnnInvalid, std::string(function) + ": " + hexadecimal(handle) +
                                      (table<Handle>().state(handle) == HandleState::kGone
                                           ? " was destroyed"
                                           : " is no handle of the type that this function reads"));
}

/// CANN's convention: the caller frees the copy with delete[].
int get_copy(const char* function, const aclTensor* tensor, std::vector<int64_t> Operand::* member,
             int64_t** out, uint64_t* count) {
  const auto copy = [member](const Operand& operand, int64_t** values, uint64_t* size) {
    const std::vector<int64_t>& source = operand.*member;
    *values = new int64_t[source.size()];
    std::copy(source.begin(), source.end(), *values);
    *size = source.size();
  };
  return get(function, tensor, copy, out, count);
}

template <typename Member, typename Result>
int get_member(const char* function, const aclTensor* tensor, Member Operand::* member,
               Result* out) {
  const auto read = [member](const Operand& operand, Result* value) {
    *value = static_cast<Result>(operand.*member);
  };
  return get(function, tensor, read, out);
}

template <typename Handle>
int get_size(const char* function, const Handle* handle, uint64_t* size) {
  return get(
      function, handle, [](const auto& object, uint64_t* count) { *count = object.size(); }, size);
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
  const std::shared_ptr<const Operand> found = table<aclTensor>().find(tensor);
  if (found == nullptr) return;
  Operand resized = *found;
  resized.strides = contiguous_strides(sizes);
  resized.sizes = std::move(sizes);
  table<aclTensor>().replace(tensor, std::move(resized));
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
  return table<aclTensor>().insert(std::move(tensor));
}

HOSTCANN_API int aclDestroyTensor(const aclTensor* tensor) { return destroy(__func__, tensor); }

HOSTCANN_API int aclGetViewShape(const aclTensor* tensor, int64_t** view_dims,
                                 uint64_t* view_dims_num) {
  return get_copy(__func__, tensor, &Operand::sizes, view_dims, view_dims_num);
}

HOSTCANN_API int aclGetViewStrides(const aclTensor* tensor, int64_t** strides,
                                   uint64_t* strides_num) {
  return get_copy(__func__, tensor, &Operand::strides, strides, strides_num);
}

HOSTCANN_API int aclGetStorageShape(const aclTensor* tensor, int64_t** storage_dims,
                                    uint64_t* storage_dims_num) {
  return get_copy(__func__, tensor, &Operand::storage_sizes, storage_dims, storage_dims_num);
}

HOSTCANN_API int aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return get_member(__func__, tensor, &Operand::offset, offset);
}

HOSTCANN_API int aclGetDataType(const aclTensor* tensor, int* data_type) {
  return get_member(__func__, tensor, &Operand::data_type, data_type);
}

HOSTCANN_API int aclGetFormat(const aclTensor* tensor, int* format) {
  return get_member(__func__, tensor, &Operand::format, format);
}

// ---- scalars and arrays ----

HOSTCANN_API aclScalar* aclCreateScalar(void* value, int data_type) {
  Scalar scalar;
  if (value == nullptr) return fail_to_create<aclScalar>(__func__, "value must not be null");
  if (!read_scalar(value, static_cast<DataType>(data_type), &scalar)) {
    return fail_to_create<aclScalar>(__func__, "dataType must be a number's or bool's, got " +
                                                   name_of(static_cast<DataType>(data_type)));
  }
  return table<aclScalar>().insert(scalar);
}

HOSTCANN_API int aclDestroyScalar(const aclScalar* scalar) { return destroy(__func__, scalar); }

HOSTCANN_API aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create_vector<aclIntArray>(__func__, value, size);
}

HOSTCANN_API aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create_vector<aclFloatArray>(__func__, value, size);
}

HOSTCANN_API aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return create_vector<aclBoolArray>(__func__, value, size);
}

HOSTCANN_API int aclDestroyIntArray(const aclIntArray* array) { return destroy(__func__, array); }
HOSTCANN_API int aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy(__func__, array);
}
HOSTCANN_API int aclDestroyBoolArray(const aclBoolArray* array) { return destroy(__func__, array); }
HOSTCANN_API int aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get_size(__func__, array, size);
}
HOSTCANN_API int aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get_size(__func__, array, size);
}
HOSTCANN_API int aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get_size(__func__, array, size);
}

// ---- lists: they own their members from creation on, as CANN's do ----

HOSTCANN_API aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create_vector<aclTensorList>(__func__, value, size);
}

HOSTCANN_API aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create_vector<aclScalarList>(__func__, value, size);
}

HOSTCANN_API int aclDestroyTensorList(const aclTensorList* list) {
  return destroy_list(__func__, list);
}

HOSTCANN_API int aclDestroyScalarList(const aclScalarList* list) {
  return destroy_list(__func__, list);
}

HOSTCANN_API int aclGetTensorListSize(const aclTensorList* list, uint64_t* size) {
  return get_size(__func__, list, size);
}
HOSTCANN_API int aclGetScalarListSize(const aclScalarList* list, uint64_t* size) {
  return get_size(__func__, list, size);
}

}  // extern "C"
