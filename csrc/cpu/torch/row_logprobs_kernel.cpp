// row_logprobs for CPU tensors: what is reported of rows, by the core of targets.h.
#include <torch/library.h>

#include <optional>
#include <utility>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "reader.h"

namespace ascend_sample::cpu {
namespace {

constexpr const char* kOperator = RowLogprobsArguments::kName;

RowLogprobsArguments::Results row_logprobs_kernel(const RowLogprobsArguments& arguments) {
  const auto& [logits, rows, token_ids, count, is_normalised, entropy, named, temperature,
               largest] = arguments;
  arguments.check();
  Reader reader;
  auto [numbers, ids, of_rows] = arguments.allocate_outputs();
  RankingCall call{.logits = logits_of(logits),
                   .batch_size = numbers.size(0),
                   .rows = reader.rows(kOperator, rows, logits),
                   .count = count,
                   .is_normalised = is_normalised,
                   .given = std::nullopt,
                   .numbers = numbers.mutable_data_ptr<float>(),
                   .token_ids = ids.mutable_data_ptr<int64_t>(),
                   .entropies = {},
                   .named = reader.ids(kOperator, named, logits, "named"),
                   .named_count = named.has_value() ? named->size(1) : 0,
                   .temperatures = reader.numbers<float>(temperature)};
  if (token_ids.has_value()) {
    call.given = {.ids = reader.ids(kOperator, token_ids, logits, "token_ids").data(),
                  .places = {},
                  .ranks = of_rows.front().mutable_data_ptr<int64_t>()};
  }
  if (entropy) {
    call.entropies = written<float>(of_rows.back());
  }
  if (largest) {  // then there are no entropies
    call.largest = written<float>(of_rows.back());
  }
  serve(&Kernel::rank, call);
  return {numbers, ids, std::move(of_rows)};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(RowLogprobsArguments::kName, adapted<&row_logprobs_kernel>);
}

}  // namespace ascend_sample::cpu
