// sample_rows for CPU tensors: the sampling layer's rows, each by the core of targets.h.
#include <torch/library.h>

#include <span>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"
#include "requests_reader.h"
#include "values.h"

namespace ascend_sample::cpu {
namespace {

constexpr const char* kOperator = SampleRowsArguments::kName;

SampleRowsArguments::Results sample_rows_kernel(const SampleRowsArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  std::span<const int64_t> places;
  if (arguments.rows.has_value()) {
    places = {reader.list<int64_t>(*arguments.rows), static_cast<size_t>(arguments.rows->numel())};
    check_values(kOperator, "rows", places,
                 {.least = 0,
                  .end = logits.size(0),
                  .end_name = "the batch size of logits",
                  .remedy = "Pass None to sample all rows."});
  }
  auto [token_ids, status] = allocate_outputs(arguments);
  SamplingCall call = sampling_call_of(arguments, reader, token_ids, status);
  call.rows = places;
  serve(&Kernel::sample_requests, call);
  return {token_ids, status};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleRowsArguments::kName, adapted<&sample_rows_kernel>);
}

}  // namespace ascend_sample::cpu
