// The rules that the arguments of the sampling layer's operators obey, and their outputs: written
// once, used by every kernel, as those of checks.h are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace ascend_sample {

/// The arguments of exponential_noise, in the order of its schema.
struct NoiseArguments {
  const at::Tensor& seed;
  const at::Tensor& position;
  int64_t lanes;
  int64_t stream;
  int64_t first_lane;
};

/// The arguments of sample_rows, in the order of its schema.
struct SampleRowsArguments {
  const at::Tensor& logits;
  const std::optional<at::Tensor>& rows;
  const at::Tensor& temperature;
  const at::Tensor& k;
  const at::Tensor& p;
  const at::Tensor& min_p;
  const at::Tensor& seed;
  const at::Tensor& position;
  int64_t stream;
};

/// The arguments of filter_probabilities, in the order of its schema.
struct FilterArguments {
  const at::Tensor& logits;
  const at::Tensor& temperature;
  const at::Tensor& k;
  const at::Tensor& p;
  const at::Tensor& min_p;
};

/// The arguments of best_tokens, in the order of its schema.
struct BestTokensArguments {
  const at::Tensor& logits;
  int64_t count;
  double temperature;
};

/// Throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}. {remedy}".
void check_arguments(const NoiseArguments& arguments);
void check_arguments(const SampleRowsArguments& arguments);
void check_arguments(const FilterArguments& arguments);
void check_arguments(const BestTokensArguments& arguments);

/// float32 [batch, lanes], not initialised.
at::Tensor allocate_output(const NoiseArguments& arguments);

/// float32 [batch, vocab_size], not initialised.
at::Tensor allocate_output(const FilterArguments& arguments);

/// (token_ids int64 [rows], status int8 [rows]), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const SampleRowsArguments& arguments);

/// (log_probs float32 [batch, count], token_ids int64 [batch, count]), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const BestTokensArguments& arguments);

}  // namespace ascend_sample
