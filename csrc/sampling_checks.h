// The rules that the arguments of the sampling layer's operators obey, and their outputs: written
// once, used by every kernel, as those of checks.h are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ascend_sample {

/// The arguments of exponential_noise, in the order of its schema.
struct NoiseArguments {
  const at::Tensor& seed;
  const at::Tensor& position;
  int64_t lanes;
  int64_t stream;
  int64_t first_lane;
};

/// Throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}. {remedy}".
void check_arguments(const NoiseArguments& arguments);

/// float32 [batch, lanes], not initialised.
at::Tensor allocate_output(const NoiseArguments& arguments);

}  // namespace ascend_sample
