// What a rank finds of its part of rows, by the core of targets.h: first_of_rows and
// segment_winners, on CPU tensors.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "reader.h"

namespace ascend_sample::cpu {
namespace {

FirstOfRowsArguments::Results first_of_rows_kernel(const FirstOfRowsArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(FirstOfRowsArguments::kName, arguments.rows, logits);
  auto [values, token_ids, status] = arguments.allocate_outputs();
  serve(&Kernel::find_first,
        FirstCall{.logits = logits_of(logits),
                  .batch_size = values.size(0),
                  .rows = rows,
                  .count = arguments.count,
                  .values = values.mutable_data_ptr<float>(),
                  .ids = token_ids.mutable_data_ptr<int64_t>(),
                  .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())});
  return {values, token_ids, status};
}

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
                                           .seed = reader.list<int64_t>(arguments.seed),
                                           .position = reader.list<int64_t>(arguments.position),
                                           .purpose = static_cast<uint32_t>(arguments.purpose),
                                           .scores = scores.mutable_data_ptr<double>(),
                                           .ids = token_ids.mutable_data_ptr<int64_t>()});
  return {scores, token_ids};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FirstOfRowsArguments::kName, adapted<&first_of_rows_kernel>);
  m.impl(SegmentWinnersArguments::kName, adapted<&segment_winners_kernel>);
}

}  // namespace ascend_sample::cpu
