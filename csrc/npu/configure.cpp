// How ascend_sample/npu/binding.py talks to the binding.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "cann.h"
#include "scratch.h"

namespace ascend_sample::npu {
namespace {

/// Facts of operators that the next configure_aclnn takes.
std::unordered_map<std::string, OperatorFacts>& described() {
  static std::unordered_map<std::string, OperatorFacts> operators;
  return operators;
}

void describe_operator(std::string op, std::string name, std::string supported_soc,
                       std::string devices, std::vector<std::string> dtypes, std::string found_in,
                       bool takes_any_k, bool checks_unwanted, std::optional<int64_t> most_rows,
                       std::optional<std::string> companion) {
  described()[op] = {std::move(name),     std::move(supported_soc),
                     std::move(devices),  std::move(dtypes),
                     std::move(found_in), takes_any_k,
                     checks_unwanted,     most_rows,
                     std::move(companion)};
}

void configure_aclnn(std::vector<std::string> operator_libraries, std::string runtime_library,
                     std::vector<int64_t> plain_formats, std::vector<int64_t> statuses,
                     std::vector<std::string> status_names) {
  Configuration configuration;
  configuration.operator_libraries = std::move(operator_libraries);
  configuration.runtime_library = std::move(runtime_library);
  configuration.operators = described();
  configuration.plain_formats = std::move(plain_formats);
  for (size_t i = 0; i < statuses.size(); ++i) {
    configuration.status_names.emplace(statuses[i], status_names.at(i));
  }
  configure(std::move(configuration));
}

std::string aclnn_obstacle(std::string_view op) {
  return aclnn().operators.at(std::string(op)).obstacle;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample, m) {
  m.def(
      "describe_aclnn_operator(str operator, str name, str supported_soc, str devices, "
      "str[] dtypes, str found_in, bool takes_any_k, bool checks_unwanted, "
      "int? most_rows, str? companion) -> ()",
      &describe_operator);
  m.def(
      "configure_aclnn(str[] operator_libraries, str runtime_library, int[] plain_formats, "
      "int[] statuses, str[] status_names) -> ()",
      &configure_aclnn);
  m.def("aclnn_obstacle(str operator) -> str", &aclnn_obstacle);
  m.def("release_npu_scratch() -> ()", &release_scratch);
}

}  // namespace ascend_sample::npu
