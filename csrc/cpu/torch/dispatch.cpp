#include "dispatch.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace ascend_sample::cpu {
namespace {

constexpr const char* kCapabilityVariable = "ASCEND_SAMPLE_CPU_CAPABILITY";

/// The widest that the machine has, unless the environment names another.
const Target& choose_target() {
  const char* wanted = std::getenv(kCapabilityVariable);
  if (wanted == nullptr || *wanted == '\0') {
    return best_target();
  }
  const Target* const target = find_target(wanted);
  std::string names;
  for (const Target& each : targets()) {
    if (each.is_available()) {
      names += (names.empty() ? "" : ", ") + std::string(each.name);
    }
  }
  TORCH_CHECK_VALUE(target != nullptr, kCapabilityVariable, " must be one of ", names, ", got ",
                    wanted, ". Unset it to take the fastest that this machine has.");
  return *target;
}

LogitsType type_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return LogitsType::kFloat16;
    case at::kBFloat16:
      return LogitsType::kBFloat16;
    default:  // the checks refused every other
      return LogitsType::kFloat32;
  }
}

}  // namespace

const Target& target_in_use() {
  static const Target& target = choose_target();
  return target;
}

Workspace& workspace_of_thread() {
  thread_local Workspace workspace;
  return workspace;
}

Logits logits_of(const at::Tensor& logits) {
  return {.type = type_of(logits.scalar_type()),
          .vocab_size = logits.size(1),
          .data = logits.const_data_ptr(),
          .row_stride = logits.stride(0),
          .column_stride = logits.stride(1)};
}

}  // namespace ascend_sample::cpu
