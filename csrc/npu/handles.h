// Owners of CANN's handles: whatever way a call ends, each is destroyed exactly once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "cann.h"

namespace ascend_sample::npu {

struct TensorDeleter {
  void operator()(const aclTensor* tensor) const { aclnn().aclDestroyTensor(tensor); }
};
using TensorHandle = std::unique_ptr<aclTensor, TensorDeleter>;

/// Describes a tensor to CANN, for our operator `op`: base address of its storage, element offset,
/// shape and strides. Null for an undefined tensor. Throws ValueError for memory that CANN cannot
/// use. Holds no reference to the tensor's memory.
TensorHandle describe_to_cann(const char* op, const char* name, const at::Tensor& tensor);

/// Describes aligned memory of our own as a contiguous tensor.
TensorHandle describe_memory(const char* op, const char* name, void* address, at::IntArrayRef sizes,
                             at::ScalarType dtype);

inline constexpr int64_t kAddressAlignment = 32;  // bytes; CANN wants it of storage addresses

struct ScalarDeleter {
  void operator()(const aclScalar* scalar) const { aclnn().aclDestroyScalar(scalar); }
};
using ScalarHandle = std::unique_ptr<aclScalar, ScalarDeleter>;

ScalarHandle scalar_for_cann(const char* op, int64_t value);

struct ExecutorDeleter {
  void operator()(aclOpExecutor* executor) const { aclnn().aclDestroyAclOpExecutor(executor); }
};
/// Released into phase 2, which frees the executor itself, also when it fails.
using ExecutorHandle = std::unique_ptr<aclOpExecutor, ExecutorDeleter>;

}  // namespace ascend_sample::npu
