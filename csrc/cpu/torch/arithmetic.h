// The arithmetic that the core counts on.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

namespace ascend_sample::cpu {

/// While this lives, the thread rounds to nearest and has subnormal numbers. It may have been set
/// to something else: by torch.set_flush_denormal(True), or by loading a library that was linked
/// with -ffast-math. Not by <cfenv>, which takes as long as a small row: it sets the x87 too.
class StandardArithmetic {
 public:
  StandardArithmetic() { set_control(kStandard); }
  StandardArithmetic(const StandardArithmetic&) = delete;
  StandardArithmetic& operator=(const StandardArithmetic&) = delete;
  ~StandardArithmetic() { set_control(before_); }

 private:
#if defined(__x86_64__)
  using Control = uint32_t;
  static constexpr Control kStandard = 0x1F80;  // and no exceptions
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kStandard = 0;
  static Control control() {
    Control value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Control = int;  // of others nothing is known
  static constexpr Control kStandard = 0;
  static Control control() { return kStandard; }
  static void set_control(Control) {}
#endif

  const Control before_ = control();
};

}  // namespace ascend_sample::cpu
