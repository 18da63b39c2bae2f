// segment_winners for CPU tensors: what a rank draws from its part of rows, by the core of
// targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

SegmentWinnersArguments::Results segment_winners_kernel(const SegmentWinnersArguments& arguments) {
  arguments.check();
  Reader reader;
  auto [scores, token_ids] = arguments.allocate_outputs();
  serve(&Kernel::find_winners, WinnersCall{.logits = logits_of(arguments.logits),
                                           .batch_size = scores.size(0),
                                           .first_id = arguments.first_id,
                                           .temperature = reader.list<float>(arguments.temperature),
                                           .min_p = reader.list<float>(arguments.min_p),
                                           .maximum = reader.list<float>(arguments.maximum),
                                           .keys = keys_of(arguments.keys, reader),
                                           .scores = scores.mutable_data_ptr<double>(),
                                           .ids = token_ids.mutable_data_ptr<int64_t>()});
  return {scores, token_ids};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SegmentWinnersArguments::kName, adapted<&segment_winners_kernel>);
}

}  // namespace ascend_sample::cpu
