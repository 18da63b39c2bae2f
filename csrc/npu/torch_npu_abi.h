// The four functions of torch_npu that the binding calls, declared here: torch_npu's own headers
// include CANN's, which this project does not. They are exported by libtorch_npu.so with these
// names in torch_npu 2.7 to 2.14.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <string>

#define ASCEND_SAMPLE_IMPORT __attribute__((visibility("default")))

namespace c10_npu {

class ASCEND_SAMPLE_IMPORT NPUStream {
 public:
  // Not defaulted: torch_npu's is written out as well, and a class with such a destructor is
  // returned through memory.
  ~NPUStream() {}  // NOLINT(modernize-use-equals-default)

  /// The raw aclrtStream. need_empty = false: without waiting until the task queue has run empty.
  void* stream(bool need_empty) const;

 private:
  NPUStream();
  c10::Stream stream_;
};

ASCEND_SAMPLE_IMPORT NPUStream getCurrentNPUStream(c10::DeviceIndex device = -1);

}  // namespace c10_npu

namespace at_npu::native {

class ASCEND_SAMPLE_IMPORT OpCommand {
 public:
  /// Runs `function` in the order of the current stream's operators: at once or on the task queue's
  /// thread.
  static void RunOpApiV2(const std::string& name, const std::function<int()>& function,
                         bool sync = false);
};

/// The memory format that torch_npu keeps with the tensor (aclFormat).
ASCEND_SAMPLE_IMPORT int64_t get_npu_format(const at::Tensor& tensor);

}  // namespace at_npu::native
