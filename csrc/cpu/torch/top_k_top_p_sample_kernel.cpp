// Both operators for CPU tensors: rows in parallel, each by the core of targets.h.
#include <torch/library.h>

#include <string>

#include "checks.h"
#include "dispatch.h"

namespace ascend_sample::cpu {
namespace {

/// The arguments that both operators have, checked. The tensors outlive the call.
OperatorCall call_of(const Rules& rules, const at::Tensor& logits, const at::Tensor& k,
                     const at::Tensor& p, const std::optional<at::Tensor>& q, double eps,
                     const at::Tensor& selected, const at::Tensor& kept, bool is_need_logits) {
  OperatorCall call{.logits = logits_of(logits),
                    .batch_size = logits.size(0),
                    .rules = rules,
                    .k = {k.const_data_ptr<int32_t>(), k.stride(0)},
                    .p = {p.const_data_ptr(), p.stride(0)},
                    .min_p = std::nullopt,
                    .q = std::nullopt,
                    .eps = static_cast<float>(eps),
                    .are_probabilities = false,
                    .selected = selected.mutable_data_ptr<int64_t>(),
                    .kept = {},
                    .sample_result = std::nullopt};
  if (q.has_value()) {
    call.q = {q->const_data_ptr<float>(), q->stride(0), q->stride(1)};
  }
  if (is_need_logits) {
    call.kept = {kept.mutable_data_ptr<float>(), static_cast<size_t>(kept.numel())};
  }
  return call;
}

/// The code path in use: "avx512".
std::string cpu_capability() { return std::string(target_in_use().name); }

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_kernel(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  auto [selected, kept] = allocate_outputs(arguments);
  serve(&Kernel::sample,
        call_of(kFirstOperator, logits, k, p, q, eps, selected, kept, is_need_logits));
  return {selected, kept};
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
  auto [selected, kept, dense_ids, dense_weights] = allocate_outputs(arguments);
  Rules rules = kSecondOperator;
  rules.most_k = largest_k(ks_max, logits.size(1));
  OperatorCall call = call_of(rules, logits, k, p, q, eps, selected, kept, is_need_logits);
  if (min_p.has_value()) {
    call.min_p = {min_p->const_data_ptr(), min_p->stride(0)};
  }
  call.are_probabilities = !input_is_logits;
  if (is_need_sample_result) {
    call.sample_result = {dense_weights.mutable_data_ptr<float>(),
                          dense_ids.mutable_data_ptr<int64_t>()};
  }
  serve(&Kernel::sample, call);
  return {selected, kept, dense_ids, dense_weights};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample, m) {
  // For `python -m ascend_sample info`.
  m.def("cpu_capability() -> str", &cpu_capability);
}

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_kernel);
  m.impl("top_k_top_p_sample_v2", &top_k_top_p_sample_v2_kernel);
}

}  // namespace ascend_sample::cpu
