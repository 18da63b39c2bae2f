// row_logprobs for CPU tensors: what the sampling layer reports of rows, by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"

namespace ascend_sample::cpu {
namespace {

/// Here the numbers can be looked at. A kernel on a device would have to wait for them.
void check_below(const at::Tensor& numbers, int64_t end, const char* name, const char* of_what,
                 const char* remedy) {
  const auto* const data = numbers.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    TORCH_CHECK_VALUE(data[i] >= 0 && data[i] < end, RowLogprobsArguments::kName, ": ", name,
                      " must be between 0 and the ", of_what, " of logits (", end, ") - 1, got ",
                      data[i], ". ", remedy);
  }
}

RowLogprobsArguments::Results row_logprobs_kernel(const RowLogprobsArguments& arguments) {
  const auto& [logits, rows, token_ids, count, is_normalised] = arguments;
  check_arguments(arguments);
  const at::Tensor given = token_ids.contiguous();
  check_below(given, logits.size(1), "token_ids", "vocabulary size", "Give ids of the vocabulary.");
  auto [numbers, ids, ranks] = allocate_outputs(arguments);
  RankingCall call{.logits = logits_of(logits),
                   .batch_size = given.size(0),
                   .rows = {},
                   .count = count,
                   .temperature = 1.0F,
                   .is_normalised = is_normalised,
                   .given = given.const_data_ptr<int64_t>(),
                   .numbers = numbers.mutable_data_ptr<float>(),
                   .token_ids = ids.mutable_data_ptr<int64_t>(),
                   .ranks = ranks.mutable_data_ptr<int64_t>()};
  at::Tensor places;
  if (rows.has_value()) {
    places = rows->contiguous();
    check_below(places, logits.size(0), "rows", "batch size", "Pass None for all rows.");
    call.rows = {places.const_data_ptr<int64_t>(), static_cast<size_t>(places.numel())};
  }
  serve(&Kernel::rank, call);
  return {numbers, ids, ranks};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(RowLogprobsArguments::kName, adapted<&row_logprobs_kernel>);
}

}  // namespace ascend_sample::cpu
