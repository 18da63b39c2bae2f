// sample_rows for CPU tensors: the sampling layer's rows, each by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

SampleRowsArguments::Results sample_rows_kernel(const SampleRowsArguments& arguments) {
  arguments.check();
  Reader reader;
  const auto rows = reader.rows(SampleRowsArguments::kName, arguments.rows, arguments.logits);
  auto [token_ids, status] = arguments.allocate_outputs();
  SamplingCall call = sampling_call_of(arguments, reader, token_ids, status);
  call.rows = rows;
  serve(&Kernel::sample_requests, call);
  return {token_ids, status};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleRowsArguments::kName, adapted<&sample_rows_kernel>);
}

}  // namespace ascend_sample::cpu
