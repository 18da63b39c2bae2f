#include "dispatch.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace ascend_sample::cpu {
namespace {

constexpr const char* kCapabilityVariable = "ASCEND_SAMPLE_CPU_CAPABILITY";

/// The widest that the machine has, unless the environment names another.
Capability choose_capability() {
  const char* wanted = std::getenv(kCapabilityVariable);
  if (wanted == nullptr || *wanted == '\0') {
    return best_capability();
  }
  const std::optional<Capability> capability = capability_named(wanted);
  std::string names;
  for (const Capability each : kCapabilities) {
    if (is_available(each)) {
      names += (names.empty() ? "" : ", ") + std::string(name_of(each));
    }
  }
  TORCH_CHECK_VALUE(capability.has_value() && is_available(*capability), kCapabilityVariable,
                    " must be one of ", names, ", got ", wanted,
                    ". Unset it to take the fastest that this machine has.");
  return *capability;
}

}  // namespace

Capability capability_in_use() {
  static const Capability capability = choose_capability();
  return capability;
}

void sample_batch(const Batch& batch) {
  const Capability capability = capability_in_use();
  at::parallel_for(0, batch.batch_size, 1, [&](int64_t first_row, int64_t last_row) {
    thread_local Scratch scratch;
    sample_rows(capability, batch, first_row, last_row, scratch);
  });
}

LogitsType type_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return LogitsType::kFloat16;
    case at::kBFloat16:
      return LogitsType::kBFloat16;
    default:  // check_arguments refused every other
      return LogitsType::kFloat32;
  }
}

}  // namespace ascend_sample::cpu
