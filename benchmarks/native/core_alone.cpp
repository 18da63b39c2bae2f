// The kernel without torch around it: a loop in C++ that samples one batch on the calling thread.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "cpu/targets.h"

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
const cpu::Target& target_in_use() {
  const char* wanted = std::getenv("ASCEND_SAMPLE_CPU_CAPABILITY");
  const cpu::Target* const named = wanted == nullptr ? nullptr : cpu::find_target(wanted);
  return named == nullptr ? cpu::best_target() : *named;
}

/// Seconds that `calls` samplings of the same batch take together.
double time_core(const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
                 const at::Tensor& q, int64_t calls) {
  std::vector<int64_t> selected(static_cast<size_t>(logits.size(0)));
  const cpu::OperatorCall sampling{
      .logits = {.type = logits_type(logits),
                 .vocab_size = logits.size(1),
                 .data = logits.const_data_ptr(),
                 .row_stride = logits.stride(0),
                 .column_stride = logits.stride(1)},
      .batch_size = logits.size(0),
      .rules = cpu::kFirstOperator,
      .k = {k.const_data_ptr<int32_t>(), k.stride(0)},
      .p = {p.const_data_ptr(), p.stride(0)},
      .min_p = std::nullopt,
      .q = cpu::NoiseRows{q.const_data_ptr<float>(), q.stride(0), q.stride(1)},
      .eps = 1e-8F,
      .selected = selected.data(),
      .kept = {}};
  const cpu::Kernel& kernel = *target_in_use().kernel;
  cpu::Workspace work;
  const auto began = std::chrono::steady_clock::now();
  for (int64_t call = 0; call < calls; ++call) {
    kernel.sample(sampling, 0, sampling.batch_size, work);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// The code path that the kernel takes on this machine.
std::string capability() { return std::string(target_in_use().name); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample_benchmarks, m) {
  m.def("time_core(Tensor logits, Tensor k, Tensor p, Tensor q, int calls) -> float", &time_core);
  m.def("capability() -> str", &capability);
}

}  // namespace ascend_sample::benchmarks
