// The NPU kernel: aclnnTopKTopPSample on the current stream, in two phases.
//
// Phase 1 runs here, synchronously, so that what CANN refuses is an error of this call. Phase 2
// goes through torch_npu's task queue, in order with every other operator. The workspace comes from
// the caching allocator: it is released when this function returns, which is safe because the
// allocator hands memory on in the order of the stream.
#include <ATen/DeviceGuard.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>

#include "cann.h"
#include "checks.h"
#include "handles.h"
#include "torch_npu_abi.h"

namespace ascend_sample::npu {
namespace {

constexpr int64_t kMaxElements =
    (int64_t{1} << 32) - 1;  // beyond it CANN's own index arithmetic overflows
constexpr uint64_t kMaxAllocation = std::numeric_limits<int64_t>::max() / 2;  // bytes

/// One operator of CANN between its two phases.
struct Call {
  const char* phase1_name;
  const char* phase2_name;
  ExecutorHandle executor = nullptr;
  uint64_t workspace_size = 0;
  void* workspace = nullptr;
};

/// What phase 2 needs, on whatever thread it runs; it holds no tensor. When it never runs,
/// everything is destroyed with it.
struct Launch {
  struct Handles {
    TensorHandle logits, k, valid_k, p, q, selected, kept;
    ScalarHandle zero, skip_top_k;
  };

  Handles handles;
  Call sanitize{"aclnnThresholdGetWorkspaceSize", "aclnnThreshold"};
  Call sample{"aclnnTopKTopPSampleGetWorkspaceSize", "aclnnTopKTopPSample"};
  void* stream = nullptr;
  LogitsLabel logits_label;

  int operator()() {
    run(sanitize, aclnn().aclnnThreshold);
    run(sample, aclnn().aclnnTopKTopPSample);
    handles = {};  // here, and not on the thread on which torch_npu releases what it has run
    return 0;
  }

