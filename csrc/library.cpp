// Defines every operator of the project, and registers the fake kernels. Each other kernel is
// registered in its own file.
#include <torch/library.h>

#include "adapter.h"
#include "checks.h"
#include "layer_operators.h"
#include "operators.h"

namespace ascend_sample {
namespace {

template <typename Arguments>
void check(const Arguments& arguments) {
  arguments.check();
}

template <typename Arguments>
typename Arguments::Results fake(const Arguments& arguments) {
  arguments.check();
  return arguments.allocate_outputs();
}

void check_tensor(const at::Tensor& tensor, c10::string_view name, c10::string_view op) {
  const std::string operator_name(op);
  if (name == "logits") {
    check_logits(operator_name.c_str(), tensor);
  } else {
    check_layout(operator_name.c_str(), tensor, std::string(name).c_str());
  }
}

template <typename Arguments>
void define(torch::Library& m, const std::string& name) {
  m.def((name + Arguments::kSchema + " -> " + Arguments::kResults).c_str(),
        {at::Tag::pt2_compliant_tag});
}

template <typename Arguments>
void define_check(torch::Library& m) {
  m.def((std::string("check_") + Arguments::kName + Arguments::kSchema + " -> ()").c_str());
}

template <typename Arguments>
void implement_fake(torch::Library& m, const char* variant = "") {
  m.impl(variant_name<Arguments>(variant).c_str(), adapted<&fake<Arguments>>);
}

template <typename Arguments>
void implement_check(torch::Library& m) {
  m.impl((std::string("check_") + Arguments::kName).c_str(), adapted<&check<Arguments>>);
}

void implement_fakes(torch::Library& m) {
  for_each_of_cann([&]<typename Arguments>() {
    for (const char* variant : kVariants) implement_fake<Arguments>(m, variant);
  });
}

void implement_checks(torch::Library& m) {
  for_each_of_cann([&]<typename Arguments>() { implement_check<Arguments>(m); });
  m.impl("check_tensor", &check_tensor);
}

}  // namespace

TORCH_LIBRARY(ascend_sample, m) {
  for_each_of_cann([&]<typename Arguments>() {
    for (const char* variant : kVariants) define<Arguments>(m, variant_name<Arguments>(variant));
    define_check<Arguments>(m);  // the rules alone, for implementations in Python
  });
  // What is wrong with one argument that torch has refused before its operator could.
  m.def("check_tensor(Tensor tensor, str name, str op) -> ()");
  for_each_of_layer([&]<typename Arguments>() { define<Arguments>(m, Arguments::kName); });
  define_check<NoiseArguments>(m);
  define_check<SampleRowsArguments>(m);
}

TORCH_LIBRARY_IMPL(ascend_sample, Meta, m) {
  implement_fakes(m);
  for_each_of_layer([&]<typename Arguments>() {
    if constexpr (requires { &Arguments::allocate_outputs; }) {
      implement_fake<Arguments>(m);
    }
  });
}

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  implement_checks(m);
  implement_check<NoiseArguments>(m);
  implement_check<SampleRowsArguments>(m);
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
