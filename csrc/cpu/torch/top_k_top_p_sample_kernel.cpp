// Both operators for CPU tensors: rows in parallel, each by the core of targets.h.
#include <torch/library.h>

#include <string>

#include "adapter.h"
#include "checks.h"
#include "dispatch.h"
#include "operators.h"

namespace ascend_sample::cpu {
namespace {

/// What both operators are asked, checked. The tensors outlive the call.
template <typename Arguments>
OperatorCall call_of(const Rules& rules, const Arguments& arguments, const at::Tensor& selected,
                     const at::Tensor& kept) {
  const auto& [logits, k, p, q] = std::tie(arguments.logits, arguments.k, arguments.p, arguments.q);
  OperatorCall call{.logits = logits_of(logits),
                    .batch_size = logits.size(0),
                    .rules = rules,
                    .k = {k.template const_data_ptr<int32_t>(), k.stride(0)},
                    .p = {p.const_data_ptr(), p.stride(0)},
                    .min_p = std::nullopt,
                    .q = std::nullopt,
                    .eps = static_cast<float>(arguments.eps),
                    .selected = selected.mutable_data_ptr<int64_t>(),
                    .kept = {}};
  if (q.has_value()) {
    call.q = {q->template const_data_ptr<float>(), q->stride(0), q->stride(1)};
  }
  if (arguments.is_need_logits) {
    call.kept = written<float>(kept);
  }
  return call;
}

/// The code path in use: "avx512".
std::string cpu_capability() { return std::string(target_in_use().name); }

SampleArguments::Results top_k_top_p_sample_kernel(const SampleArguments& arguments) {
  arguments.check();
  auto [selected, kept] = arguments.allocate_outputs();
  serve(&Kernel::sample, call_of(kFirstOperator, arguments, selected, kept));
  return {selected, kept};
}

/// Probabilities as input and sample results are left to the composite, which is slower.
SampleV2Arguments::Results top_k_top_p_sample_v2_kernel(const SampleV2Arguments& arguments) {
  static const Dispatched<SampleV2Arguments> composite(variant_name<SampleV2Arguments>(kComposite));
  if (!arguments.input_is_logits || arguments.is_need_sample_result) {
    return composite(arguments);
  }
  arguments.check();
  auto [selected, kept, dense_ids, dense_weights] = arguments.allocate_outputs();
  Rules rules = kSecondOperator;
  rules.most_k = largest_k(arguments.ks_max, arguments.logits.size(1));
  OperatorCall call = call_of(rules, arguments, selected, kept);
  if (const auto& min_p = arguments.min_p; min_p.has_value()) {
    call.min_p = {min_p->const_data_ptr(), min_p->stride(0)};
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
  m.impl(SampleArguments::kName, adapted<&top_k_top_p_sample_kernel>);
  m.impl(SampleV2Arguments::kName, adapted<&top_k_top_p_sample_v2_kernel>);
}

}  // namespace ascend_sample::cpu
