#include "handles.h"

#include <algorithm>

#include "checks.h"
#include "torch_npu_abi.h"

namespace ascend_sample::npu {
namespace {

constexpr int kFormatNd = 2;                 // ACL_FORMAT_ND
constexpr uintptr_t kAddressAlignment = 32;  // bytes

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
      TORCH_INTERNAL_ASSERT(false, kOperatorName, ": no aclDataType for ", dtype);
  }
}

void check_memory(const char* name, const at::Tensor& tensor) {
  const auto format = at_npu::native::get_npu_format(tensor);
  const auto& plain = aclnn().configuration.plain_formats;
  TORCH_CHECK_VALUE(std::find(plain.begin(), plain.end(), format) != plain.end(), kOperatorName,
                    ": ", name, " must have a plain memory format, got format ", format,
                    ". Call torch_npu.npu_format_cast(", name, ", 2) first.");
  const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
  TORCH_CHECK_VALUE(address % kAddressAlignment == 0, kOperatorName, ": ", name,
                    " must have a storage address that is a multiple of ", kAddressAlignment,
                    ", got ", tensor.storage().data(),
                    ". Clone it: memory from torch_npu's allocator is aligned.");
}

}  // namespace

TensorHandle describe_to_cann(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return nullptr;
  }
  check_memory(name, tensor);
  const int64_t storage_size = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  TensorHandle handle(aclnn().aclCreateTensor(
      tensor.sizes().data(), tensor.dim(), acl_data_type(tensor.scalar_type()),
      tensor.strides().data(), tensor.storage_offset(), kFormatNd, &storage_size, 1,
      const_cast<void*>(tensor.storage().data())));
  if (handle == nullptr) {
    const char* message = aclnn().aclGetRecentErrMsg();
    TORCH_CHECK(false, kOperatorName, ": aclCreateTensor failed for ", name, "=", describe(tensor),
                ": ", message == nullptr ? "(no message)" : message);
  }
  return handle;
}

}  // namespace ascend_sample::npu
