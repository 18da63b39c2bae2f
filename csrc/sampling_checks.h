// The rules that the arguments of the sampling layer's operators obey, and their outputs: written
// once, used by every kernel, as those of checks.h are.
#pragma once

#include "operators.h"

namespace ascend_sample {

/// Throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}. {remedy}".
void check_arguments(const NoiseArguments& arguments);
void check_arguments(const SampleRowsArguments& arguments);
void check_arguments(const FilterArguments& arguments);
void check_arguments(const BestTokensArguments& arguments);

/// float32 [batch, lanes], not initialised.
at::Tensor allocate_outputs(const NoiseArguments& arguments);

/// float32 [batch, vocab_size], not initialised.
at::Tensor allocate_outputs(const FilterArguments& arguments);

/// (token_ids int64 [rows], status int8 [rows]), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const SampleRowsArguments& arguments);

/// (log_probs float32 [batch, count], token_ids int64 [batch, count]), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const BestTokensArguments& arguments);

}  // namespace ascend_sample
