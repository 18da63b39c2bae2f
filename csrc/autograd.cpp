// Sampling has no derivative here: the forwards work on logits that require a gradient, and a
// backward through a floating-point result says so, by name, instead of passing silently. So do
// forward-mode derivatives and torch.func's, at once.
#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

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

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, name,
      ": the derivative is not implemented. Sample under torch.no_grad(), or detach() ", what, ".");
}

/// The results of a call, and no way back through them.
struct NotDifferentiable : torch::autograd::Function<NotDifferentiable> {
  static variable_list forward(AutogradContext* context, const at::Tensor& /*logits*/,
                               const char* name, const std::function<variable_list()>& call) {
    context->set_materialize_grads(false);  // so that backward sees which results it came through
    context->saved_data["name"] = name;
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto results = call();
    variable_list without_gradient;
    for (const auto& result : results) {
      if (result.dim() == 1 || !result.is_floating_point()) {  // ids; [0]: not asked for
        without_gradient.push_back(result);
      }
    }
    context->mark_non_differentiable(without_gradient);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const std::string name = context->saved_data["name"].toStringRef();
    const auto& results = c10::Dispatcher::singleton()
                              .findSchemaOrThrow(("ascend_sample::" + name).c_str(), "")
                              .schema()
                              .returns();
    std::string names;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) {
        names += (names.empty() ? "" : " and ") + results[i].name();
      }
    }
    refuse(name, names);
  }
};

/// The kernel of one of the variants of an operator.
template <typename Arguments, size_t variant>
typename Arguments::Results kernel(const Arguments& arguments) {
  static const Dispatched<Arguments> op(variant_name<Arguments>(kVariants[variant]));
  const bool is_dual = std::apply(
      [](const auto&... fields) { return (has_tangent(fields) || ...); }, fields_of(arguments));
  if (is_dual) {
    refuse(Arguments::kName, "the arguments");
  }
  if (!(at::GradMode::is_enabled() && arguments.logits.requires_grad())) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op(arguments);
  }
  if (is_under_transform()) {
    refuse(Arguments::kName, "the logits");
  }
  const auto outputs = NotDifferentiable::apply(
      arguments.logits, Arguments::kName, std::function<variable_list()>([&] {
        return std::apply([](const auto&... results) { return variable_list{results...}; },
                          op(arguments));
      }));
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return typename Arguments::Results{outputs[I]...};
  }(std::make_index_sequence<std::tuple_size_v<typename Arguments::Results>>());
}

template <typename Arguments>
void implement(torch::Library& m) {
  [&]<size_t... variants>(std::index_sequence<variants...>) {
    (m.impl(variant_name<Arguments>(kVariants[variants]).c_str(),
            adapted<&kernel<Arguments, variants>>),
     ...);
  }(std::make_index_sequence<kVariants.size()>());
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, Autograd, m) {
  for_each_of_cann([&]<typename Arguments>() { implement<Arguments>(m); });
}

}  // namespace ascend_sample
