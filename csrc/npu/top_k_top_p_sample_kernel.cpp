// The NPU kernel of top_k_top_p_sample: aclnnTopKTopPSample on the current stream.
#include <ATen/DeviceGuard.h>
#include <torch/library.h>

#include "checks.h"
#include "sampler_call.h"

namespace ascend_sample::npu {
namespace {

/// Why these logits are served by the composite instead; empty when they are served here.
std::string obstacle(at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    return std::string("aclnnTopKTopPSample takes float16 and bfloat16 logits, not ") +
           c10::toString(dtype);
  }
  return aclnn().obstacles.at(kOperatorName);
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
  check_size(kOperatorName, logits);

  const c10::DeviceGuard guard(logits.device());
  auto [selected, kept] = allocate_outputs(arguments);
  if (logits.size(0) == 0) {
    return {selected, kept};
  }
  SamplerCall call(kOperatorName, logits, is_need_logits ? 0 : sizeof(float));
  const auto* x = call.describe("logits", logits);
  const auto* valid_k = call.make_valid(k);
  const auto* top_p = call.describe("p", p);
  const auto* noise = call.describe("q", q.value_or(at::Tensor()));
  const auto* ids = call.describe_result("logits_select_idx", selected);
  const auto* select = call.describe_result("logits_top_kp_select", kept, is_need_logits);
  call.plan(
      {"aclnnTopKTopPSampleGetWorkspaceSize", "aclnnTopKTopPSample", aclnn().aclnnTopKTopPSample},
      [&](uint64_t* size, aclOpExecutor** executor) {
        return aclnn().aclnnTopKTopPSampleGetWorkspaceSize(x, valid_k, top_p, noise, eps,
                                                           is_need_logits, top_k_guess, ids, select,
                                                           size, executor);
      });
  call.enqueue("aclnnTopKTopPSample");
  return {selected, kept};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, PrivateUse1, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_kernel);
}

}  // namespace ascend_sample::npu
