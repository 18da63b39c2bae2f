// Kernels take the struct of an operator's arguments (operators.h, layer_operators.h); torch's
// dispatcher passes them one by one. Here is what lies between: the struct's fields are the
// signature.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ascend_sample {

/// Stands for a field of any type where fields are counted.
struct AnyField {
  template <typename Field>
  operator Field() const;  // NOLINT: implicit, and never called
};

/// The number of fields of a struct of arguments: the largest with which it can be made.
template <typename Arguments, size_t kMost = 14>
constexpr size_t count_fields() {
  const auto makes_one = []<size_t... I>(std::index_sequence<I...>) {
    return requires { Arguments{(static_cast<void>(I), AnyField{})...}; };
  };
  if constexpr (makes_one(std::make_index_sequence<kMost>())) {
    return kMost;
  } else {
    return count_fields<Arguments, kMost - 1>();
  }
}

/// The field itself, or those of the struct of arguments that it is.
template <typename Field>
auto fields_within(const Field& field);

/// The fields in order: references to tensors, and numbers. C++ has a line for each count of them.
template <typename Arguments>
auto fields_of(const Arguments& arguments) {
  const auto tie = []<typename... Fields>(const Fields&... fields) {
    return std::tuple_cat(fields_within(fields)...);
  };
  constexpr size_t kCount = count_fields<Arguments>();
  if constexpr (kCount == 3) {
    const auto& [a, b, c] = arguments;
    return tie(a, b, c);
  } else if constexpr (kCount == 4) {
    const auto& [a, b, c, d] = arguments;
    return tie(a, b, c, d);
  } else if constexpr (kCount == 5) {
    const auto& [a, b, c, d, e] = arguments;
    return tie(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    const auto& [a, b, c, d, e, f] = arguments;
    return tie(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    const auto& [a, b, c, d, e, f, g] = arguments;
    return tie(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = arguments;
    return tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kCount == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = arguments;
    return tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kCount == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = arguments;
    return tie(a, b, c, d, e, f, g, h, i, j, k);
  } else {
    static_assert(kCount == 14, "a struct of so many arguments needs a line here");
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = arguments;
    return tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
}

template <typename Field>
auto fields_within(const Field& field) {
  if constexpr (std::is_aggregate_v<Field>) {
    return fields_of(field);
  } else {
    return std::tuple<const Field&>(field);
  }
}

/// As the dispatcher passes it: a number by value, a tensor by reference.
template <typename Field>
using Passed = std::conditional_t<std::is_arithmetic_v<Field>, Field, const Field&>;

/// What the dispatcher sees of kernels that take this struct.
template <typename Arguments, typename Fields = decltype(fields_of(std::declval<Arguments>()))>
struct Adapter;

template <typename Arguments, typename... Fields>
struct Adapter<Arguments, std::tuple<const Fields&...>> {
  using Signature = typename Arguments::Results(Passed<Fields>...);

  template <auto kernel>
  static auto call(Passed<Fields>... fields) {
    return kernel(Arguments{fields...});  // those of a struct within it as well
  }
};

/// A kernel that takes the struct, as Library::impl takes it.
template <auto kernel>
inline constexpr auto* adapted =
    []<typename Results, typename Arguments>(Results (*)(const Arguments&)) {
      return &Adapter<Arguments>::template call<kernel>;
    }(kernel);

/// The operator "ascend_sample::`name`" as the dispatcher has it, called with the struct.
template <typename Arguments>
class Dispatched {
  using Signature = typename Adapter<Arguments>::Signature;

 public:
  explicit Dispatched(const std::string& name)
      : handle_(c10::Dispatcher::singleton()
                    .findSchemaOrThrow(("ascend_sample::" + name).c_str(), "")
                    .template typed<Signature>()) {}

  auto operator()(const Arguments& arguments) const {
    return std::apply([&](const auto&... fields) { return handle_.call(fields...); },
                      fields_of(arguments));
  }

  const c10::FunctionSchema& schema() const { return handle_.schema(); }

 private:
  c10::TypedOperatorHandle<Signature> handle_;
};

}  // namespace ascend_sample
