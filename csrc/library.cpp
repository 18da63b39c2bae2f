// The schemas of every operator of the project, and the fake kernels. Each other kernel is
// registered in its own file.
#include <torch/library.h>

#include "checks.h"
#include "sampling_checks.h"

namespace ascend_sample {
namespace {

#define ASCEND_SAMPLE_ARGUMENTS                                                \
  "(Tensor logits, Tensor k, Tensor p, Tensor? q=None, float eps=1e-08, bool " \
  "is_need_logits=False, "                                                     \
  "int top_k_guess=32)"
#define ASCEND_SAMPLE_RESULTS " -> (Tensor logits_select_idx, Tensor logits_top_kp_select)"
#define ASCEND_SAMPLE_V2_ARGUMENTS                                                   \
  "(Tensor logits, Tensor k, Tensor p, Tensor? q=None, Tensor? min_p=None, float "   \
  "eps=1e-08, bool is_need_logits=False, int top_k_guess=32, int ks_max=1024, bool " \
  "input_is_logits=True, bool is_need_sample_result=False)"
#define ASCEND_SAMPLE_V2_RESULTS                                                    \
  " -> (Tensor logits_select_idx, Tensor logits_top_kp_select, Tensor logits_idx, " \
  "Tensor logits_sort_masked)"
#define ASCEND_SAMPLE_NOISE_ARGUMENTS \
  "(Tensor seed, Tensor position, int lanes, int stream=0, int first_lane=0)"
#define ASCEND_SAMPLE_ROWS_ARGUMENTS                                                     \
  "(Tensor logits, Tensor? rows, Tensor temperature, Tensor k, Tensor p, Tensor min_p, " \
  "Tensor seed, Tensor position, int stream=0)"

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_fake(const at::Tensor& logits,
                                                           const at::Tensor& k, const at::Tensor& p,
                                                           const std::optional<at::Tensor>& q,
                                                           double eps, bool is_need_logits,
                                                           int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  return allocate_outputs(arguments);
}

SampleV2Outputs top_k_top_p_sample_v2_fake(const at::Tensor& logits, const at::Tensor& k,
                                           const at::Tensor& p, const std::optional<at::Tensor>& q,
                                           const std::optional<at::Tensor>& min_p, double eps,
                                           bool is_need_logits, int64_t top_k_guess, int64_t ks_max,
                                           bool input_is_logits, bool is_need_sample_result) {
  const SampleV2Arguments arguments{logits,
                                    k,
                                    p,
                                    q,
                                    min_p,
                                    eps,
                                    is_need_logits,
                                    top_k_guess,
                                    ks_max,
                                    input_is_logits,
                                    is_need_sample_result};
  check_arguments(arguments);
  return allocate_outputs(arguments);
}

void check_top_k_top_p_sample(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                              const std::optional<at::Tensor>& q, double eps, bool is_need_logits,
                              int64_t top_k_guess) {
  check_arguments(SampleArguments{logits, k, p, q, eps, is_need_logits, top_k_guess});
}

void check_top_k_top_p_sample_v2(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                                 const std::optional<at::Tensor>& q,
                                 const std::optional<at::Tensor>& min_p, double eps,
                                 bool is_need_logits, int64_t top_k_guess, int64_t ks_max,
                                 bool input_is_logits, bool is_need_sample_result) {
  check_arguments(SampleV2Arguments{logits, k, p, q, min_p, eps, is_need_logits, top_k_guess,
                                    ks_max, input_is_logits, is_need_sample_result});
}

void check_tensor(const at::Tensor& tensor, c10::string_view name, c10::string_view op) {
  const std::string operator_name(op);
  if (name == "logits") {
    check_logits(operator_name.c_str(), tensor);
  } else {
    check_layout(operator_name.c_str(), tensor, std::string(name).c_str());
  }
}

void implement_fakes(torch::Library& m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_fake);
  m.impl("top_k_top_p_sample_composite", &top_k_top_p_sample_fake);
  m.impl("top_k_top_p_sample_v2", &top_k_top_p_sample_v2_fake);
  m.impl("top_k_top_p_sample_v2_composite", &top_k_top_p_sample_v2_fake);
}

void implement_checks(torch::Library& m) {
  m.impl("check_top_k_top_p_sample", &check_top_k_top_p_sample);
  m.impl("check_top_k_top_p_sample_v2", &check_top_k_top_p_sample_v2);
  m.impl("check_tensor", &check_tensor);
}

at::Tensor exponential_noise_fake(const at::Tensor& seed, const at::Tensor& position, int64_t lanes,
                                  int64_t stream, int64_t first_lane) {
  const NoiseArguments arguments{seed, position, lanes, stream, first_lane};
  check_arguments(arguments);
  return allocate_output(arguments);
}

std::tuple<at::Tensor, at::Tensor> sample_rows_fake(const at::Tensor& logits,
                                                    const std::optional<at::Tensor>& rows,
                                                    const at::Tensor& temperature,
                                                    const at::Tensor& k, const at::Tensor& p,
                                                    const at::Tensor& min_p, const at::Tensor& seed,
                                                    const at::Tensor& position, int64_t stream) {
  const SampleRowsArguments arguments{logits, rows, temperature, k,     p,
                                      min_p,  seed, position,    stream};
  check_arguments(arguments);
  return allocate_outputs(arguments);
}

at::Tensor filter_probabilities_fake(const at::Tensor& logits, const at::Tensor& temperature,
                                     const at::Tensor& k, const at::Tensor& p,
                                     const at::Tensor& min_p) {
  const FilterArguments arguments{logits, temperature, k, p, min_p};
  check_arguments(arguments);
  return allocate_output(arguments);
}

std::tuple<at::Tensor, at::Tensor> best_tokens_fake(const at::Tensor& logits, int64_t count,
                                                    double temperature) {
  const BestTokensArguments arguments{logits, count, temperature};
  check_arguments(arguments);
  return allocate_outputs(arguments);
}

void check_exponential_noise(const at::Tensor& seed, const at::Tensor& position, int64_t lanes,
                             int64_t stream, int64_t first_lane) {
  check_arguments(NoiseArguments{seed, position, lanes, stream, first_lane});
}

}  // namespace

