// The kernel for x86-64 with AVX2, FMA, F16C and BMI2; compiled with their flags (flags.json).
#if defined(__x86_64__)
#define ASCEND_SAMPLE_TARGET avx2
#include "cpu/kernel.h"
#endif
