#include "cpu/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ascend_sample::cpu {

// Each is defined by kernel.h, in the file that is compiled for the target.
namespace plain {
extern const Kernel kKernel;
}
namespace avx2 {
extern const Kernel kKernel;
}
namespace avx512 {
extern const Kernel kKernel;
}
namespace neon {
extern const Kernel kKernel;
}

namespace {

#if defined(__x86_64__)
/// __builtin_cpu_supports knows it from g++ 11 on.
bool has_lzcnt() {
  constexpr unsigned kExtended = 0x80000001;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(kExtended, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_LZCNT) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_lzcnt();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

constexpr Target kTargets[] = {
    {"plain", [] { return true; }, &plain::kKernel},
#if defined(__x86_64__)
    {"avx2", has_avx2, &avx2::kKernel},
    {"avx512", has_avx512, &avx512::kKernel},
#elif defined(__aarch64__)
    {"neon", [] { return true; }, &neon::kKernel},  // every aarch64 has it
#endif
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  for (const Target& target : kTargets) {
    if (target.name == name && target.is_available()) {
      return &target;
    }
  }
  return nullptr;
}

const Target& best_target() {
  const Target* best = &kTargets[0];
  for (const Target& target : kTargets) {
    best = target.is_available() ? &target : best;
  }
  return *best;
}

}  // namespace ascend_sample::cpu
