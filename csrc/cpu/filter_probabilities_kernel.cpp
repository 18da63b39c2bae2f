// filter_probabilities for CPU tensors: whole distributions of rows, by the core of sample_rows.h.
#include <torch/library.h>

#include "dispatch.h"
#include "sampling_checks.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor filter_probabilities_kernel(const at::Tensor& logits, const at::Tensor& temperature,
                                       const at::Tensor& k, const at::Tensor& p,
                                       const at::Tensor& min_p) {
  const FilterArguments arguments{logits, temperature, k, p, min_p};
  check_arguments(arguments);
  const at::Tensor lists[] = {temperature.contiguous(), k.contiguous(), p.contiguous(),
                              min_p.contiguous()};
  at::Tensor probabilities = allocate_outputs(arguments);
  const Filtering filtering{.temperature = lists[0].const_data_ptr<float>(),
                            .p = lists[2].const_data_ptr<float>(),
                            .min_p = lists[3].const_data_ptr<float>()};
  sample_batch({.type = type_of(logits.scalar_type()),
                .batch_size = logits.size(0),
                .vocab_size = logits.size(1),
                .logits = logits.const_data_ptr(),
                .logits_row_stride = logits.stride(0),
                .logits_column_stride = logits.stride(1),
                .k = lists[1].const_data_ptr<int32_t>(),
                .k_stride = 1,
                .kept = probabilities.mutable_data_ptr<float>(),
                .filtering = &filtering});
  return probabilities;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl("filter_probabilities", &filter_probabilities_kernel);
}

}  // namespace ascend_sample::cpu
