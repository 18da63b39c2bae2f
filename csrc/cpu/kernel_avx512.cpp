// The kernel for x86-64 with AVX-512 F, BW, DQ and VL; compiled with their flags (flags.json).
#if defined(__x86_64__)
#define ASCEND_SAMPLE_TARGET avx512
#include "cpu/kernel.h"
#endif
