// One call of a sampling operator of ours: a few launches of CANN's operators, each in two phases.
//
// Phase 1 runs at once, so that what CANN refuses is an error of this call. All of phase 2 goes
// through torch_npu's task queue as one entry, in order with every other operator. The workspace
// comes from the caching allocator: it is released when the call returns, which is safe because the
// allocator hands memory on in the order of the stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cann.h"
#include "handles.h"
#include "scratch.h"

namespace ascend_sample::npu {

/// One operator of CANN between its two phases.
struct Call {
  const char* phase1_name;
  const char* phase2_name;
  Phase2* phase2;
  ExecutorHandle executor = nullptr;
  uint64_t workspace_size = 0;
};

/// What phase 2 needs, on whatever thread it runs; it holds no tensor. When it never runs,
/// everything is destroyed with it.
struct Launch {
  CallLabel label;
  std::vector<TensorHandle> tensors;
  std::vector<ScalarHandle> scalars;
  std::vector<Call> calls;  // one after the other on the stream, so they share the workspace
  void* workspace = nullptr;
  std::shared_ptr<std::mutex> order;
  void* stream = nullptr;

  int operator()();
};

class SamplerCall {
 public:
  /// For our operator `op`, on the current stream of the device of `logits`, which is current.
  /// Outputs that nobody wants are described with these sizes, and all lie in one memory, in which
  /// an element may have so many bytes.
  SamplerCall(const char* op, const at::Tensor& logits, at::IntArrayRef unwanted_sizes,
              int64_t unwanted_bytes);

  /// CANN's description of an input; null for an undefined tensor.
  const aclTensor* describe(const char* name, const at::Tensor& tensor);

  /// CANN's description of an output of ours, or of the scratch where it is not wanted. CANN asks
  /// for one even then, and writes nothing to it.
  const aclTensor* describe_result(const char* name, const at::Tensor& tensor, bool is_wanted);

  /// k = 0 is undefined on the device: k <= 0 becomes one that skips top-k, without reading it
  /// back.
  const aclTensor* make_valid(const at::Tensor& k);

  /// 1 in the place of every k, for what is planned next. It is written where the valid k was.
  const aclTensor* make_ones(const at::Tensor& k);

  /// Phase 1 of what is launched after all that was planned before. `phase1` gets the places for
  /// the workspace's size and the executor. Checks what CANN says of it, and owns the executor from
  /// the moment there is one.
  template <typename Phase1>
  void plan(Call planned, Phase1 phase1) {
    auto& call = launch_->calls.emplace_back(std::move(planned));
    aclOpExecutor* executor = nullptr;
    const auto status = phase1(&call.workspace_size, &executor);
    call.executor.reset(executor);
    check_status(status, call.phase1_name, "workspace", launch_->label);
  }

  /// Takes the workspace and queues phase 2, under this name in torch_npu's queue.
  void enqueue(const char* name);

 private:
  at::Tensor allocate_workspace() const;
  const aclTensor* make_k(const at::Tensor& k, int64_t largest_replaced, int64_t replacement);
  aclTensor* own(TensorHandle handle);
  std::byte* scratch_address() const;

  const at::Tensor& logits_;
  at::IntArrayRef unwanted_sizes_;
  std::shared_ptr<Launch> launch_;
  Scratch scratch_;  // the valid k, then the unwanted outputs
};

/// Throws ValueError when there are more logits than CANN's own index arithmetic can count, or more
/// rows than its kernel has room for.
void check_size(const char* op, const at::Tensor& logits, std::optional<int64_t> most_rows);

}  // namespace ascend_sample::npu
