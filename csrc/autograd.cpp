// Sampling has no derivative here: the forward works on logits that require a gradient, and a
// backward through logits_top_kp_select says so, by name, instead of passing silently.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "checks.h"

namespace ascend_sample {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Schema = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                  const at::Tensor&,
                                                  const std::optional<at::Tensor>&, double, bool,
                                                  int64_t);
using Operator = c10::TypedOperatorHandle<Schema>;

struct NotDifferentiable : torch::autograd::Function<NotDifferentiable> {
  static variable_list forward(AutogradContext* context, const Operator* op,
                               const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                               const std::optional<at::Tensor>& q, double eps, bool is_need_logits,
                               int64_t top_k_guess) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [selected, kept] = op->call(logits, k, p, q, eps, is_need_logits, top_k_guess);
    context->mark_non_differentiable(is_need_logits ? variable_list{selected}
                                                    : variable_list{selected, kept});
    return {selected, kept};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, kOperatorName,
                                ": the derivative is not implemented. Sample under "
                                "torch.no_grad(), or detach() logits_top_kp_select.");
  }
};

template <const char* const& Name>
std::tuple<at::Tensor, at::Tensor> autograd_kernel(const at::Tensor& logits, const at::Tensor& k,
                                                   const at::Tensor& p,
                                                   const std::optional<at::Tensor>& q, double eps,
                                                   bool is_need_logits, int64_t top_k_guess) {
  static const Operator op =
      c10::Dispatcher::singleton().findSchemaOrThrow(Name, "").typed<Schema>();
  if (!(at::GradMode::is_enabled() && logits.requires_grad())) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op.call(logits, k, p, q, eps, is_need_logits, top_k_guess);
  }
  auto outputs = NotDifferentiable::apply(&op, logits, k, p, q, eps, is_need_logits, top_k_guess);
  return {outputs[0], outputs[1]};
}

constexpr const char* kSample = "ascend_sample::top_k_top_p_sample";
constexpr const char* kComposite = "ascend_sample::top_k_top_p_sample_composite";

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, Autograd, m) {
  m.impl("top_k_top_p_sample", &autograd_kernel<kSample>);
  m.impl("top_k_top_p_sample_composite", &autograd_kernel<kComposite>);
}

}  // namespace ascend_sample
