#include "handles.h"

#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <typeinfo>

#include "torch_npu_abi.h"

namespace ascend_sample::npu {
namespace {

constexpr int kFormatNd = 2;  // ACL_FORMAT_ND

int acl_data_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 0;  // ACL_FLOAT
    case at::kHalf:
      return 1;  // ACL_FLOAT16
    case at::kInt:
      return 3;  // ACL_INT32
    case at::kLong:
      return 9;  // ACL_INT64
    case at::kBFloat16:
      return 27;  // ACL_BF16
    default:
      TORCH_INTERNAL_ASSERT(false, "no aclDataType for ", dtype);
  }
}

/// The memory format of a tensor. Memory that torch wraps by itself, as at::from_blob does, has
/// none: torch_npu would refuse it, or read beyond what there is.
int64_t format_of(const at::Tensor& tensor) {
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  return typeid(storage) == typeid(c10::StorageImpl) ? kFormatNd
                                                     : at_npu::native::get_npu_format(tensor);
}

void check_memory(const char* op, const char* name, const at::Tensor& tensor) {
  const auto format = format_of(tensor);
  const auto& plain = aclnn().configuration.plain_formats;
  TORCH_CHECK_VALUE(std::find(plain.begin(), plain.end(), format) != plain.end(), op, ": ", name,
                    " must have a plain memory format, got format ", format,
                    ". Call torch_npu.npu_format_cast(", name, ", 2) first.");
  const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
  TORCH_CHECK_VALUE(address % kAddressAlignment == 0, op, ": ", name,
                    " must have a storage address that is a multiple of ", kAddressAlignment,
                    ", got ", tensor.storage().data(),
                    ". Slice the tensor that owns the memory, or copy it through the host.");
}

TensorHandle create(const char* op, const char* name, at::ScalarType dtype, at::IntArrayRef sizes,
                    at::IntArrayRef strides, int64_t offset, int64_t storage_size, void* storage) {
  TensorHandle handle(aclnn().aclCreateTensor(sizes.data(), sizes.size(), acl_data_type(dtype),
                                              strides.data(), offset, kFormatNd, &storage_size, 1,
                                              storage));
  TORCH_CHECK(handle != nullptr, op, ": aclCreateTensor failed for ", name, "=", sizes, " ", dtype,
              ": ", take_message());
  return handle;
}

}  // namespace

TensorHandle describe_to_cann(const char* op, const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return nullptr;
  }
  check_memory(op, name, tensor);
  const auto& storage = tensor.storage();
  return create(op, name, tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                tensor.storage_offset(), static_cast<int64_t>(storage.nbytes() / tensor.itemsize()),
                const_cast<void*>(storage.data()));
}

TensorHandle describe_memory(const char* op, const char* name, void* address, at::IntArrayRef sizes,
                             at::ScalarType dtype) {
  const auto strides = c10::contiguous_strides(sizes);
  return create(op, name, dtype, sizes, strides, /*offset=*/0, c10::multiply_integers(sizes),
                address);
}

ScalarHandle scalar_for_cann(const char* op, int64_t value) {
  ScalarHandle handle(aclnn().aclCreateScalar(&value, acl_data_type(at::kLong)));
  TORCH_CHECK(handle != nullptr, op, ": aclCreateScalar failed for ", value, ": ", take_message());
  return handle;
}

}  // namespace ascend_sample::npu
