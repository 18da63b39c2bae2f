// row_logprobs for CPU tensors: what the sampling layer reports of rows, by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "reader.h"

namespace ascend_sample::cpu {
namespace {

constexpr const char* kOperator = RowLogprobsArguments::kName;

RowLogprobsArguments::Results row_logprobs_kernel(const RowLogprobsArguments& arguments) {
  const auto& [logits, rows, token_ids, count, is_normalised, entropy, named, temperature] =
      arguments;
  arguments.check();
  Reader reader;
  const Range ids_of_vocabulary{.least = 0,
                                .end = logits.size(1),
                                .end_name = "the vocabulary size of logits",
                                .remedy = "Give ids of the vocabulary."};
  const auto given = reader.numbers<int64_t>(token_ids);
  check_values(kOperator, "token_ids", given, ids_of_vocabulary);
  const auto named_ids = reader.numbers<int64_t>(named);
  check_values(kOperator, "named", named_ids, ids_of_vocabulary);
  auto [numbers, ids, ranks, entropies] = arguments.allocate_outputs();
  serve(&Kernel::rank,
        RankingCall{.logits = logits_of(logits),
                    .batch_size = token_ids.size(0),
                    .rows = reader.rows(kOperator, rows, logits),
                    .count = count,
                    .temperature = 1.0F,
                    .is_normalised = is_normalised,
                    .given = GivenTokens{given.data(), {}, ranks.mutable_data_ptr<int64_t>()},
                    .numbers = numbers.mutable_data_ptr<float>(),
                    .token_ids = ids.mutable_data_ptr<int64_t>(),
                    .entropies = written<float>(entropies),
                    .named = named_ids,
                    .named_count = named.has_value() ? named->size(1) : 0,
                    .temperatures = reader.numbers<float>(temperature)});
  return {numbers, ids, ranks, entropies};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(RowLogprobsArguments::kName, adapted<&row_logprobs_kernel>);
}

}  // namespace ascend_sample::cpu