TORCH_LIBRARY(ascend_sample, m) {
  m.def("top_k_top_p_sample" ASCEND_SAMPLE_ARGUMENTS ASCEND_SAMPLE_RESULTS,
        {at::Tag::pt2_compliant_tag});
  m.def("top_k_top_p_sample_v2" ASCEND_SAMPLE_V2_ARGUMENTS ASCEND_SAMPLE_V2_RESULTS,
        {at::Tag::pt2_compliant_tag});
  // The same operators by vectorised ATen calls on any device, under names of their own: to force
  // them, and to test them.
  m.def("top_k_top_p_sample_composite" ASCEND_SAMPLE_ARGUMENTS ASCEND_SAMPLE_RESULTS,
        {at::Tag::pt2_compliant_tag});
  m.def("top_k_top_p_sample_v2_composite" ASCEND_SAMPLE_V2_ARGUMENTS ASCEND_SAMPLE_V2_RESULTS,
        {at::Tag::pt2_compliant_tag});
  // The argument rules alone, for implementations in Python.
  m.def("check_top_k_top_p_sample" ASCEND_SAMPLE_ARGUMENTS " -> ()");
  m.def("check_top_k_top_p_sample_v2" ASCEND_SAMPLE_V2_ARGUMENTS " -> ()");
  // What is wrong with one argument that torch has refused before its operator could.
  m.def("check_tensor(Tensor tensor, str name, str op) -> ()");
  // What the sampling layer is made of on the CPU. Other devices take its routes in torch.
  m.def("exponential_noise" ASCEND_SAMPLE_NOISE_ARGUMENTS " -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def("sample_rows" ASCEND_SAMPLE_ROWS_ARGUMENTS " -> (Tensor token_ids, Tensor status)",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "filter_probabilities(Tensor logits, Tensor temperature, Tensor k, Tensor p, Tensor min_p) "
      "-> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "best_tokens(Tensor logits, int count, float temperature=1.0) -> (Tensor log_probs, Tensor "
      "token_ids)",
      {at::Tag::pt2_compliant_tag});
  m.def("check_exponential_noise" ASCEND_SAMPLE_NOISE_ARGUMENTS " -> ()");
}

TORCH_LIBRARY_IMPL(ascend_sample, Meta, m) {
  implement_fakes(m);
  m.impl("exponential_noise", &exponential_noise_fake);
  m.impl("sample_rows", &sample_rows_fake);
  m.impl("filter_probabilities", &filter_probabilities_fake);
  m.impl("best_tokens", &best_tokens_fake);
}

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  implement_checks(m);
  m.impl("check_exponential_noise", &check_exponential_noise);
}

// Nested tensors have keys of their own, which no kernel above is for; the rules refuse them by
// name. The first key is reached by every kind of them, before a subclass in Python could answer;
// the others under torch.inference_mode(), where there are no keys of autograd.
TORCH_LIBRARY_IMPL(ascend_sample, AutogradNestedTensor, m) {
  implement_fakes(m);
  implement_checks(m);
}

TORCH_LIBRARY_IMPL(ascend_sample, NestedTensorCPU, m) {
  implement_fakes(m);
  implement_checks(m);
}

TORCH_LIBRARY_IMPL(ascend_sample, NestedTensorPrivateUse1, m) {
  implement_fakes(m);
  implement_checks(m);
}

}  // namespace ascend_sample
