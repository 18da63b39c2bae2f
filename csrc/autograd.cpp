// Sampling has no derivative here: the forwards work on logits that require a gradient, and a
// backward through a floating-point result says so, by name, instead of passing silently.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "adapter.h"
#include "operators.h"

namespace ascend_sample {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The kernel of an operator, or of its composite.
template <typename Arguments, bool is_composite>
struct NotDifferentiable : torch::autograd::Function<NotDifferentiable<Arguments, is_composite>> {
  using Results = typename Arguments::Results;

  static std::string name() {
    return is_composite ? composite_name<Arguments>() : Arguments::kName;
  }

  static const Dispatched<Arguments>& op() {
    static const Dispatched<Arguments> op(name());
    return op;
  }

  template <typename... Fields>
  static variable_list forward(AutogradContext* context, const Fields&... fields) {
    context->set_materialize_grads(false);  // so that backward sees which results it came through
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto results = std::apply([](const auto&... result) { return variable_list{result...}; },
                                    op()(Arguments{fields...}));
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
        names += (names.empty() ? "" : " and ") + op().schema().returns()[i].name();
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, Arguments::kName,
                                ": the derivative is not implemented. Sample under "
                                "torch.no_grad(), or detach() ",
                                names, ".");
  }

  static Results kernel(const Arguments& arguments) {
    if (!(at::GradMode::is_enabled() && arguments.logits.requires_grad())) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return op()(arguments);
    }
    const auto outputs =
        std::apply([](const auto&... fields) { return NotDifferentiable::apply(fields...); },
                   fields_of(arguments));
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Results{outputs[I]...};
    }(std::make_index_sequence<std::tuple_size_v<Results>>());
  }
};

template <typename Arguments>
void implement(torch::Library& m) {
  using Operator = NotDifferentiable<Arguments, false>;
  using Composite = NotDifferentiable<Arguments, true>;
  m.impl(Operator::name().c_str(), adapted<&Operator::kernel>);
  m.impl(Composite::name().c_str(), adapted<&Composite::kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, Autograd, m) {
  for_each_of_cann([&]<typename Arguments>() { implement<Arguments>(m); });
}

}  // namespace ascend_sample
