// Both operators for CPU tensors: rows in parallel, each by the core of sample_rows.h.
#include <torch/library.h>

#include <string>

#include "adapter.h"
#include "checks.h"
#include "dispatch.h"

namespace ascend_sample::cpu {
namespace {

/// The arguments that both operators have, checked. The tensors outlive the batch.
template <typename Arguments>
Batch batch_of(const Arguments& arguments) {
  const auto& [logits, k, p, q] = std::tie(arguments.logits, arguments.k, arguments.p, arguments.q);
  return {.type = type_of(logits.scalar_type()),
          .batch_size = logits.size(0),
          .vocab_size = logits.size(1),
          .logits = logits.const_data_ptr(),
          .logits_row_stride = logits.stride(0),
          .logits_column_stride = logits.stride(1),
          .k = k.template const_data_ptr<int32_t>(),
          .k_stride = k.stride(0),
          .p = p.const_data_ptr(),
          .p_stride = p.stride(0),
          .q = q.has_value() ? q->template const_data_ptr<float>() : nullptr,
          .q_row_stride = q.has_value() ? q->stride(0) : 0,
          .q_column_stride = q.has_value() ? q->stride(1) : 0,
          .eps = static_cast<float>(arguments.eps)};
}

/// The code path in use: "avx512".
std::string cpu_capability() { return std::string(name_of(capability_in_use())); }

SampleArguments::Results top_k_top_p_sample_kernel(const SampleArguments& arguments) {
  check_arguments(arguments);
  auto [selected, kept] = allocate_outputs(arguments);
  Batch batch = batch_of(arguments);
  batch.selected = selected.mutable_data_ptr<int64_t>();
  batch.kept = arguments.is_need_logits ? kept.mutable_data_ptr<float>() : nullptr;
  sample_batch(batch);
  return {selected, kept};
}

SampleV2Arguments::Results top_k_top_p_sample_v2_kernel(const SampleV2Arguments& arguments) {
  check_arguments(arguments);
  auto [selected, kept, dense_ids, dense_weights] = allocate_outputs(arguments);
  Batch batch = batch_of(arguments);
  batch.selected = selected.mutable_data_ptr<int64_t>();
  batch.kept = arguments.is_need_logits ? kept.mutable_data_ptr<float>() : nullptr;
  batch.is_second = true;
  batch.most_k = largest_k(arguments.ks_max, arguments.logits.size(1));
  if (arguments.min_p.has_value()) {
    batch.min_p = arguments.min_p->const_data_ptr();
    batch.min_p_stride = arguments.min_p->stride(0);
  }
  batch.are_probabilities = !arguments.input_is_logits;
  if (arguments.is_need_sample_result) {
    batch.dense_weights = dense_weights.mutable_data_ptr<float>();
    batch.dense_ids = dense_ids.mutable_data_ptr<int64_t>();
  }
  sample_batch(batch);
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
