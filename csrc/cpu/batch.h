// Tensors as a batch of rows, and rows in parallel: what the CPU kernels of both operators share.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "sample_rows.h"

namespace ascend_sample::cpu {

/// The arguments that both operators have, checked. The tensors outlive the batch.
Batch batch_of(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
               const std::optional<at::Tensor>& q, double eps);

/// Samples all rows with the code path in use, on torch's threads.
void sample_batch(const Batch& batch);

/// The code path in use: "avx512".
std::string cpu_capability();

}  // namespace ascend_sample::cpu
