// Sampling has no derivative here: the forwards work on logits that require a gradient, and a
// backward through a floating-point result says so, by name, instead of passing silently. So do
// forward-mode derivatives and torch.func's, at once.
#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "adapter.h"
#include "operators.h"

namespace ascend_sample {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }
bool has_tangent(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && has_tangent(*tensor);
}
template <typename Number>
bool has_tangent(const Number&) {
  return false;
}

/// Whether a transform of torch.func, which cannot enter C++, asks for a derivative.
bool is_under_transform() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (state == nullptr) {
    return false;
  }
  try {
    state->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

[[noreturn]] void refuse(const char* name, const std::string& what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, name,
      ": the derivative is not implemented. Sample under torch.no_grad(), or detach() ", what, ".");
}

/// The kernel of one of the variants of an operator.
template <typename Arguments, size_t variant>
struct NotDifferentiable : torch::autograd::Function<NotDifferentiable<Arguments, variant>> {
  using Results = typename Arguments::Results;

  static std::string name() { return variant_name<Arguments>(kVariants[variant]); }

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
    refuse(Arguments::kName, names);
  }

  static Results kernel(const Arguments& arguments) {
    const bool is_dual = std::apply(
        [](const auto&... fields) { return (has_tangent(fields) || ...); }, fields_of(arguments));
    if (is_dual) {
      refuse(Arguments::kName, "the arguments");
    }
    if (!(at::GradMode::is_enabled() && arguments.logits.requires_grad())) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return op()(arguments);
    }
    if (is_under_transform()) {
      refuse(Arguments::kName, "the logits");
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
  [&]<size_t... variants>(std::index_sequence<variants...>) {
    (m.impl(NotDifferentiable<Arguments, variants>::name().c_str(),
            adapted<&NotDifferentiable<Arguments, variants>::kernel>),
     ...);
  }(std::make_index_sequence<kVariants.size()>());
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, Autograd, m) {
  for_each_of_cann([&]<typename Arguments>() { implement<Arguments>(m); });
}

}  // namespace ascend_sample
