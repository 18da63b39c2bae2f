// The NPU kernels: an operator of ours is one of CANN on the current stream.
#include <ATen/DeviceGuard.h>
#include <ATen/ops/threshold.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "adapter.h"
#include "checks.h"
#include "operators.h"
#include "sampler_call.h"

namespace ascend_sample::npu {
namespace {

/// One call of an operator whose arguments CANN takes in the order of ours, and then the results.
template <typename Arguments>
class OperatorCall {
 public:
  using Results = typename Arguments::Results;

  OperatorCall(const AclnnOperator& aclnn_operator, const c10::FunctionSchema& schema,
               const Arguments& arguments, const Results& results)
      : operator_(aclnn_operator),
        schema_(schema),
        results_(results),
        call_(Arguments::kName, arguments.logits,
              aclnn_operator.checks_unwanted ? arguments.logits.sizes() : at::IntArrayRef(kOne),
              unwanted_bytes(arguments)) {
    plan(arguments, valid_k(arguments), /*is_for_id=*/false);
    if constexpr (requires { arguments.is_need_sample_result; }) {
      if (arguments.is_need_sample_result) {
        // CANN's documentation promises no id then. The one without q is the first of the total
        // order, whatever the filters: a second launch finds it as the best 1.
        Arguments best = arguments;
        best.is_need_logits = false;
        best.is_need_sample_result = false;
        plan(best, call_.make_ones(arguments.k), /*is_for_id=*/true);
      }
    }
  }

  void enqueue() { call_.enqueue(operator_.phase2_name.c_str()); }

 private:
  static constexpr std::array<int64_t, 1> kOne = {1};

  /// What CANN gets in the place of a k that it cannot take; null: it gets k as it is.
  const aclTensor* valid_k(const Arguments& arguments) {
    if constexpr (std::is_same_v<decltype(arguments.k), const at::Tensor&>) {
      if (!operator_.takes_any_k) {
        return call_.make_valid(arguments.k);
      }
    }
    return nullptr;
  }

  /// Of an element of the outputs that nobody wants of one of the launches.
  int64_t unwanted_bytes(const Arguments& arguments) const {
    bool has_launch_for_id = false;
    if constexpr (requires { arguments.is_need_sample_result; }) {
      has_launch_for_id = arguments.is_need_sample_result;
    }
    return std::apply(
        [&](const auto& /*ids*/, const auto&... results) {
          return std::max({int64_t{0}, has_launch_for_id || results.numel() == 0
                                           ? static_cast<int64_t>(results.itemsize())
                                           : int64_t{0}...});
        },
        results_);
  }

  void plan(const Arguments& arguments, const aclTensor* k, bool is_for_id) {
    size_t place = 0;
    const auto input = [&]<typename Field>(const Field& field) {
      [[maybe_unused]] const char* name = schema_.arguments()[place++].name().c_str();
      if constexpr (std::is_same_v<Field, at::Tensor>) {
        const bool is_k = static_cast<const void*>(&field) == &arguments.k;
        return is_k && k != nullptr ? k : call_.describe(name, field);
      } else if constexpr (std::is_same_v<Field, std::optional<at::Tensor>>) {
        return call_.describe(name, field.value_or(at::Tensor()));
      } else {
        return field;
      }
    };
    // What stands in braces is evaluated from left to right.
    const auto inputs = std::apply(
        [&](const auto&... fields) { return std::tuple{input(fields)...}; }, fields_of(arguments));
    place = 0;
    const auto output = [&](const at::Tensor& result) {
      const bool is_wanted = is_for_id ? place == 0 : result.numel() > 0;
      const char* name = schema_.returns()[place++].name().c_str();
      return call_.describe_result(name, result, is_wanted);
    };
    const auto outputs = std::apply(
        [&](const auto&... results) { return std::tuple{output(results)...}; }, results_);
    const auto phase1 = [&](uint64_t* size, aclOpExecutor** executor) {
      const auto call = [&]<typename... Values>(const Values&... values) {
        using Phase1 = aclnnStatus(Values..., uint64_t*, aclOpExecutor**);
        return reinterpret_cast<Phase1*>(operator_.phase1)(values..., size, executor);
      };
      return std::apply(call, std::tuple_cat(inputs, outputs));
    };
    call_.plan({operator_.phase1_name.c_str(), operator_.phase2_name.c_str(), operator_.phase2},
               phase1);
  }

  const AclnnOperator& operator_;
  const c10::FunctionSchema& schema_;
  const Results& results_;
  SamplerCall call_;
};

/// Warns once for each reason.
void warn_of_composite(const char* op, const std::string& reason) {
  static std::mutex mutex;
  static auto* const warned = new std::set<std::pair<std::string, std::string>>;
  const auto is_new = [&] {  // what warns may wait for other threads
    const std::lock_guard lock(mutex);
    return warned->emplace(op, reason).second;
  };
  if (is_new()) {
    TORCH_WARN(op, ": served by the composite of torch operators, which is much slower: ", reason,
               ". (Warned once.)");
  }
}

/// Queues the launch of an operator whose results are to be written.
template <typename Arguments>
void launch(const AclnnOperator& aclnn_operator, const c10::FunctionSchema& schema,
            const Arguments& arguments, const typename Arguments::Results& results) {
  OperatorCall<Arguments>(aclnn_operator, schema, arguments, results).enqueue();
}

/// The same of the operator whose kernel reads beside the row for a k that is not between 1 and
/// vocab_size: it gets vocab_size instead, which skips top-k. k is not read back.
void launch(const AclnnOperator& aclnn_operator, const c10::FunctionSchema& schema,
            const ApplyArguments& arguments, const ApplyArguments::Results& results) {
  const auto& [logits, p, k] = arguments;
  const auto vocab_size = logits.size(1);
  std::optional<at::Tensor> valid_k;
  if (k.has_value()) {
    valid_k = at::threshold(*k, 0, vocab_size).clamp_max_(vocab_size);
  }
  OperatorCall<ApplyArguments>(aclnn_operator, schema, {logits, p, valid_k}, results).enqueue();
}

template <typename Arguments>
typename Arguments::Results sample(const Arguments& arguments) {
  static const Dispatched<Arguments> composite(variant_name<Arguments>(kComposite));
  arguments.check();
  const auto& logits = arguments.logits;
  const auto& aclnn_operator = aclnn().operators.at(Arguments::kName);
  if (const auto reason = aclnn_operator.obstacle_for(logits.scalar_type()); !reason.empty()) {
    warn_of_composite(Arguments::kName, reason);
    return composite(arguments);
  }
  check_size(Arguments::kName, logits, aclnn_operator.most_rows);

  const c10::DeviceGuard guard(logits.device());
  const auto results = arguments.allocate_outputs();
  if constexpr (requires { arguments.is_need_sample_result; }) {
    if (arguments.is_need_sample_result) {
      std::get<2>(results).zero_();  // behind the ids of what is kept, CANN writes nothing
    }
  }
  if (logits.size(0) > 0) {
    launch(aclnn_operator, composite.schema(), arguments, results);
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, PrivateUse1, m) {
  for_each_of_cann(
      [&]<typename Arguments>() { m.impl(Arguments::kName, adapted<&sample<Arguments>>); });
}

}  // namespace ascend_sample::npu
