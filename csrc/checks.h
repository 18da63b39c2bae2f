// The rules that the arguments of the two operators obey, and the outputs that they return: written
// once, used by every kernel (CPU, NPU, composite and fake), so that none of them can drift.
// Source: docs/semantics.md, sections 1 and 5, and docs/semantics_v2.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "contract.h"

namespace ascend_sample {

inline constexpr const char* kOperatorName = "top_k_top_p_sample";
inline constexpr const char* kOperatorV2Name = "top_k_top_p_sample_v2";

/// The arguments of top_k_top_p_sample, in the order of its schema.
struct SampleArguments {
  const at::Tensor& logits;
  const at::Tensor& k;
  const at::Tensor& p;
  const std::optional<at::Tensor>& q;
  double eps;
  bool is_need_logits;
  int64_t top_k_guess;
};

/// The arguments of top_k_top_p_sample_v2, in the order of its schema.
struct SampleV2Arguments {
  const at::Tensor& logits;
  const at::Tensor& k;
  const at::Tensor& p;
  const std::optional<at::Tensor>& q;
  const std::optional<at::Tensor>& min_p;
  double eps;
  bool is_need_logits;
  int64_t top_k_guess;
  int64_t ks_max;
  bool input_is_logits;
  bool is_need_sample_result;
};

/// Throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}. {remedy}". Looks
/// at shapes, dtypes, devices and numbers on the host only: works on fake tensors with symbolic
/// shapes, and never synchronises with a device.
void check_arguments(const SampleArguments& arguments);
void check_arguments(const SampleV2Arguments& arguments);

/// (logits_select_idx int64 [B], logits_top_kp_select float32 [B, V], or [0] when it is not
/// wanted), not initialised.
std::tuple<at::Tensor, at::Tensor> allocate_outputs(const SampleArguments& arguments);

using SampleV2Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// (logits_select_idx int64 [B], logits_top_kp_select float32 [B, V], logits_idx int64 [B, V],
/// logits_sort_masked float32 [B, V]; [0] for those that are not wanted), not initialised.
SampleV2Outputs allocate_outputs(const SampleV2Arguments& arguments);

/// The rules for logits alone, in the same words.
void check_logits(const char* op, const at::Tensor& logits);

/// The rule for any tensor: it is dense and strided; `name` is the argument's.
void check_layout(const char* op, const at::Tensor& tensor, const char* name);

/// "[4, 32000] BFloat16 on cpu": how errors describe a tensor.
std::string describe(const at::Tensor& tensor);

}  // namespace ascend_sample
