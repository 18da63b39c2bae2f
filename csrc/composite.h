#pragma once

#include "checks.h"

namespace ascend_sample {

/// The operator by vectorised ATen calls on whatever device the tensors are: no loop over rows and
/// no synchronisation.
std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_composite(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess);

}  // namespace ascend_sample
