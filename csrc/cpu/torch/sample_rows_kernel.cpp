// sample_rows for CPU tensors: the sampling layer's rows, each by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"

namespace ascend_sample::cpu {
namespace {

/// Here the places can be looked at. A kernel on a device would have to wait for them.
void check_places(const at::Tensor& rows, int64_t batch_size) {
  const auto* const places = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    TORCH_CHECK_VALUE(places[i] >= 0 && places[i] < batch_size,
                      "sample_rows: rows must be between 0 and the batch size of logits (",
                      batch_size, ") - 1, got ", places[i], ". Pass None to sample all rows.");
  }
}

SampleRowsArguments::Results sample_rows_kernel(const SampleRowsArguments& arguments) {
  const auto& [logits, rows, temperature, k, p, min_p, seed, position, purpose, keep_ties] =
      arguments;
  check_arguments(arguments);
  // A few numbers a row: not worth a stride each.
  const at::Tensor lists[] = {temperature.contiguous(), k.contiguous(),    p.contiguous(),
                              min_p.contiguous(),       seed.contiguous(), position.contiguous()};
  at::Tensor places;
  if (rows.has_value()) {
    places = rows->contiguous();
    check_places(places, logits.size(0));
  }
  auto [token_ids, status] = allocate_outputs(arguments);
  SamplingCall call{.logits = logits_of(logits),
                    .batch_size = seed.size(0),
                    .rows = {},
                    .requests = {.temperature = lists[0].const_data_ptr<float>(),
                                 .k = lists[1].const_data_ptr<int32_t>(),
                                 .p = lists[2].const_data_ptr<float>(),
                                 .min_p = lists[3].const_data_ptr<float>()},
                    .seed = lists[4].const_data_ptr<int64_t>(),
                    .position = lists[5].const_data_ptr<int64_t>(),
                    .purpose = static_cast<uint32_t>(purpose),
                    .keeps_ties = keep_ties,
                    .selected = token_ids.mutable_data_ptr<int64_t>(),
                    .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())};
  if (places.defined()) {
    call.rows = {places.const_data_ptr<int64_t>(), static_cast<size_t>(places.numel())};
  }
  serve(&Kernel::sample_requests, call);
  return {token_ids, status};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleRowsArguments::kName, adapted<&sample_rows_kernel>);
}

}  // namespace ascend_sample::cpu
