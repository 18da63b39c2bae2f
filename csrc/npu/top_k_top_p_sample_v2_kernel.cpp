// The NPU kernel of top_k_top_p_sample_v2: aclnnTopKTopPSampleV2 on the current stream.
#include <ATen/DeviceGuard.h>
#include <torch/library.h>

#include "checks.h"
#include "sampler_call.h"

namespace ascend_sample::npu {
namespace {

SampleV2Outputs sample_by_composite(const SampleV2Arguments& arguments) {
  static const auto composite =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("ascend_sample::top_k_top_p_sample_v2_composite", "")
          .typed<SampleV2Outputs(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                                 double, bool, int64_t, int64_t, bool, bool)>();
  const auto& [logits, k, p, q, min_p, eps, is_need_logits, top_k_guess, ks_max, input_is_logits,
               is_need_sample_result] = arguments;
  return composite.call(logits, k, p, q, min_p, eps, is_need_logits, top_k_guess, ks_max,
                        input_is_logits, is_need_sample_result);
}

SampleV2Outputs top_k_top_p_sample_v2_kernel(const at::Tensor& logits, const at::Tensor& k,
                                             const at::Tensor& p,
                                             const std::optional<at::Tensor>& q,
                                             const std::optional<at::Tensor>& min_p, double eps,
                                             bool is_need_logits, int64_t top_k_guess,
                                             int64_t ks_max, bool input_is_logits,
                                             bool is_need_sample_result) {
  const SampleV2Arguments arguments{logits,
                                    k,
                                    p,
                                    q,
                                    min_p,
                                    eps,
                                    is_need_logits,
                                    top_k_guess,
                                    ks_max,
                                    input_is_logits,
                                    is_need_sample_result};
  check_arguments(arguments);
  if (const auto& reason = aclnn().obstacles.at(kOperatorV2Name); !reason.empty()) {
    TORCH_WARN_ONCE(kOperatorV2Name,
                    ": served by the composite of torch operators, which is much slower: ", reason,
                    ". (Warned once.)");
    return sample_by_composite(arguments);
  }
  check_size(kOperatorV2Name, logits);

  const c10::DeviceGuard guard(logits.device());
  auto [selected, kept, dense_ids, dense_weights] = allocate_outputs(arguments);
  if (logits.size(0) == 0) {
    return {selected, kept, dense_ids, dense_weights};
  }
  SamplerCall call(kOperatorV2Name, logits, /*unwanted_bytes=*/sizeof(int64_t));
  const auto* x = call.describe("logits", logits);
  const auto* top_p = call.describe("p", p);
  const auto* noise = call.describe("q", q.value_or(at::Tensor()));
  const auto* min_ps = call.describe("min_p", min_p.value_or(at::Tensor()));
  const auto* ids = call.describe_result("logits_select_idx", selected);
  const auto plan = [&](const aclTensor* top_k, bool needs_logits, bool needs_result) {
    const auto* select = call.describe_result("logits_top_kp_select", kept, needs_logits);
    const auto* idx = call.describe_result("logits_idx", dense_ids, needs_result);
    const auto* masked = call.describe_result("logits_sort_masked", dense_weights, needs_result);
    call.plan({"aclnnTopKTopPSampleV2GetWorkspaceSize", "aclnnTopKTopPSampleV2",
               aclnn().aclnnTopKTopPSampleV2},
              [&](uint64_t* size, aclOpExecutor** executor) {
                return aclnn().aclnnTopKTopPSampleV2GetWorkspaceSize(
                    x, top_k, top_p, noise, min_ps, eps, needs_logits, top_k_guess, ks_max,
                    input_is_logits, needs_result, ids, select, idx, masked, size, executor);
              });
  };
  plan(call.make_valid(k), is_need_logits, is_need_sample_result);
  if (is_need_sample_result) {
    // CANN's documentation promises no id then. The one without q is the first of the total order,
    // whatever the filters: a second launch finds it as the best 1.
    plan(call.make_ones(k), /*needs_logits=*/false, /*needs_result=*/false);
  }
  call.enqueue("aclnnTopKTopPSampleV2");
  return {selected, kept, dense_ids, dense_weights};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, PrivateUse1, m) {
  m.impl("top_k_top_p_sample_v2", &top_k_top_p_sample_v2_kernel);
}

}  // namespace ascend_sample::npu
