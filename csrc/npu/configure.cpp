// How ascend_sample/npu/binding.py talks to the binding.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "cann.h"
#include "scratch.h"

namespace ascend_sample::npu {
namespace {

void configure_aclnn(std::vector<std::string> operator_libraries, std::string runtime_library,
                     std::vector<std::string> operators, std::vector<std::string> supported_socs,
                     std::vector<std::string> devices, std::vector<std::string> found_in,
                     std::vector<int64_t> plain_formats, std::vector<int64_t> statuses,
                     std::vector<std::string> status_names) {
  Configuration configuration;
  configuration.operator_libraries = std::move(operator_libraries);
  configuration.runtime_library = std::move(runtime_library);
  configuration.plain_formats = std::move(plain_formats);
  for (size_t i = 0; i < operators.size(); ++i) {
    configuration.operators[operators[i]] = {supported_socs.at(i), devices.at(i), found_in.at(i)};
  }
  for (size_t i = 0; i < statuses.size(); ++i) {
    configuration.status_names.emplace(statuses[i], status_names.at(i));
  }
  configure(std::move(configuration));
}

std::string aclnn_obstacle(std::string_view op) { return aclnn().obstacles.at(std::string(op)); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample, m) {
  m.def(
      "configure_aclnn(str[] operator_libraries, str runtime_library, str[] operators, str[] "
      "supported_socs, str[] devices, str[] found_in, int[] plain_formats, int[] statuses, str[] "
      "status_names) -> ()",
      &configure_aclnn);
  m.def("aclnn_obstacle(str operator) -> str", &aclnn_obstacle);
  m.def("release_npu_scratch() -> ()", &release_scratch);
}

}  // namespace ascend_sample::npu
