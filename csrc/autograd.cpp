// Sampling has no derivative here: the forwards work on logits that require a gradient, and a
// backward through a floating-point result says so, by name, instead of passing silently.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "checks.h"

namespace ascend_sample {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The first operator has the first two alone.
constexpr const char* kResultNames[] = {"logits_select_idx", "logits_top_kp_select", "logits_idx",
                                        "logits_sort_masked"};

/// The kernel of the operator "ascend_sample::`Name`", whose first argument is the logits. `Public`
/// is the name that its errors give.
template <const char* const& Public, const char* const& Name, typename Schema>
struct NotDifferentiable;

template <const char* const& Public, const char* const& Name, typename Results,
          typename... Arguments>
struct NotDifferentiable<Public, Name, Results(Arguments...)>
    : torch::autograd::Function<NotDifferentiable<Public, Name, Results(Arguments...)>> {
  using Operator = c10::TypedOperatorHandle<Results(Arguments...)>;

  static variable_list forward(AutogradContext* context, const Operator* op,
                               Arguments... arguments) {
    context->set_materialize_grads(false);  // so that backward sees which results it came through
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto results = std::apply([](const auto&... result) { return variable_list{result...}; },
                                    op->call(arguments...));
    variable_list without_gradient;
    for (const auto& result : results) {
      if (result.dim() == 1 || !result.is_floating_point()) {  // ids; [0]: not asked for
        without_gradient.push_back(result);
      }
    }
    context->mark_non_differentiable(without_gradient);
    return results;
  }

  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    std::string names;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) {
        names += (names.empty() ? "" : " and ") + std::string(kResultNames[i]);
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, Public,
                                ": the derivative is not implemented. Sample under "
                                "torch.no_grad(), or detach() ",
                                names, ".");
  }

  static Results kernel(Arguments... arguments) {
    static const Operator op = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow(Name, "")
                                   .template typed<Results(Arguments...)>();
    const auto& logits = std::get<0>(std::tie(arguments...));
    if (!(at::GradMode::is_enabled() && logits.requires_grad())) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return op.call(arguments...);
    }
    const auto outputs = NotDifferentiable::apply(&op, arguments...);
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Results{outputs[I]...};
    }(std::make_index_sequence<std::tuple_size_v<Results>>());
  }
};

using Sample = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                  const at::Tensor&,
                                                  const std::optional<at::Tensor>&, double, bool,
                                                  int64_t);
using SampleV2 = SampleV2Outputs(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                                 double, bool, int64_t, int64_t, bool, bool);

constexpr const char* kSample = "ascend_sample::top_k_top_p_sample";
constexpr const char* kSampleComposite = "ascend_sample::top_k_top_p_sample_composite";
constexpr const char* kSampleV2 = "ascend_sample::top_k_top_p_sample_v2";
constexpr const char* kSampleV2Composite = "ascend_sample::top_k_top_p_sample_v2_composite";

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, Autograd, m) {
  m.impl("top_k_top_p_sample", &NotDifferentiable<kOperatorName, kSample, Sample>::kernel);
  m.impl("top_k_top_p_sample_composite",
         &NotDifferentiable<kOperatorName, kSampleComposite, Sample>::kernel);
  m.impl("top_k_top_p_sample_v2", &NotDifferentiable<kOperatorV2Name, kSampleV2, SampleV2>::kernel);
  m.impl("top_k_top_p_sample_v2_composite",
         &NotDifferentiable<kOperatorV2Name, kSampleV2Composite, SampleV2>::kernel);
}

}  // namespace ascend_sample
