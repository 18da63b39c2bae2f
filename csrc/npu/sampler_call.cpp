#include "sampler_call.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "checks.h"
#include "torch_npu_abi.h"

namespace ascend_sample::npu {
namespace {

/// Beyond it CANN's own 32-bit arithmetic overflows: its workspace's last part begins behind 5
/// numbers for each logit.
constexpr int64_t kMaxElements = ((int64_t{1} << 32) - 1) / 5;
constexpr uint64_t kMaxAllocation = std::numeric_limits<int64_t>::max() / 2;  // bytes

/// The bytes of the valid k, up to an address that CANN can use.
int64_t valid_k_bytes(int64_t batch_size) {
  const auto bytes = batch_size * static_cast<int64_t>(sizeof(int32_t));
  return (bytes + kAddressAlignment - 1) / kAddressAlignment * kAddressAlignment;
}

}  // namespace

int Launch::operator()() {
  {
    const auto lock = order == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*order);
    for (auto& call : calls) {
      const auto status =
          call.phase2(workspace, call.workspace_size, call.executor.release(), stream);
      check_status(status, call.phase2_name, "launch", label);
    }
  }
  tensors.clear();  // here, and not on the thread on which torch_npu releases what it has run
  scalars.clear();
  return 0;
}

SamplerCall::SamplerCall(const char* op, const at::Tensor& logits, at::IntArrayRef unwanted_sizes,
                         int64_t unwanted_bytes)
    : logits_(logits), unwanted_sizes_(unwanted_sizes), launch_(std::make_shared<Launch>()) {
  launch_->label = {op, logits.size(0), logits.size(1), logits.scalar_type()};
  launch_->stream = c10_npu::getCurrentNPUStream().stream(/*need_empty=*/false);
  const auto unwanted = c10::multiply_integers(unwanted_sizes) * unwanted_bytes;
  scratch_ = take_scratch(valid_k_bytes(logits.size(0)) + unwanted, logits, launch_->stream);
  launch_->order = scratch_.order;
}

aclTensor* SamplerCall::own(TensorHandle handle) {
  return launch_->tensors.emplace_back(std::move(handle)).get();
}

std::byte* SamplerCall::scratch_address() const {
  return reinterpret_cast<std::byte*>(scratch_.memory.mutable_data_ptr());
}

const aclTensor* SamplerCall::describe(const char* name, const at::Tensor& tensor) {
  return own(describe_to_cann(launch_->label.op, name, tensor));
}

const aclTensor* SamplerCall::describe_result(const char* name, const at::Tensor& tensor,
                                              bool is_wanted) {
  if (is_wanted) {
    return own(describe_memory(launch_->label.op, name, tensor.mutable_data_ptr(), tensor.sizes(),
                               tensor.scalar_type()));
  }
  return own(describe_memory(launch_->label.op, name,
                             scratch_address() + valid_k_bytes(logits_.size(0)), unwanted_sizes_,
                             tensor.scalar_type()));
}

const aclTensor* SamplerCall::make_valid(const at::Tensor& k) { return make_k(k, 0, kSkipTopK); }

const aclTensor* SamplerCall::make_ones(const at::Tensor& k) {
  return make_k(k, std::numeric_limits<int32_t>::max(), 1);
}

/// Where k <= `largest_replaced`, `replacement`; elsewhere k.
const aclTensor* SamplerCall::make_k(const at::Tensor& k, int64_t largest_replaced,
                                     int64_t replacement) {
  const char* op = launch_->label.op;
  const auto* given = describe("k", k);
  auto* made = own(describe_memory(op, "valid_k", scratch_address(), k.sizes(), at::kInt));
  const auto* threshold =
      launch_->scalars.emplace_back(scalar_for_cann(op, largest_replaced)).get();
  const auto* value = launch_->scalars.emplace_back(scalar_for_cann(op, replacement)).get();
  plan({"aclnnThresholdGetWorkspaceSize", "aclnnThreshold", aclnn().aclnnThreshold},
       [&](uint64_t* size, aclOpExecutor** executor) {
         return aclnn().aclnnThresholdGetWorkspaceSize(given, threshold, value, made, size,
                                                       executor);
       });
  return made;
}

/// Takes the largest workspace that a phase 1 asked for; undefined where none did. When there is
/// not enough memory, torch's out-of-memory error also says what it was for.
at::Tensor SamplerCall::allocate_workspace() const {
  const auto& call = *std::max_element(launch_->calls.begin(), launch_->calls.end(),
                                       [](const Call& left, const Call& right) {
                                         return left.workspace_size < right.workspace_size;
                                       });
  if (call.workspace_size == 0) {
    return {};
  }
  // torch counts bytes in int64: a size beyond that is refused as any other that is too large.
  const auto size = static_cast<int64_t>(std::min(call.workspace_size, kMaxAllocation));
  try {
    return at::empty({size}, logits_.options().dtype(at::kByte));
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(c10::str(launch_->label.op, ": ", call.phase1_name,
                               " asks for a workspace of ", call.workspace_size,
                               " bytes; logits=", launch_->label));
    throw;
  }
}

void SamplerCall::enqueue(const char* name) {
  // It lives until the launch is queued; then it is released to the allocator in stream order.
  const auto workspace = allocate_workspace();
  launch_->workspace = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  at_npu::native::OpCommand::RunOpApiV2(name, [launch = launch_] { return (*launch)(); });
}

void check_size(const char* op, const at::Tensor& logits, std::optional<int64_t> most_rows) {
  TORCH_CHECK_VALUE(logits.size(0) <= kMaxElements / logits.size(1), op,
                    ": logits must have at most ", kMaxElements, " elements on an NPU, got ",
                    describe(logits), ". Split the batch.");
  TORCH_CHECK_VALUE(!most_rows.has_value() || logits.size(0) <= *most_rows, op,
                    ": logits must have at most ", *most_rows, " rows on an NPU, got ",
                    describe(logits), ". Split the batch.");
}

}  // namespace ascend_sample::npu