 private:
  void run(Call& call, Phase2* phase2) const {
    const auto status =
        phase2(call.workspace, call.workspace_size, call.executor.release(), stream);
    check_status(status, call.phase2_name, "launch", logits_label);
  }
};

/// Takes the workspace that phase 1 asked for; undefined where it asked for none. When there is not
/// enough memory, torch's out-of-memory error also says what it was for.
at::Tensor allocate_workspace(Call& call, const LogitsLabel& label, const at::Tensor& logits) {
  if (call.workspace_size == 0) {
    return {};
  }
  // torch counts bytes in int64: a size beyond that is refused as any other that is too large.
  const auto size = static_cast<int64_t>(std::min(call.workspace_size, kMaxAllocation));
  try {
    const auto workspace = at::empty({size}, logits.options().dtype(at::kByte));
    call.workspace = workspace.mutable_data_ptr();
    return workspace;
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(c10::str(kOperatorName, ": ", call.phase1_name, " asks for a workspace of ",
                               call.workspace_size, " bytes; logits=", label));
    throw;
  }
}

/// Phase 1: checks what CANN says of it, and owns the executor from the moment there is one.
template <typename Phase1>
void plan(Call& call, const LogitsLabel& label, Phase1 phase1) {
  aclOpExecutor* executor = nullptr;
  const auto status = phase1(&call.workspace_size, &executor);
  call.executor.reset(executor);
  check_status(status, call.phase1_name, "workspace", label);
}

/// Why these logits are served by the composite instead; empty when they are served here.
std::string obstacle(at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    return std::string("aclnnTopKTopPSample takes float16 and bfloat16 logits, not ") +
           c10::toString(dtype);
  }
  return aclnn().obstacle;
}

std::tuple<at::Tensor, at::Tensor> sample_by_composite(const SampleArguments& arguments) {
  static const auto composite =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("ascend_sample::top_k_top_p_sample_composite", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(
              const at::Tensor&, const at::Tensor&, const at::Tensor&,
              const std::optional<at::Tensor>&, double, bool, int64_t)>();
  const auto& [logits, k, p, q, eps, is_need_logits, top_k_guess] = arguments;
  return composite.call(logits, k, p, q, eps, is_need_logits, top_k_guess);
}

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_kernel(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  if (const auto reason = obstacle(logits.scalar_type()); !reason.empty()) {
    TORCH_WARN_ONCE(kOperatorName,
                    ": served by the composite of torch operators, which is much slower: ", reason,
                    ". (Warned once.)");
    return sample_by_composite(arguments);
  }
  const auto batch_size = logits.size(0);
  const auto vocab_size = logits.size(1);
  TORCH_CHECK_VALUE(batch_size <= kMaxElements / vocab_size, kOperatorName,
                    ": logits must have fewer than 2^32 elements on an NPU, got ", describe(logits),
                    ". Split the batch.");

  const c10::DeviceGuard guard(logits.device());
  auto [selected, kept] = allocate_outputs(arguments);
  if (batch_size == 0) {
    return {selected, kept};
  }
  // Scratch: k without invalid values, and the [batch, vocab_size] output where it is not wanted
  // (CANN checks its shape even then, and writes nothing to it).
  constexpr int64_t kAlignedElements = kAddressAlignment / sizeof(int32_t);
  const auto unwanted_select = is_need_logits ? 0 : batch_size * vocab_size;
  const auto valid_k_offset =
      (unwanted_select + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  const auto scratch = at::empty({valid_k_offset + batch_size}, k.options());
  auto* memory = scratch.mutable_data_ptr<int32_t>();

  auto launch = std::make_shared<Launch>();
  auto& handles = launch->handles;
  launch->logits_label = {batch_size, vocab_size, logits.scalar_type()};
  handles.logits = describe_to_cann("logits", logits);
  handles.k = describe_to_cann("k", k);
  handles.valid_k = describe_memory("valid_k", memory + valid_k_offset, batch_size, at::kInt);
  handles.p = describe_to_cann("p", p);
  handles.q = describe_to_cann("q", q.value_or(at::Tensor()));
  handles.selected =
      describe_memory("logits_select_idx", selected.mutable_data_ptr(), batch_size, at::kLong);
  handles.kept =
      describe_memory("logits_top_kp_select", is_need_logits ? kept.mutable_data_ptr() : memory,
                      logits.sizes(), at::kFloat);

  // k = 0 is undefined on the device: k <= 0 becomes a k that skips top-k, without reading it back.
  handles.zero = scalar_for_cann(0);
  handles.skip_top_k = scalar_for_cann(kSkipTopK);
  plan(launch->sanitize, launch->logits_label, [&](uint64_t* size, aclOpExecutor** executor) {
    return aclnn().aclnnThresholdGetWorkspaceSize(handles.k.get(), handles.zero.get(),
                                                  handles.skip_top_k.get(), handles.valid_k.get(),
                                                  size, executor);
  });
  plan(launch->sample, launch->logits_label, [&](uint64_t* size, aclOpExecutor** executor) {
    return aclnn().aclnnTopKTopPSampleGetWorkspaceSize(
        handles.logits.get(), handles.valid_k.get(), handles.p.get(), handles.q.get(), eps,
        is_need_logits, top_k_guess, handles.selected.get(), handles.kept.get(), size, executor);
  });

  // Both live until the launch is queued; they are released to the allocator in stream order.
  const auto workspaces =
      std::array{allocate_workspace(launch->sanitize, launch->logits_label, logits),
                 allocate_workspace(launch->sample, launch->logits_label, logits)};
  launch->stream = c10_npu::getCurrentNPUStream().stream(/*need_empty=*/false);
  static const std::string name = launch->sample.phase2_name;
  at_npu::native::OpCommand::RunOpApiV2(name, [launch] { return (*launch)(); });
  return {selected, kept};
}

void configure_aclnn(std::vector<std::string> operator_libraries, std::string runtime_library,
                     std::string supported_soc, std::vector<int64_t> plain_formats,
                     std::vector<int64_t> statuses, std::vector<std::string> status_names) {
  Configuration configuration{std::move(operator_libraries),
                              std::move(runtime_library),
                              std::move(supported_soc),
                              std::move(plain_formats),
                              {}};
  for (size_t i = 0; i < statuses.size() && i < status_names.size(); ++i) {
    configuration.status_names.emplace(statuses[i], std::move(status_names[i]));
  }
  configure(std::move(configuration));
}

std::string aclnn_obstacle() { return aclnn().obstacle; }

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample, m) {
  m.def(
      "configure_aclnn(str[] operator_libraries, str runtime_library, str supported_soc, int[] "
      "plain_formats, int[] statuses, "
      "str[] status_names) -> ()",
      &configure_aclnn);
  m.def("aclnn_obstacle() -> str", &aclnn_obstacle);
}

TORCH_LIBRARY_IMPL(ascend_sample, PrivateUse1, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_kernel);
}

}  // namespace ascend_sample::npu
