#include "batch.h"

#include <ATen/Parallel.h>

#include <cstdlib>

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

Capability capability_in_use() {
  static const Capability capability = choose_capability();
  return capability;
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

}  // namespace

Batch batch_of(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
               const std::optional<at::Tensor>& q, double eps) {
  return {.type = type_of(logits.scalar_type()),
          .batch_size = logits.size(0),
          .vocab_size = logits.size(1),
          .logits = logits.const_data_ptr(),
          .logits_row_stride = logits.stride(0),
          .logits_column_stride = logits.stride(1),
          .k = k.const_data_ptr<int32_t>(),
          .k_stride = k.stride(0),
          .p = p.const_data_ptr(),
          .p_stride = p.stride(0),
          .q = q.has_value() ? q->const_data_ptr<float>() : nullptr,
          .q_row_stride = q.has_value() ? q->stride(0) : 0,
          .q_column_stride = q.has_value() ? q->stride(1) : 0,
          .eps = static_cast<float>(eps),
          .selected = nullptr,
          .kept = nullptr};
}

void sample_batch(const Batch& batch) {
  const Capability capability = capability_in_use();
  at::parallel_for(0, batch.batch_size, 1, [&](int64_t first_row, int64_t last_row) {
    thread_local Scratch scratch;
    sample_rows(capability, batch, first_row, last_row, scratch);
  });
}

std::string cpu_capability() { return std::string(name_of(capability_in_use())); }

}  // namespace ascend_sample::cpu
