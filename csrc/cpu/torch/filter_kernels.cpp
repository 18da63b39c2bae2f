// filter_logits and value_ranges for CPU tensors: what is kept of whole rows, and between which
// values, by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor filter_logits_kernel(const FilterLogitsArguments& arguments) {
  arguments.check();
  Reader reader;
  at::Tensor kept = arguments.allocate_outputs();
  serve(&Kernel::filter, FilteringCall{.logits = logits_of(arguments.logits),
                                       .batch_size = arguments.logits.size(0),
                                       .requests = requests_of(arguments, arguments, reader),
                                       .form = static_cast<FilteredForm>(arguments.form),
                                       .kept = kept.mutable_data_ptr<float>()});
  return kept;
}

ValueRangesArguments::Results value_ranges_kernel(const ValueRangesArguments& arguments) {
  arguments.check();
  Reader reader;
  auto [least, most] = arguments.allocate_outputs();
  serve(&Kernel::find_ranges, RangesCall{.logits = logits_of(arguments.logits),
                                         .batch_size = arguments.logits.size(0),
                                         .temperature = reader.list<float>(arguments.temperature),
                                         .ranges = {reader.table<float>(arguments.ranges)},
                                         .least = least.mutable_data_ptr<float>(),
                                         .most = most.mutable_data_ptr<float>()});
  return {least, most};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FilterLogitsArguments::kName, adapted<&filter_logits_kernel>);
  m.impl(ValueRangesArguments::kName, adapted<&value_ranges_kernel>);
}

}  // namespace ascend_sample::cpu
