// The rules that the arguments of top_k_top_p_sample obey, and the outputs that it returns: written
// once, used by every kernel (CPU, NPU, composite and fake), so that none of them can drift.
// Source: the semantics document, sections 1 and 5.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "contract.h"

namespace ascend_sample {

inline constexpr const char* kOperatorName = "top_k_top_p_sample";

/// The arguments of the operator, in the order of its schema.
struct SampleArguments {
  const at::Tensor& logits;
  const at::Tensor& k;
  const at::Tensor& p;
  const std::optional<at::Tensor>& q;
  double eps;
  bool is_need_logits;
  int64_t top_k_guess;
};

/// Throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}. {remedy}". Looks
/// at shapes, dtypes, devices and numbers on the host only: works on fake tensors with symbolic
/// shapes, and never synchronises with a device.
void check_arguments(const SampleArguments& arguments);

/// (logits_select_idx int64 [B], logits_top_kp_select float32 [B, V], or [0] when it is not
/// wanted), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const SampleArguments& arguments);

/// "[4, 32000] BFloat16 on cpu": how errors describe a tensor.
std::string describe(const at::Tensor& tensor);

}  // namespace ascend_sample
