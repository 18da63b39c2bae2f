// filter_probabilities for CPU tensors: whole distributions of rows, by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor filter_probabilities_kernel(const FilterArguments& arguments) {
  const auto& [logits, temperature, k, p, min_p] = arguments;
  check_arguments(arguments);
  const at::Tensor lists[] = {temperature.contiguous(), k.contiguous(), p.contiguous(),
                              min_p.contiguous()};
  at::Tensor probabilities = allocate_outputs(arguments);
  serve(&Kernel::filter, FilteringCall{.logits = logits_of(logits),
                                       .batch_size = logits.size(0),
                                       .requests = {.temperature = lists[0].const_data_ptr<float>(),
                                                    .k = lists[1].const_data_ptr<int32_t>(),
                                                    .p = lists[2].const_data_ptr<float>(),
                                                    .min_p = lists[3].const_data_ptr<float>()},
                                       .probabilities = probabilities.mutable_data_ptr<float>()});
  return probabilities;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FilterArguments::kName, adapted<&filter_probabilities_kernel>);
}

}  // namespace ascend_sample::cpu
