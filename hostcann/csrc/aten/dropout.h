// What dropout does to its tensor; attention drops probabilities the same way.
#pragma once

#include <ATen/ATen.h>

namespace hostcann::aten {

/// Zeroes what `mask` has no bit for and divides the rest by 1 - p. The first element's bit is the
/// lowest of the first byte.
at::Tensor drop(const at::Tensor& self, const at::Tensor& mask, double p);

}  // namespace hostcann::aten
