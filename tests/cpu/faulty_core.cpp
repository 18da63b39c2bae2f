// The kernel's plain code as "plain", and as "avx512" with the fault that FAULTY_CORE names, by
// which the tests see that the fuzzer finds faults, and cuts their rows down. A wrong share is in
// both, so that comparing the two does not find it.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "cpu/targets.h"

namespace ascend_sample::cpu {

namespace plain {
extern const Kernel kKernel;
}

namespace {

bool has_fault(std::string_view name) {
  const char* const fault = std::getenv("FAULTY_CORE");
  return fault != nullptr && name == fault;
}

void sample(const OperatorCall& call, int64_t first, int64_t last, Workspace& work) {
  const int64_t vocab_size = call.logits.vocab_size;
  while (has_fault("hang") && vocab_size == 33) {
    pause();
  }
  plain::kKernel.sample(call, first, last, work);
  if (has_fault("token") && vocab_size > 16) {
    *call.selected = (*call.selected + 1) % vocab_size;
  }
  if (has_fault("overrun") && !call.kept.empty()) {
    call.kept.data()[vocab_size] = 0;
  }
}

void filter(const FilteringCall& call, int64_t first, int64_t last, Workspace& work) {
  plain::kKernel.filter(call, first, last, work);
  for (int64_t id = 0; has_fault("share") && id < call.logits.vocab_size; ++id) {
    call.kept[id] *= 1 + 1e-5F;
  }
}

Kernel core(bool is_faulty) {
  Kernel kernel = plain::kKernel;
  kernel.filter = filter;
  kernel.sample = is_faulty ? sample : kernel.sample;
  return kernel;
}

bool is_available() { return true; }

}  // namespace

std::span<const Target> targets() {
  static const Kernel right = core(false);
  static const Kernel wrong = core(true);
  static const Target both[] = {{"plain", is_available, &right}, {"avx512", is_available, &wrong}};
  return both;
}

}  // namespace ascend_sample::cpu
