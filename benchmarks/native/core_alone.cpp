// The kernel without torch around it: a loop in C++ that samples one batch on the calling thread.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "cpu/sample_rows.h"

namespace ascend_sample::benchmarks {
namespace {

cpu::LogitsType logits_type(const at::Tensor& logits) {
  switch (logits.scalar_type()) {
    case at::kFloat:
      return cpu::LogitsType::kFloat32;
    case at::kHalf:
      return cpu::LogitsType::kFloat16;
    case at::kBFloat16:
      return cpu::LogitsType::kBFloat16;
    default:
      TORCH_CHECK(false, "time_core: logits must be float32, float16 or bfloat16, got ",
                  logits.scalar_type());
  }
}

/// What the package takes too: the widest, unless the environment names another.
cpu::Capability capability_in_use() {
  const char* wanted = std::getenv("ASCEND_SAMPLE_CPU_CAPABILITY");
  const auto named = wanted == nullptr ? std::nullopt : cpu::capability_named(wanted);
  return named.value_or(cpu::best_capability());
}

/// Seconds that `calls` samplings of the same batch take together.
double time_core(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                 const at::Tensor& q, int64_t calls) {
  std::vector<int64_t> selected(static_cast<size_t>(logits.size(0)));
  const cpu::Batch batch{.type = logits_type(logits),
                         .batch_size = logits.size(0),
                         .vocab_size = logits.size(1),
                         .logits = logits.const_data_ptr(),
                         .logits_row_stride = logits.stride(0),
                         .logits_column_stride = logits.stride(1),
                         .k = k.const_data_ptr<int32_t>(),
                         .k_stride = k.stride(0),
                         .selected = selected.data(),
                         .p = p.const_data_ptr(),
                         .p_stride = p.stride(0),
                         .q = q.const_data_ptr<float>(),
                         .q_row_stride = q.stride(0),
                         .q_column_stride = q.stride(1),
                         .eps = 1e-8F};
  const cpu::Capability capability = capability_in_use();
  cpu::Scratch scratch;
  const auto began = std::chrono::steady_clock::now();
  for (int64_t call = 0; call < calls; ++call) {
    cpu::sample_rows(capability, batch, 0, batch.batch_size, scratch);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// The code path that the kernel takes on this machine.
std::string capability() { return std::string(cpu::name_of(capability_in_use())); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample_benchmarks, m) {
  m.def("time_core(Tensor logits, Tensor k, Tensor p, Tensor q, int calls) -> float", &time_core);
  m.def("capability() -> str", &capability);
}

}  // namespace ascend_sample::benchmarks
