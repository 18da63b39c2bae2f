// The schemas of every operator of the project, and the fake kernel. Each other kernel is
// registered in its own file.
#include <torch/library.h>

#include "checks.h"

namespace ascend_sample {
namespace {

#define ASCEND_SAMPLE_ARGUMENTS                                                \
  "(Tensor logits, Tensor k, Tensor p, Tensor? q=None, float eps=1e-08, bool " \
  "is_need_logits=False, "                                                     \
  "int top_k_guess=32)"
#define ASCEND_SAMPLE_RESULTS " -> (Tensor logits_select_idx, Tensor logits_top_kp_select)"

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_fake(const at::Tensor& logits,
                                                           const at::Tensor& k, const at::Tensor& p,
                                                           const std::optional<at::Tensor>& q,
                                                           double eps, bool is_need_logits,
                                                           int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  return allocate_outputs(arguments);
}

void check_top_k_top_p_sample(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                              const std::optional<at::Tensor>& q, double eps, bool is_need_logits,
                              int64_t top_k_guess) {
  check_arguments({logits, k, p, q, eps, is_need_logits, top_k_guess});
}

}  // namespace

TORCH_LIBRARY(ascend_sample, m) {
  m.def("top_k_top_p_sample" ASCEND_SAMPLE_ARGUMENTS ASCEND_SAMPLE_RESULTS,
        {at::Tag::pt2_compliant_tag});
  // The same operator by vectorised ATen calls on any device, under a name of its own: to force it,
  // and to test it.
  m.def("top_k_top_p_sample_composite" ASCEND_SAMPLE_ARGUMENTS ASCEND_SAMPLE_RESULTS,
        {at::Tag::pt2_compliant_tag});
  // The argument rules alone, for implementations in Python.
  m.def("check_top_k_top_p_sample" ASCEND_SAMPLE_ARGUMENTS " -> ()");
}

TORCH_LIBRARY_IMPL(ascend_sample, Meta, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_fake);
  m.impl("top_k_top_p_sample_composite", &top_k_top_p_sample_fake);
}

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  m.impl("check_top_k_top_p_sample", &check_top_k_top_p_sample);
}

}  // namespace ascend_sample
