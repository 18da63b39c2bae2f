#include "capability.h"

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

}  // namespace ascend_sample::cpu
