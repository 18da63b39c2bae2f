// best_tokens for CPU tensors: what a step of beam search looks at, by the core of targets.h.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"

namespace ascend_sample::cpu {
namespace {

BestTokensArguments::Results best_tokens_kernel(const BestTokensArguments& arguments) {
  const auto& [logits, count, temperature] = arguments;
  arguments.check();
  auto [log_probs, token_ids] = arguments.allocate_outputs();
  serve(&Kernel::rank, RankingCall{.logits = logits_of(logits),
                                   .batch_size = logits.size(0),
                                   .rows = {},
                                   .count = count,
                                   .temperature = static_cast<float>(temperature),
                                   .is_normalised = true,
                                   .given = {},
                                   .numbers = log_probs.mutable_data_ptr<float>(),
                                   .token_ids = token_ids.mutable_data_ptr<int64_t>(),
                                   .entropies = {}});
  return {log_probs, token_ids};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(BestTokensArguments::kName, adapted<&best_tokens_kernel>);
}

}  // namespace ascend_sample::cpu
