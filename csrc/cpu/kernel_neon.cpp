// The kernel for aarch64, whose baseline has NEON.
#if defined(__aarch64__)
#define ASCEND_SAMPLE_TARGET neon
#include "cpu/kernel.h"
#endif
