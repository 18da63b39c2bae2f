// filter_probabilities and filter_logits for CPU tensors: whole rows of what is drawn from, by the
// core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

/// The call for what filters keep, without edits.
template <typename Arguments>
FilteringCall filtering_call_of(const Arguments& arguments, Reader& reader,
                                const at::Tensor& kept) {
  return {.logits = logits_of(arguments.logits),
          .batch_size = arguments.logits.size(0),
          .requests = requests_of(arguments.parameters, reader),
          .kept = kept.mutable_data_ptr<float>()};
}

at::Tensor filter_probabilities_kernel(const FilterArguments& arguments) {
  arguments.check();
  Reader reader;
  at::Tensor kept = arguments.allocate_outputs();
  serve(&Kernel::filter, filtering_call_of(arguments, reader, kept));
  return kept;
}

at::Tensor filter_logits_kernel(const FilterLogitsArguments& arguments) {
  arguments.check();
  Reader reader;
  at::Tensor kept = arguments.allocate_outputs();
  FilteringCall call = filtering_call_of(arguments, reader, kept);
  call.edits = edits_of(FilterLogitsArguments::kName, arguments.logits, arguments.edits, reader);
  call.keeps_ties = arguments.keep_ties;
  call.form = !arguments.is_divided  ? FilteredForm::kLogits
              : arguments.is_shifted ? FilteredForm::kShifted
                                     : FilteredForm::kDivided;
  serve(&Kernel::filter, call);
  return kept;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FilterArguments::kName, adapted<&filter_probabilities_kernel>);
  m.impl(FilterLogitsArguments::kName, adapted<&filter_logits_kernel>);
}

}  // namespace ascend_sample::cpu
