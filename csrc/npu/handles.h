// Owners of CANN's handles: whatever way a call ends, each is destroyed exactly once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "aclnn.h"

namespace ascend_sample::npu {

struct TensorDeleter {
  void operator()(const aclTensor* tensor) const { aclnn().aclDestroyTensor(tensor); }
};
using TensorHandle = std::unique_ptr<aclTensor, TensorDeleter>;

/// Describes a tensor to CANN: base address of its storage, element offset, shape and strides. Null
/// for an undefined tensor. Throws ValueError for memory that CANN cannot use. Holds no reference
/// to the tensor's memory.
TensorHandle describe_to_cann(const char* name, const at::Tensor& tensor);

struct ExecutorDeleter {
  void operator()(aclOpExecutor* executor) const { aclnn().aclDestroyAclOpExecutor(executor); }
};
/// Released into phase 2, which frees the executor itself, also when it fails.
using ExecutorHandle = std::unique_ptr<aclOpExecutor, ExecutorDeleter>;

}  // namespace ascend_sample::npu
