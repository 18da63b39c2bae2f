// The operators that are CANN's, each once: its name, its schema, its results, and the struct of
// its arguments, in the order of the schema. Every kernel takes the struct (adapter.h). Those of
// the sampling layer are in layer_operators.h.
//
// check() throws ValueError or TypeError with "{op}: {argument} must {rule}, got {value}.
// {remedy}". It looks at shapes, dtypes, devices and numbers on the host only: it works on fake
// tensors with symbolic shapes, and never synchronises with a device. allocate_outputs() makes the
// results, not initialised; what is not wanted has the shape [0].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace ascend_sample {

struct SampleArguments {
  static constexpr const char* kName = "top_k_top_p_sample";
  static constexpr const char* kSchema =
      "(Tensor logits, Tensor k, Tensor p, Tensor? q=None, float eps=1e-08, "
      "bool is_need_logits=False, int top_k_guess=32)";
  /// int64 [B], float32 [B, V].
  static constexpr const char* kResults = "(Tensor logits_select_idx, Tensor logits_top_kp_select)";
  using Results = std::tuple<at::Tensor, at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  const at::Tensor& k;
  const at::Tensor& p;
  const std::optional<at::Tensor>& q;
  double eps;
  bool is_need_logits;
  int64_t top_k_guess;
};

struct SampleV2Arguments {
  static constexpr const char* kName = "top_k_top_p_sample_v2";
  static constexpr const char* kSchema =
      "(Tensor logits, Tensor k, Tensor p, Tensor? q=None, Tensor? min_p=None, float eps=1e-08, "
      "bool is_need_logits=False, int top_k_guess=32, int ks_max=1024, bool input_is_logits=True, "
      "bool is_need_sample_result=False)";
  /// int64 [B], float32 [B, V], int64 [B, V], float32 [B, V].
  static constexpr const char* kResults =
      "(Tensor logits_select_idx, Tensor logits_top_kp_select, Tensor logits_idx, "
      "Tensor logits_sort_masked)";
  using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

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

/// Filters and draws nothing. p comes before k, as CANN and torch_npu have it.
struct ApplyArguments {
  static constexpr const char* kName = "apply_top_k_top_p";
  static constexpr const char* kSchema = "(Tensor logits, Tensor? p=None, Tensor? k=None)";
  static constexpr const char* kResults = "(Tensor filtered)";  // as the logits
  using Results = std::tuple<at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  const std::optional<at::Tensor>& p;
  const std::optional<at::Tensor>& k;
};

/// Calls `visit` for each operator that is one of CANN's.
template <typename Visit>
void for_each_of_cann(Visit visit) {
  visit.template operator()<SampleArguments>();
  visit.template operator()<SampleV2Arguments>();
  visit.template operator()<ApplyArguments>();
}

/// What follows the operator's name where one of its implementations is forced, or tested: that by
/// vectorised ATen calls on any device; the specification, and CANN's operator through cffi, whose
/// kernels are registered in Python.
inline constexpr const char* kComposite = "_composite";
inline constexpr std::array<const char*, 4> kVariants = {"", kComposite, "_reference", "_cffi"};

template <typename Arguments>
std::string variant_name(const char* variant) {
  return std::string(Arguments::kName) + variant;
}

}  // namespace ascend_sample
