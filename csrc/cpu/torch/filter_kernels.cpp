// filter_probabilities and filter_logits for CPU tensors: whole rows of what is drawn from, by the
// core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor filtered(const FilterArguments& arguments, bool keeps_ties, FilteredForm form) {
  const auto& [logits, temperature, k, p, min_p] = arguments;
  const at::Tensor lists[] = {temperature.contiguous(), k.contiguous(), p.contiguous(),
                              min_p.contiguous()};
  at::Tensor kept = allocate_outputs(arguments);
  serve(&Kernel::filter, FilteringCall{.logits = logits_of(logits),
                                       .batch_size = logits.size(0),
                                       .requests = {.temperature = lists[0].const_data_ptr<float>(),
                                                    .k = lists[1].const_data_ptr<int32_t>(),
                                                    .p = lists[2].const_data_ptr<float>(),
                                                    .min_p = lists[3].const_data_ptr<float>()},
                                       .keeps_ties = keeps_ties,
                                       .form = form,
                                       .kept = kept.mutable_data_ptr<float>()});
  return kept;
}

at::Tensor filter_probabilities_kernel(const FilterArguments& arguments) {
  check_arguments(arguments);
  return filtered(arguments, false, FilteredForm::kProbabilities);
}

at::Tensor filter_logits_kernel(const FilterLogitsArguments& arguments) {
  check_arguments(arguments);
  return filtered(arguments.filters, arguments.keep_ties,
                  arguments.is_shifted ? FilteredForm::kShifted : FilteredForm::kDivided);
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FilterArguments::kName, adapted<&filter_probabilities_kernel>);
  m.impl(FilterLogitsArguments::kName, adapted<&filter_logits_kernel>);
}

}  // namespace ascend_sample::cpu
