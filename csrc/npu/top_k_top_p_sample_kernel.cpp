// The NPU kernel: aclnnTopKTopPSample on the current stream, in two phases.
//
// Phase 1 runs here, synchronously, so that what CANN refuses is an error of this call. Phase 2
// goes through torch_npu's task queue, in order with every other operator. The workspace comes from
// the caching allocator: it is released when this function returns, which is safe because the
// allocator hands memory on in the order of the stream.
#include <ATen/DeviceGuard.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/threshold.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "aclnn.h"
#include "checks.h"
#include "handles.h"
#include "torch_npu_abi.h"

namespace ascend_sample::npu {
namespace {

constexpr const char* kPhase1 = "aclnnTopKTopPSampleGetWorkspaceSize";
constexpr const char* kPhase2 = "aclnnTopKTopPSample";
constexpr int64_t kMaxElements =
    (int64_t{1} << 32) - 1;  // beyond it CANN's own index arithmetic overflows
constexpr uint64_t kMaxAllocation = std::numeric_limits<int64_t>::max() / 2;  // bytes

/// What phase 2 needs, on whatever thread it runs; it holds no tensor. When it never runs,
/// everything is destroyed with it.
struct Launch {
  TensorHandle logits, k, p, q, selected, kept;
  ExecutorHandle executor;
  void* workspace = nullptr;
  uint64_t workspace_size = 0;
  void* stream = nullptr;
  LogitsLabel logits_label;

  int operator()() {
    const auto status =
        aclnn().aclnnTopKTopPSample(workspace, workspace_size, executor.release(), stream);
    check_status(status, kPhase2, "launch", logits_label);
    return status;
  }
};

/// The memory that phase 1 asked for, undefined where it asked for none. When there is not enough,
/// torch's out-of-memory error also says what it was for.
at::Tensor allocate_workspace(const Launch& launch, const at::Tensor& logits) {
  if (launch.workspace_size == 0) {
    return {};
  }
  // torch counts bytes in int64: a size beyond that is refused as any other that is too large.
  const auto size = std::min<uint64_t>(launch.workspace_size, kMaxAllocation);
  try {
    return at::empty({static_cast<int64_t>(size)}, logits.options().dtype(at::kByte));
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(c10::str(kOperatorName, ": ", kPhase1, " asks for a workspace of ",
                               launch.workspace_size, " bytes; logits=", launch.logits_label));
    throw;
  }
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
  // k = 0 is undefined on the device: k <= 0 becomes a k that skips top-k, without reading it back.
  const auto valid_k = at::threshold(k, 0, kSkipTopK);
  // CANN checks this output's shape even when it writes nothing to it.
  const auto select = is_need_logits ? kept : at::empty({batch_size, vocab_size}, kept.options());

  auto launch = std::make_shared<Launch>();
  launch->logits_label = {batch_size, vocab_size, logits.scalar_type()};
  launch->logits = describe_to_cann("logits", logits);
  launch->k = describe_to_cann("k", valid_k);
  launch->p = describe_to_cann("p", p);
  launch->q = describe_to_cann("q", q.value_or(at::Tensor()));
  launch->selected = describe_to_cann("logits_select_idx", selected);
  launch->kept = describe_to_cann("logits_top_kp_select", select);

  aclOpExecutor* executor = nullptr;
  const auto status = aclnn().aclnnTopKTopPSampleGetWorkspaceSize(
      launch->logits.get(), launch->k.get(), launch->p.get(), launch->q.get(), eps, is_need_logits,
      top_k_guess, launch->selected.get(), launch->kept.get(), &launch->workspace_size, &executor);
  launch->executor.reset(executor);
  check_status(status, kPhase1, "workspace", launch->logits_label);

  const auto workspace = allocate_workspace(*launch, logits);
  if (workspace.defined()) {
    launch->workspace = workspace.mutable_data_ptr();
  }
  launch->stream = c10_npu::getCurrentNPUStream().stream(/*need_empty=*/false);
  at_npu::native::OpCommand::RunOpApiV2(kPhase2,
                                        [launch = std::move(launch)] { return (*launch)(); });
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
