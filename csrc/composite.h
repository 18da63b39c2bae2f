#pragma once

#include <limits>

#include "checks.h"

namespace ascend_sample {

/// The operators by vectorised ATen calls on whatever device the tensors are: no loop over rows and
/// no synchronisation.
std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_composite(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess);

SampleV2Outputs top_k_top_p_sample_v2_composite(const at::Tensor& logits, const at::Tensor& k,
                                                const at::Tensor& p,
                                                const std::optional<at::Tensor>& q,
                                                const std::optional<at::Tensor>& min_p, double eps,
                                                bool is_need_logits, int64_t top_k_guess,
                                                int64_t ks_max, bool input_is_logits,
                                                bool is_need_sample_result);

/// What the composites of both operators do alike.
namespace composite {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The precision of exponentials and of sums. Devices whose float64 is missing or emulated use
/// float32.
at::ScalarType accumulate_dtype(const at::Tensor& tensor);

/// `tensor` where `condition` holds, `other` elsewhere; in the dtype of `tensor`.
at::Tensor where_or(const at::Tensor& condition, const at::Tensor& tensor, c10::Scalar other);

/// Entries of +inf share the whole mass: in a row, sorted descending, that has one they become
/// `infinite` and all others `finite`.
at::Tensor share_infinities(const at::Tensor& sorted, double infinite, double finite);

/// softmax over the last dimension, rounded to float32; a row of -inf has weight 0 everywhere
/// instead of NaN.
at::Tensor softmax_or_zero(const at::Tensor& values);

/// The sums of the weights before each entry but the first; undefined for a single column.
at::Tensor sums_before(const at::Tensor& weights);

/// q-weighted score of every candidate (docs/semantics.md, section 4), with the special values of
/// section 5. `massless` entries lose against all others.
at::Tensor draw_scores(const at::Tensor& weights, const at::Tensor& massless, const at::Tensor& q,
                       double eps);

}  // namespace composite
}  // namespace ascend_sample
