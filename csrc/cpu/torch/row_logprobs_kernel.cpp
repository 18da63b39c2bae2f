// row_logprobs for CPU tensors: what the sampling layer reports of rows, by the core of targets.h.
#include <torch/library.h>

#include <span>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"
#include "values.h"

namespace ascend_sample::cpu {
namespace {

constexpr const char* kOperator = RowLogprobsArguments::kName;

std::span<const int64_t> numbers_of(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr<int64_t>(), static_cast<size_t>(contiguous.numel())};
}

RowLogprobsArguments::Results row_logprobs_kernel(const RowLogprobsArguments& arguments) {
  const auto& [logits, rows, token_ids, count, is_normalised] = arguments;
  check_arguments(arguments);
  const at::Tensor given = token_ids.contiguous();
  check_values(kOperator, "token_ids", numbers_of(given),
               {.least = 0,
                .end = logits.size(1),
                .end_name = "the vocabulary size of logits",
                .remedy = "Give ids of the vocabulary."});
  auto [numbers, ids, ranks] = allocate_outputs(arguments);
  RankingCall call{
      .logits = logits_of(logits),
      .batch_size = given.size(0),
      .rows = {},
      .count = count,
      .temperature = 1.0F,
      .is_normalised = is_normalised,
      .given = GivenTokens{given.const_data_ptr<int64_t>(), ranks.mutable_data_ptr<int64_t>()},
      .numbers = numbers.mutable_data_ptr<float>(),
      .token_ids = ids.mutable_data_ptr<int64_t>()};
  at::Tensor places;
  if (rows.has_value()) {
    places = rows->contiguous();
    call.rows = numbers_of(places);
    check_values(kOperator, "rows", call.rows,
                 {.least = 0,
                  .end = logits.size(0),
                  .end_name = "the batch size of logits",
                  .remedy = "Pass None for all rows."});
  }
  serve(&Kernel::rank, call);
  return {numbers, ids, ranks};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(RowLogprobsArguments::kName, adapted<&row_logprobs_kernel>);
}

}  // namespace ascend_sample::cpu
